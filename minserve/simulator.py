"""Engines on a virtual clock: any number of replicas of the real scheduler, at calibrated costs.

The scheduler, the policies and the caches are the ones that serve; only a step's duration comes
from a cost model (as in Vidur, Agrawal et al., 2024). A client of `Fleet` sees an `EngineClient`
like any other, so the load generator and its report are those of a real server too.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from minserve.client import Listener, LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import Event, EventLog, Finished, StepEnded, StepStarted
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.loadtest import datasets
from minserve.loadtest.arrivals import waves
from minserve.loadtest.capacity import Evaluation, OnBacklog, OnUtilisation, Scaling, Signals
from minserve.loadtest.datasets import Call, Encode
from minserve.loadtest.generator import Pace, send_in_process
from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.workload import Workload
from minserve.request import FinishReason, Request
from minserve.routing.prefix import PrefixRouter
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


class ByCachedPrefix:
    """The cluster's router, `minserve.routing.prefix`, on the virtual clock: one for each fleet.

    A replica's load is what its unfinished requests may come to compute, as in the cluster.
    """

    def __init__(self, profile: Profile) -> None:
        self.prefixes = PrefixRouter(profile.num_blocks, profile.block_size)

    def choose(self, request: Request, replicas: list[_Replica]) -> int:
        """The index of the replica that computes least for `request`."""
        cache = replicas[0].client.engine.prefix_cache
        keys = []
        if cache:
            root = cache.root(request.cache_salt, request.adapter)
            keys = cache.hashes(request.prompt_token_ids, root)
        loads = {replica: replica.num_tokens for replica in replicas}
        chosen = self.prefixes.choose(keys, request.num_prompt_tokens, loads)
        self.prefixes.sent(keys, chosen)
        return replicas.index(chosen)


ROUTERS: dict[str, Callable[[Profile], Router | ByCachedPrefix]] = {
    "least-loaded": lambda profile: least_loaded,
    "prefix": lambda profile: by_prefix,
    "cached-prefix": ByCachedPrefix,
}


class Fleet:
    """`EngineClient` over replicas that can come and go; see `scale_to`.

    `make_engine()` makes a replica. All run side by side on `loop`.
    """

    def __init__(
        self,
        loop: EventLoop,
        make_engine: Callable[[], Engine],
        num_replicas: int = 1,
        route: Router | ByCachedPrefix = least_loaded,
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
    def num_unfinished(self) -> int:
        """Requests that have been sent and have not ended."""
        return len(self._replica_of)

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
            if isinstance(self.route, ByCachedPrefix):
                self.route.prefixes.forget(leaving)
            if leaving.num_unfinished:
                self.leaving.append(leaving)

    def _join(self) -> None:
        self._count()
        self.num_loading -= 1
        self.replicas.append(self._make())

    def _choose(self, request: Request, listener: Listener) -> None:
        if isinstance(self.route, ByCachedPrefix):
            index = self.route.choose(request, self.replicas)
        else:
            index = self.route(request, [replica.num_unfinished for replica in self.replicas])
        self._send_to(self.replicas[index], request, listener)

    def _send_to(self, replica: _Replica, request: Request, listener: Listener) -> None:
        num_tokens = request.max_total_tokens
        replica.num_unfinished += 1
        replica.num_tokens += num_tokens
        self._replica_of[request.id] = replica

        def listen(event: Event) -> None:
            if type(event) is Finished:
                replica.num_unfinished -= 1
                replica.num_tokens -= num_tokens
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
        self.num_unfinished = self.num_tokens = 0
        self._busy_s, self._stepping_since_s = 0.0, None
        self._is_watched = False

    def take_busy_s(self, now_s: float) -> float:
        """Seconds spent computing since this was last asked; 0 at the first time."""
        if not self._is_watched:  # NOTE: a listener costs every event; few runs need this one
            self._is_watched = True
            self.client.engine.log.listen(self._note_step)
        if self._stepping_since_s is not None:
            self._busy_s += now_s - self._stepping_since_s
            self._stepping_since_s = now_s
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s

    def _note_step(self, event: Event) -> None:
        kind = type(event)
        if kind is StepStarted:
            self._stepping_since_s = event.time_s
        elif kind is StepEnded:
            self._busy_s += event.time_s - (self._stepping_since_s or event.time_s)
            self._stepping_since_s = None

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
            ROUTERS[self.router](self.profile),
            self.profile.load_s,
            self.has_admission,
        )


# -- experiments


def run(
    setup: Setup,
    calls: Iterable[Call],
    objectives: Objectives | None = None,
    *,
    exact: bool = True,
    pace: Pace | None = None,
    encode: Encode | None = None,
) -> Tally:
    """Serve `calls` on a fresh fleet, to the end. `exact` as for `Tally`."""
    loop, tally = EventLoop(VirtualClock()), Tally(objectives or Objectives(), exact)
    send_in_process(calls, setup.fleet(loop), loop, tally.add, pace or Pace(), encode)
    return tally


def autoscaled(
    name: str,
    setup: Setup,
    calls: Iterable[Call],
    rule: Scaling,
    objectives: Objectives,
    *,
    every_s: float = 15.0,
    most: int = 16,
) -> Evaluation:
    """Serve `calls` while `rule` decides every `every_s` seconds how many replicas there are.

    A new replica loads for the profile's `load_s` first, and is paid for from then on.
    """
    loop, tally = EventLoop(VirtualClock()), Tally(objectives)
    fleet = setup.fleet(loop)
    history: list[tuple[float, int, int]] = []
    is_sending = True

    def look() -> None:
        signals = _signals(fleet, every_s)
        history.append((signals.now_s, signals.num_replicas, signals.queued_tokens))
        fleet.scale_to(min(most, rule(signals)))
        if is_sending or fleet.num_unfinished:
            loop.at(signals.now_s + every_s, look)

    def sent() -> Iterator[Call]:
        nonlocal is_sending
        yield from calls
        is_sending = False

    loop.at(every_s, look)
    send_in_process(sent(), fleet, loop, tally.add)
    m = tally.measures()
    return Evaluation(
        name,
        m.attainment or 0.0,
        m["ttft.p99"] or 0.0,
        fleet.replica_s / 3600,
        max(count for _, count, _ in history),
        history,
    )


def _signals(fleet: Fleet, every_s: float) -> Signals:
    now_s = fleet.loop.clock.now_s()
    schedulers = [engine.scheduler for engine in fleet.engines]
    waiting = [request for scheduler in schedulers for request in scheduler.waiting]
    running = [request for scheduler in schedulers for request in scheduler.running]
    left = sum(r.num_tokens - r.num_computed_tokens for r in (*waiting, *running) if r.is_prefill)
    pools = [engine.pool for engine in fleet.engines]
    busy_s = sum(replica.take_busy_s(now_s) for replica in fleet.replicas)
    return Signals(
        now_s,
        len(fleet.replicas),
        fleet.num_loading,
        left,
        max((now_s - request.arrival_s for request in waiting), default=0.0),
        len(running),
        sum(pool.num_used for pool in pools) / sum(pool.num_blocks for pool in pools),
        busy_s / (every_s * len(fleet.replicas)),
    )


def compare_scaling(
    setup: Setup,
    traffic: Workload,
    objectives: Objectives,
    rate_per_s: float,
    *,
    swing: float = 3.0,
    wave_s: float = 1200.0,
    most: int = 16,
    max_running: int = 128,
) -> list[Evaluation]:
    """Scaling on backlog against scaling on utilisation, over two waves of load (O2).

    The rate swings between `rate_per_s / swing` and `rate_per_s`, up and down in `wave_s` seconds.
    A fleet of fixed size stands beside them, as large as the largest that scaling came to.
    """
    alone = run(replace(setup, num_replicas=1), replace(traffic, rate_per_s=math.inf).calls())
    tokens_per_s = alone.measures().total_tokens_per_s or 1.0

    def calls() -> Iterator[Call]:
        mean = rate_per_s * (1 + 1 / swing) / 2
        count = int(2 * wave_s * mean)
        samples = (call.sample for call in replace(traffic, num_prompts=count).calls())
        rng = random.Random(f"waves/{traffic.seed}")
        return datasets.calls(waves(rate_per_s / swing, rate_per_s, wave_s, rng), samples, count)

    def evaluate(name: str, rule: Scaling, start: int) -> Evaluation:
        fleet = replace(setup, num_replicas=start)
        return autoscaled(name, fleet, calls(), rule, objectives, most=most)

    drain_s = (objectives.ttft_s or 2.0) / 2
    found = [
        evaluate("backlog", OnBacklog(tokens_per_s, drain_s, max_running=max_running), 1),
        evaluate("utilisation", OnUtilisation(), 1),
    ]
    largest = max(each.most_replicas for each in found)
    return [*found, evaluate(f"{largest} fixed", lambda signals: largest, largest)]
