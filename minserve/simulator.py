"""Engines on a virtual clock: any number of replicas of the real scheduler, at calibrated costs.

The scheduler, the policies and the caches are the ones that serve; only a step's duration comes
from a cost model (as in Vidur, Agrawal et al., 2024). A client of `Fleet` sees an `EngineClient`
like any other, so the load generator and its report are those of a real server too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from minserve.client import Listener, LocalClient
from minserve.clock import EventLoop
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import Event, EventLog, Finished
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.request import FinishReason, Request
from minserve.scheduling.admission import Admission, Admit, Defer
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering


@dataclass(frozen=True, slots=True)
class Profile:
    """What a simulated replica is: its cost model, and how much its KV cache holds.

    `source` says where the figures come from; a report repeats it. `load_s` is how long a new
    replica takes until it can serve.
    """

    name: str
    cost: CostModel
    num_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    load_s: float = 0.0
    source: str = ""

    def executor(self) -> SimulatedExecutor:
        """A fresh replica's executor."""
        return SimulatedExecutor(
            self.num_blocks,
            self.block_size,
            cost=self.cost,
            max_model_len=self.max_model_len,
            token=_same_token,
        )

    def resized(self, num_blocks: int | None, block_size: int | None = None) -> Profile:
        """With another pool, where one is given."""
        return replace(
            self,
            num_blocks=num_blocks or self.num_blocks,
            block_size=block_size or self.block_size,
        )


def _same_token(row) -> int:
    """Every answer is the same word: what is said does not matter, and costs nothing to make."""
    return 19


def roofline(
    name: str,
    *,
    parameters: float,
    layers: int,
    hidden: int,
    kv_bytes_per_token: float,
    bytes_per_parameter: float,
    flops_per_s: float,
    bytes_per_s: float,
    memory_bytes: float,
    overhead_s: float,
    load_bytes_per_s: float,
    max_model_len: int,
    efficiency: float = 0.5,
) -> Profile:
    """A profile from published peak figures: an estimate of a machine nobody here has measured.

    A step reads all weights once, each computed token costs 2 x parameters of arithmetic, each
    query-key pair 4 x layers x hidden, and each row reads its context's keys and values; every
    part at `efficiency` of its peak, and none overlapping another (Pope et al., 2022).
    """
    compute, bandwidth = flops_per_s * efficiency, bytes_per_s * efficiency
    weights = parameters * bytes_per_parameter
    cost = CostModel(
        per_step_s=overhead_s + weights / bandwidth,
        per_token_s=2 * parameters / compute,
        per_row_s=0.0,
        per_context_token_s=4 * layers * hidden / compute,
        per_read_token_s=kv_bytes_per_token / bandwidth,
    )
    num_tokens = int((memory_bytes * 0.9 - weights) / kv_bytes_per_token)
    return Profile(
        name,
        cost,
        num_tokens // 16,
        16,
        max_model_len,
        load_s=weights / load_bytes_per_s,
        source=f"estimated from peak figures at {efficiency:.0%} of them, not measured",
    )


# Llama 3.1 8B in bfloat16 (its config.json: 32 layers, 8 KV heads of 128) on one H100 SXM
# (NVIDIA's data sheet: 989 Tflop/s dense bfloat16, 3.35 TB/s, 80 GB). Loading from disk at 2 GB/s.
H100_LLAMA_8B = roofline(
    "h100-llama-3.1-8b",
    parameters=8.03e9,
    layers=32,
    hidden=4096,
    kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
    bytes_per_parameter=2,
    flops_per_s=989e12,
    bytes_per_s=3.35e12,
    memory_bytes=80e9,
    overhead_s=2e-3,
    load_bytes_per_s=2e9,
    max_model_len=131_072,
)
NANO = Profile(
    "nano",
    CostModel(),
    2048,
    source="round figures of the size of northstar-nano on two CPU cores, not measured",
)
PROFILES = {profile.name: profile for profile in (NANO, H100_LLAMA_8B)}


# -- replicas


class Router(Protocol):
    """Chooses a replica for a request; `loads` are requests unfinished at each."""

    def __call__(self, request: Request, loads: list[int]) -> int: ...


def least_loaded(request: Request, loads: list[int]) -> int:
    """The replica with the fewest unfinished requests; the first of them."""
    return loads.index(min(loads))


def by_prefix(request: Request, loads: list[int], num_tokens: int = 64) -> int:
    """Requests that begin alike go to one replica, whose cache has that prefix.

    Unless that replica has twice the mean load and four requests more: then the least loaded.
    """
    head = repr((request.cache_salt, request.prompt_token_ids[:num_tokens])).encode()
    chosen = zlib.crc32(head) % len(loads)
    if loads[chosen] > max(2 * sum(loads) / len(loads), min(loads) + 4):
        return least_loaded(request, loads)
    return chosen


ROUTERS: dict[str, Router] = {"least-loaded": least_loaded, "prefix": by_prefix}


class Fleet:
    """`EngineClient` over replicas that can come and go; see `scale_to`.

    `make_engine()` makes a replica. All run side by side on `loop`.
    """

    def __init__(
        self,
        loop: EventLoop,
        make_engine: Callable[[], Engine],
        num_replicas: int = 1,
        route: Router = least_loaded,
        load_s: float = 0.0,
        has_admission: bool = False,
    ) -> None:
        if num_replicas < 1:
            raise ConfigError(f"{num_replicas} replicas", "use at least 1")
        self.loop, self.route, self.load_s = loop, route, load_s
        self._make = lambda: _Replica(make_engine(), loop, has_admission)
        self.replicas = [self._make() for _ in range(num_replicas)]
        self.leaving: list[_Replica] = []
        self.num_loading = 0
        self._replica_of: dict[str, _Replica] = {}
        self._counted_until_s = 0.0
        self._replica_s = 0.0

    @property
    def engines(self) -> list[Engine]:
        return [replica.client.engine for replica in self.replicas]

    @property
    def replica_s(self) -> float:
        """Seconds paid for so far, over all replicas, loading and leaving ones included."""
        self._count()
        return self._replica_s

    def send(self, request: Request, listener: Listener = lambda event: None) -> None:
        if len(self.replicas) == 1 and not self.leaving:  # nothing to choose: no detour in time
            self._send_to(self.replicas[0], request, listener)
        else:
            self.loop.at(request.arrival_s, lambda: self._choose(request, listener))

    def cancel(self, request_id: str) -> None:
        replica = self._replica_of.get(request_id)
        if replica:
            replica.client.cancel(request_id)

    def scale_to(self, count: int) -> None:
        """Have `count` replicas: new ones serve after `load_s`; surplus ones finish and go."""
        self._count()
        for _ in range(count - len(self.replicas) - self.num_loading):
            self.num_loading += 1
            self.loop.at(self.loop.clock.now_s() + self.load_s, self._join)
        while len(self.replicas) > max(1, count):
            leaving = min(self.replicas, key=lambda replica: replica.num_unfinished)
            self.replicas.remove(leaving)
            if leaving.num_unfinished:
                self.leaving.append(leaving)

    def _join(self) -> None:
        self._count()
        self.num_loading -= 1
        self.replicas.append(self._make())

    def _choose(self, request: Request, listener: Listener) -> None:
        loads = [replica.num_unfinished for replica in self.replicas]
        self._send_to(self.replicas[self.route(request, loads)], request, listener)

    def _send_to(self, replica: _Replica, request: Request, listener: Listener) -> None:
        replica.num_unfinished += 1
        self._replica_of[request.id] = replica

        def listen(event: Event) -> None:
            if type(event) is Finished:
                replica.num_unfinished -= 1
                self._replica_of.pop(request.id, None)
                if replica in self.leaving and not replica.num_unfinished:
                    self._count()
                    self.leaving.remove(replica)
            listener(event)

        replica.send(request, listen)

    def _count(self) -> None:
        now_s = self.loop.clock.now_s()
        paid = len(self.replicas) + len(self.leaving) + self.num_loading
        self._replica_s += paid * (now_s - self._counted_until_s)
        self._counted_until_s = now_s


class _Replica:
    """An engine and its client; behind `admission`, where that is given."""

    def __init__(self, engine: Engine, loop: EventLoop, has_admission: bool = False) -> None:
        self.client = LocalClient(engine, loop)
        self.admission = Admission(engine.log) if has_admission else None
        self.num_unfinished = 0

    def send(self, request: Request, listener: Listener) -> None:
        if self.admission is None:
            self.client.send(request, listener)
        else:
            self.client.loop.at(request.arrival_s, lambda: self._ask(request, listener))

    def _ask(self, request: Request, listener: Listener) -> None:
        loop = self.client.loop
        now_s = loop.clock.now_s()
        decision = self.admission.ask(request, now_s)
        if isinstance(decision, Admit):
            if decision.max_tokens < request.sampling.max_tokens:
                request.sampling = replace(request.sampling, max_tokens=decision.max_tokens)
            self.client.send(request, listener)
        elif isinstance(decision, Defer):
            loop.at(decision.until_s, lambda: self._ask(request, listener))
        else:
            listener(Finished(now_s, request.id, FinishReason.ERROR.value, 0, decision.why))


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet, described: what each replica is, how it schedules, and how many there are."""

    profile: Profile
    policy: Callable[[], BatchingPolicy] = ContinuousBatching
    ordering: Callable[[], Ordering] = FirstComeFirstServed
    prefix_caching: bool = True
    has_admission: bool = False
    num_replicas: int = 1
    router: str = "least-loaded"

    def engine(self, keep_events: bool = False) -> Engine:
        """A fresh replica."""
        return Engine(
            self.profile.executor(),
            self.policy(),
            prefix_caching=self.prefix_caching,
            ordering=self.ordering(),
            log=EventLog(keep=keep_events),
        )

    def fleet(self, loop: EventLoop) -> Fleet:
        """All replicas on `loop`. Raises `ConfigError` for an unknown router."""
        if self.router not in ROUTERS:
            raise ConfigError(f"router {self.router!r}", f"use {', '.join(ROUTERS)}")
        return Fleet(
            loop,
            self.engine,
            self.num_replicas,
            ROUTERS[self.router],
            self.profile.load_s,
            self.has_admission,
        )
