"""Replicas that come and go, all on one event loop, behind one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from minserve.client import Listener, LocalClient
from minserve.clock import EventLoop
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import Event, EventLog, Finished, StepEnded, StepStarted
from minserve.request import FinishReason, Request
from minserve.scheduling.admission import Admission, Admit, Defer
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering
from minserve.simulator.profile import Profile
from minserve.simulator.routers import ROUTERS, ByCachedPrefix, Router, least_loaded


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
        self._make = lambda: Replica(make_engine(), loop, has_admission)
        self.replicas = [self._make() for _ in range(num_replicas)]
        self.leaving: list[Replica] = []
        self.num_loading = 0
        self._replica_of: dict[str, Replica] = {}
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

    def _send_to(self, replica: Replica, request: Request, listener: Listener) -> None:
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


class Replica:
    """An engine and its client; behind `admission`, where that is given."""

    def __init__(self, engine: Engine, loop: EventLoop, has_admission: bool = False) -> None:
        self.client = LocalClient(engine, loop)
        self.admission = Admission(engine.log) if has_admission else None
        self.num_unfinished = self.num_tokens = 0
        self._busy_s = 0.0
        self._stepping_since_s: float | None = None
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
            ask = partial(self._ask, self.admission, request, listener)
            self.client.loop.at(request.arrival_s, ask)

    def _ask(self, admission: Admission, request: Request, listener: Listener) -> None:
        loop = self.client.loop
        now_s = loop.clock.now_s()
        decision = admission.ask(request, now_s)
        if isinstance(decision, Admit):
            if decision.max_tokens < request.sampling.max_tokens:
                request.sampling = replace(request.sampling, max_tokens=decision.max_tokens)
            self.client.send(request, listener)
        elif isinstance(decision, Defer):
            loop.at(decision.until_s, partial(self._ask, admission, request, listener))
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
