"""The gateway of a cluster: the ordinary server, its engine on replicas elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from minserve.request import Request
from minserve.routing.wire import Report
from minserve.service import Listener
from minserve.serving.calls import Call, ServedModel
from minserve.serving.cluster_engine import ClusterEngine, merged
from minserve.serving.errors import ApiError
from minserve.serving.identity import KeyRing, Salts
from minserve.serving.metrics import HttpMetrics, Metrics
from minserve.serving.server import Limits, Server

log = logging.getLogger("minserve.cluster")
LOOK_EVERY_S = 1.0


class ClusterGateway(Server):
    """Identity, fields, tokens and HTTP; what is computed is computed by `engine`'s replicas.

    The salts' secret is this gateway's: replicas get salts, never the secret. Several gateways of
    one cluster need the same one, and the same keys.
    """

    watch: ClusterWatch

    def __init__(
        self,
        model: ServedModel,
        engine: ClusterEngine,
        keys: KeyRing | None = None,
        salts: Salts | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._cluster = engine
        self._looking: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop
        super().__init__(model, _nothing, keys, salts or Salts(), limits or Limits())

    def _make_engine(self) -> tuple[ClusterEngine, ClusterWatch]:
        return self._cluster, ClusterWatch(self.model.names[0])

    def start(self) -> None:
        super().start()
        self.loop = asyncio.get_running_loop()
        self._looking = self.loop.create_task(self._look())

    def stop(self) -> None:
        if self._looking:
            self._looking.cancel()
        super().stop()

    async def check_alive(self) -> None:
        """Raises `ApiError` (503) while no replica can be sent anything."""
        if not self.watch.reports:
            await self._look_once()
        if not self.watch.reports:
            raise ApiError(503, "no replica is ready", code="no_replica", retry_after_s=1.0)

    def _submit(self, call: Call, request: Request, listener: Listener) -> None:
        self._cluster.submit(request, listener, call.quota, call.wording, not call.is_stream)

    async def _look(self) -> None:
        while True:
            await self._look_once()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look_once(self) -> None:
        try:
            self.watch.reports = await self._cluster.reports(with_metrics=True)
        except Exception:  # NOTE: whoever looks at the replicas must not end the gateway
            log.exception("the replicas could not be asked how they are")


def _nothing(loop: Any) -> Any:
    raise AssertionError("a gateway has no service of its own")


class ClusterWatch:
    """What watches a cluster: as `minserve.serving.watch.Watch`, from the replicas' reports.

    There are no traces: a replica keeps those of its own requests.
    """

    reuse: dict[str, Any] | None = None

    def __init__(self, model_name: str) -> None:
        self.reports: Sequence[Report] = ()
        self.registry = CollectorRegistry()
        self.metrics = self.live = self.traces = self
        self.content_type = Metrics.content_type
        self.headers: list[tuple[bytes, bytes]] = []
        self.note_http = HttpMetrics(self.registry, model_name).note
        self._model = model_name

    def text(self) -> bytes:
        """One text of all replicas' metrics and the gateway's own."""
        return merged([generate_latest(self.registry), *(r.metrics for r in self.reports)])

    def picture(self, now_s: float) -> dict[str, Any]:
        """What is going on, for JSON; `replicas` has each one's share."""
        reports = self.reports
        blocks = {name: sum(r.blocks[name] for r in reports) for name in BLOCKS}
        return {
            "model": self._model,
            "time_s": round(now_s, 3),
            "running": sum(r.num_running for r in reports),
            "waiting": sum(r.num_waiting for r in reports),
            "blocks": blocks | {"block_size": 0},
            "rates": dict.fromkeys(RATES, 0.0) | {"step_s": None},
            "rows": 0,
            "load": {"rung": 0, "label": f"{len(reports)} replicas"},
            "replicas": [
                {
                    "running": r.num_running,
                    "waiting": r.num_waiting,
                    "queued_tokens": r.queued_tokens,
                    "blocks": r.blocks,
                }
                for r in reports
            ],
        }

    def rung(self) -> Any:
        from minserve.scheduling.overload import Rung

        return Rung.NORMAL

    def expect(self, request: Request, now_s: float) -> None:
        """Nothing is traced here."""

    def settle(self, request: Request) -> None:
        """Nothing is traced here."""

    def read(self, *asked: Any) -> None:
        """There is no trace of anything."""


BLOCKS = ("used", "cached", "free", "total")
RATES = ("output_tokens_per_s", "computed_tokens_per_s", "steps_per_s", "busy")
