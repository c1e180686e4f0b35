"""What a server keeps does not grow with the requests that it has served, nor with who asked."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType

import pytest

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import EventLog
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.northstar.caching import policy_table
from minserve.output import Detokenizer
from minserve.request import Identity, Request, SamplingParams, WorkloadClass
from minserve.reuse.key import ModelTuple, Wording
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.scheduling.admission import Admission
from minserve.scheduling.ordering import VirtualTokenCounter
from minserve.scheduling.quota import PlainQuota
from minserve.scheduling.reservation import OnlineFirst, ReservedBatching
from minserve.service import Ended, Service
from minserve.serving.watch import Watch

EOS = 0
QUOTA = PlainQuota(max_concurrent=50, tokens_per_s=5_000.0)
KINDS = tuple(WorkloadClass)


class World:
    """All of a server behind its HTTP side, on the virtual clock."""

    def __init__(self) -> None:
        self.loop = EventLoop(VirtualClock())
        executor = SimulatedExecutor(
            200,
            4,
            cost=CostModel(0.001, 0, 0, 0),
            eos_token_ids=frozenset({EOS}),
            token=lambda row: ord("a") if row.output_position < 2 else EOS,
        )
        self.engine = Engine(
            executor,
            ReservedBatching(64, 16, block_size=4),
            ordering=OnlineFirst(VirtualTokenCounter()),
            log=EventLog(keep=False),
        )
        admission = Admission(self.engine.log)
        service = Service(LocalClient(self.engine, self.loop), self.words, admission)
        cache = ExactCache(MemoryStore(), policy_table())
        self.service = CachedService(service, cache, ModelTuple("m"), now_s=self.loop.clock.now_s)
        self.watch = Watch(self.service, "m")
        self.num_asked = self.num_ended = 0

    def words(self, stop):
        return Detokenizer(lambda ids: "".join(chr(i) for i in ids if i != EOS), stop)

    def serve(self, count: int, rng: random.Random) -> None:
        """`count` requests of as many tenants, ten a second: some cancelled, some too large, some
        equal."""
        for _ in range(count):
            self.num_asked += 1
            self._ask(self.num_asked, rng)
            self.loop.run()

    def _ask(self, number: int, rng: random.Random) -> None:
        now_s = number / 10
        sampling = SamplingParams(
            max_tokens=rng.choice((2, 8, 5_000)), n=rng.choice((1, 1, 3)), stop=("zz",)
        )
        request = Request(
            f"r{number}",
            tuple(rng.randrange(1, 250) for _ in range(rng.randrange(1, 30))),
            sampling,
            Identity(f"tenant{number}", "someone"),
            rng.choice(KINDS),
            arrival_s=now_s,
            deadline_s=rng.choice((None, now_s + 1.0)),
            cache_salt=f"salt{number}",
        )

        def submit() -> None:
            self.watch.traces.expect(request, now_s)
            self.service.submit(request, hear, QUOTA, Wording())

        def hear(output) -> None:
            self.num_ended += isinstance(output, Ended)
            if rng.random() < 0.2:
                self.service.cancel(request.id)

        self.loop.at(now_s, submit)
        self.loop.at(now_s + 0.05, lambda: self.watch.traces.settle(request))


def num_kept(root: object) -> int:
    """Objects of Python that `root` leads to, short of modules, classes and code."""
    seen, todo = {id(root)}, [root]
    while todo:
        for other in _held(todo.pop()):
            if id(other) not in seen and not isinstance(other, type | ModuleType | CodeType):
                seen.add(id(other))
                todo.append(other)
    return len(seen)


def _held(thing: object) -> Iterable[object]:
    if isinstance(thing, FunctionType):  # not its globals: they lead everywhere
        return (*(thing.__closure__ or ()), *(thing.__defaults__ or ()))
    return gc.get_referents(thing)


def check_flat(first: int, then: int) -> None:
    world, rng = World(), random.Random(7)
    world.serve(first, rng)
    before = num_kept(world)
    world.serve(then, rng)
    assert world.num_ended >= first + then
    world.engine.check_integrity()
    after = num_kept(world)
    assert after <= 1.05 * before, f"{before:,} objects before, {after:,} after {then:,} requests"


def test_what_is_kept_does_not_grow_with_requests_and_tenants():
    check_flat(4_000, 4_000)


@pytest.mark.slow
def test_what_is_kept_does_not_grow_with_a_hundred_thousand_requests():
    check_flat(10_000, 90_000)
