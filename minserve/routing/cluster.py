"""Replicas of the engine on Ray Serve: any number of them, on one machine or many.

    gateway (HTTP, identity, tokens) --Sent--> PrefixRequestRouter --> Replica: Service on an engine
                                     <--Outputs--

The gateway is the ordinary server with `minserve.serving.cluster_engine.ClusterEngine` in the
engine's place. A replica is the ordinary service; what travels are plain requests and outputs. Ray
keeps the replicas alive, adds and drains them; the routing policy is `minserve.routing.prefix`, and
the scaling rule is the one that `minserve capacity` evaluates on the simulator.

Ray moves objects between its processes by pickle: its network is trusted, and nobody else's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from minserve.routing.ray_policies import Autoscaler, PrefixRequestRouter
from minserve.routing.wire import Report, Sent, To
from minserve.service import Ended, Output, Refuse
from minserve.serving.engine_thread import EngineThread

PATIENCE_S = 120.0
"""How long a replica that is to go may take to finish what it serves."""


class Replica:
    """One engine. `make_server()` loads the model and puts it behind a server, without HTTP."""

    def __init__(self, make_server: Callable[[], Any]) -> None:
        began_s = time.perf_counter()
        self._server = make_server()
        self._server.watch.metrics.model_load_s.set(time.perf_counter() - began_s)
        self._engine: EngineThread = self._server.engine
        self._engine.start()
        self._id = serve.get_replica_context().replica_id.unique_id

    async def serve(self, sent: Sent) -> AsyncIterator[list[Output]]:
        """The outputs of one request, as many at a time as there are."""
        request, loop = sent.request, asyncio.get_running_loop()
        request.arrival_s = self._engine.now_s() - sent.age_s
        request.timeline.arrival_s = request.arrival_s
        if sent.left_s is not None:
            request.deadline_s = self._engine.now_s() + sent.left_s
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def hear(output: Output) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        self._engine.submit(request, hear, sent.quota, sent.wording)
        num_open = request.sampling.n
        try:
            while num_open > 0:
                batch = [await outputs.get()]
                while not outputs.empty():
                    batch.append(outputs.get_nowait())
                num_open -= sum(isinstance(output, Ended) for output in batch)
                if any(isinstance(output, Refuse) for output in batch):
                    num_open = 0
                yield batch
        finally:
            if num_open > 0:  # whoever asked has gone
                self._engine.cancel(request.id)

    async def report(self, to: To, with_metrics: bool = False) -> Report:
        """How this replica is; `to` is for the router."""
        text = self._server.watch.metrics.text() if with_metrics else b""
        return await asyncio.wrap_future(self._engine.ask(lambda: self._report(text)))

    async def describe(self) -> dict[str, Any]:
        """What the gateway must know of the model: the same on every replica."""
        engine = self._server.engine.service.client.engine
        return {
            "max_model_len": self._server.model.max_model_len,
            "namespace": engine.prefix_cache.namespace if engine.prefix_cache else "",
            "block_size": engine.pool.block_size,
            "num_blocks": engine.pool.num_blocks,
        }

    async def check_health(self) -> None:
        """Ray replaces a replica that raises here."""
        await self._server.check_alive()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        report = await asyncio.wrap_future(self._engine.ask(lambda: self._report(b"")))
        return {
            "queued_tokens": report.queued_tokens,
            "oldest_wait_s": report.oldest_wait_s,
            "num_running": report.num_running,
            "kv_pressure": report.kv_pressure,
        }

    def _report(self, metrics: bytes) -> Report:
        """NOTE: on the engine's thread, between two steps."""
        engine, now_s = self._engine.service.client.engine, self._engine.now_s()
        scheduler, pool, cache = engine.scheduler, engine.pool, engine.prefix_cache
        waiting = list(scheduler.waiting)
        return Report(
            self._id,
            os.getpid(),
            len(scheduler.running),
            len(waiting),
            sum(request.num_tokens - request.num_computed_tokens for request in waiting),
            max((now_s - request.arrival_s for request in waiting), default=0.0),
            {
                "used": pool.num_used,
                "cached": pool.num_cached,
                "free": pool.num_free,
                "total": pool.num_blocks,
            },
            cache.num_hit_tokens if cache else 0,
            cache.num_queried_tokens if cache else 0,
            metrics,
        )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How many replicas there are, and how they are chosen.

    `routing` is `prefix` or `random`. With `max_replicas` above `num_replicas` they are scaled by
    queued tokens, the age of the queue and KV pressure: as many as work off the queue in `drain_s`
    at `tokens_per_s` each, and `num_warm` more.
    """

    num_replicas: int = 2
    max_replicas: int = 0
    num_warm: int = 0
    tokens_per_s: float = 500.0
    drain_s: float = 2.0
    routing: str = "prefix"
    num_blocks: int = 256
    block_size: int = 16
    num_cpus: float = 0.5
    max_open: int = 256
    name: str = "minserve"


def deploy(make_server: Callable[[], Any], settings: ClusterSettings) -> Any:
    """Deploy the replicas, or change those that run; a handle to them, once one is ready."""
    scaling: dict[str, Any] = {"num_replicas": settings.num_replicas}
    if settings.max_replicas > settings.num_replicas:
        policy = AutoscalingPolicy(
            policy_function=Autoscaler,
            policy_kwargs={
                "tokens_per_s": settings.tokens_per_s,
                "drain_s": settings.drain_s,
                "num_warm": settings.num_warm,
            },
        )
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=settings.num_replicas,
                max_replicas=settings.max_replicas,
                policy=policy,
                metrics_interval_s=1.0,
                look_back_period_s=2.0,
                upscale_delay_s=0.0,
                downscale_delay_s=0.0,  # the rule waits by itself until it has been calm
            )
        }
    router = RequestRouterConfig(
        # Ray's `**kwargs: dict[str, Any]` means any, not dictionaries.
        request_router_class=PrefixRequestRouter,  # type: ignore[arg-type]
        request_router_kwargs={
            "num_blocks": settings.num_blocks,
            "block_size": settings.block_size,
            "at_random": settings.routing == "random",
        },
    )
    deployment = serve.deployment(
        name="Replica",
        max_ongoing_requests=settings.max_open,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=PATIENCE_S,
        health_check_period_s=1.0,
        health_check_timeout_s=30.0,
        ray_actor_options={"num_cpus": settings.num_cpus},
        request_router_config=router,
        **scaling,
    )(Replica)
    return serve.run(
        deployment.bind(make_server), name=settings.name, route_prefix=None, blocking=False
    )
