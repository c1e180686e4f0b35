"""Single flight before the engine, on the virtual clock: nobody waits for ever."""

from __future__ import annotations

import pytest

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Submitted
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.northstar.caching import policy_table
from minserve.output import Detokenizer
from minserve.request import FinishReason, Identity, Request, SamplingParams
from minserve.reuse.key import ModelTuple
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.scheduling.batching import ContinuousBatching
from minserve.scheduling.overload import Rung
from minserve.service import Ended, Piece, Service


class World:
    """A cached service over a simulated engine; one token a second, `abcde`, then a stop."""

    def __init__(self, store=None):
        self.loop = EventLoop(VirtualClock())
        executor = SimulatedExecutor(
            64, 4, cost=CostModel(1.0, 0, 0, 0), token=lambda row: ord("a") + row.output_position
        )
        self.engine = Engine(executor, ContinuousBatching())
        service = Service(LocalClient(self.engine, self.loop), self.detokenizer)
        self.cache = ExactCache(store or MemoryStore(), policy_table())
        self.service = CachedService(
            service, self.cache, ModelTuple("m"), now_s=self.loop.clock.now_s
        )
        self.heard: dict[str, list] = {}
        self.num_submitted = 0
        self.engine.log.listen(self._count)

    def _count(self, event):
        self.num_submitted += isinstance(event, Submitted)

    def detokenizer(self, stop):
        return Detokenizer(lambda ids: "".join(map(chr, ids)), stop)

    def ask(self, id, at_s=0.0, tenant="a", **sampling):
        params = SamplingParams(**{"max_tokens": 9, "stop": ("f",), **sampling})
        request = Request(id, (1, 2, 3), params, Identity(tenant, "s"), arrival_s=at_s)
        heard = self.heard.setdefault(id, [])
        self.loop.at(at_s, lambda: self.service.submit(request, heard.append))

    def cancel(self, id, at_s):
        self.loop.at(at_s, lambda: self.service.cancel(id))

    def end(self, id):
        ends = [output for output in self.heard[id] if isinstance(output, Ended)]
        assert len(ends) == 1, f"{id} must end once: {self.heard[id]}"
        text = "".join(o.text for o in self.heard[id] if isinstance(o, Piece))
        return ends[0].reason, text


def test_a_hundred_who_ask_at_once_make_one_request():
    world = World()
    for number in range(100):
        world.ask(f"r{number}", at_s=number * 0.01)
    world.loop.run()
    assert {world.end(f"r{n}") for n in range(100)} == {(FinishReason.STOP, "abcde")}
    assert world.num_submitted == 1


@pytest.mark.parametrize("at_s", [0.5, 1.5, 3.0, 5.5])
def test_when_the_leader_is_cancelled_the_next_takes_over(at_s):
    world = World()
    for number in range(3):
        world.ask(f"r{number}")
    world.cancel("r0", at_s)
    world.loop.run()
    assert world.end("r0")[0] is FinishReason.CANCELLED
    assert world.end("r1") == world.end("r2") == (FinishReason.STOP, "abcde")
    assert world.num_submitted == 2


def test_a_follower_who_is_cancelled_ends_at_once_and_alone():
    world = World()
    for number in range(3):
        world.ask(f"r{number}")
    world.cancel("r1", 2.0)
    world.cancel("r1", 2.5)
    world.loop.run()
    assert world.end("r1") == (FinishReason.CANCELLED, "")
    assert world.end("r0") == world.end("r2") == (FinishReason.STOP, "abcde")


def test_two_tenants_fly_apart():
    world = World()
    world.ask("r0", tenant="a")
    world.ask("r1", tenant="b")
    world.loop.run()
    assert world.num_submitted == 2


def test_a_refused_request_fails_alone_and_is_not_kept():
    world = World()
    world.ask("r0", max_tokens=10_000)
    world.ask("r1", max_tokens=10_000)
    world.loop.run()
    assert world.end("r0")[0] is world.end("r1")[0] is FinishReason.ERROR
    assert world.cache.store.size() == (0, 0)
    world.ask("r2", at_s=20.0)
    world.loop.run()
    assert world.end("r2") == (FinishReason.STOP, "abcde")


def test_whoever_cannot_even_be_submitted_leaves_nobody_waiting():
    world = World()
    submit = world.service.service.submit

    def fails(request, *more):
        if request.id == "r0":
            raise ZeroDivisionError("at once")
        submit(request, *more)

    world.service.service.submit = fails
    for number in range(3):
        world.ask(f"r{number}")
    world.loop.run()
    assert world.end("r0")[0] is FinishReason.ERROR
    assert world.end("r1") == world.end("r2") == (FinishReason.STOP, "abcde")
    assert not world.service._waiting and not len(world.service._flight)


def test_what_was_answered_before_is_answered_again_until_it_expires():
    world = World()
    world.ask("r0")
    world.ask("r1", at_s=100.0)
    world.ask("r2", at_s=400.0)
    world.loop.run()
    assert world.end("r1") == world.end("r2") == (FinishReason.STOP, "abcde")
    assert world.num_submitted == 2


def test_a_store_that_is_gone_costs_hits_and_nothing_else():
    class Gone:
        def __getattr__(self, name):
            raise ConnectionError("gone")

    world = World(Gone())
    world.ask("r0")
    world.ask("r1", at_s=50.0)
    world.loop.run()
    assert world.end("r0") == world.end("r1") == (FinishReason.STOP, "abcde")
    assert world.num_submitted == 2


@pytest.mark.parametrize(("rung", "num_computed"), [(0, 2), (1, 1)])
def test_on_the_ladder_a_fresh_answer_is_not_computed_anew_before_its_time(rung, num_computed):
    """Early refresh is an optional extra: rung 1 gives it up, and serves what is fresh."""

    class Standing:
        def __init__(self, rung):
            self.rung = Rung(rung)

    world = World()
    world.cache._beta = 1e9  # due at once, though fresh
    world.ask("first")
    world.loop.run()
    world.service.admission = Standing(rung)
    world.ask("again", at_s=20.0)
    world.loop.run()
    assert world.end("first") == world.end("again") == (FinishReason.STOP, "abcde")
    assert world.num_submitted == num_computed
