"""Cascade and hedging on the virtual clock: one end each, losers cancelled, load bounded."""

from __future__ import annotations

import random

import pytest

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import Finished, Submitted, TokensProduced
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.metrics import percentile
from minserve.request import Request, SamplingParams
from minserve.routing.cascade import Cascade, Route
from minserve.routing.hedging import Hedging
from minserve.scheduling.batching import ContinuousBatching


def engine(loop, step_s=0.1, stall=lambda: 0.0, text="right"):
    """A simulated engine that says `text` and ends; a step is now and then stalled."""

    class Stalling(SimulatedExecutor):
        def launch(self, plan, now_s):
            return super().launch(plan, now_s + stall())

    executor = Stalling(
        256,
        16,
        cost=CostModel(step_s, 0, 0, 0),
        eos_token_ids=frozenset({0}),
        token=lambda row: ord((text + "\0")[row.output_position]),
    )
    return LocalClient(Engine(executor, ContinuousBatching()), loop)


def decode(token_ids):
    return "".join(chr(t) for t in token_ids if t)


def request(id, at_s=0.0, max_tokens=20):
    return Request(id, (1, 2, 3), SamplingParams(max_tokens=max_tokens), arrival_s=at_s)


# -- cascade


class Cascaded:
    def __init__(self, *texts, validate=lambda task, text: text == "right", max_tokens=20):
        self.loop = EventLoop(VirtualClock())
        self.clients = [engine(self.loop, 0.1 * 3**n, text=t) for n, t in enumerate(texts)]

        def request_of(task, id):
            return request(id, self.loop.clock.now_s(), max_tokens)

        routes = [
            Route(f"model{n}", client, request_of, decode) for n, client in enumerate(self.clients)
        ]
        self.cascade = Cascade(routes, validate)
        self.ended = []

    def run(self, cancel_at_s=None):
        self.cascade.ask("t", "task", self.ended.append)
        if cancel_at_s is not None:
            self.loop.at(cancel_at_s, lambda: self.cascade.cancel("t"))
        self.loop.run()
        (routed,) = self.ended
        return routed


def test_a_whole_answer_ends_the_attempt_as_if_it_had_ended_by_itself():
    loop = EventLoop(VirtualClock())
    client, ended = engine(loop, text="One. Two. Three."), []

    def ask(task, id):
        return Request(id, (1,), SamplingParams(max_tokens=30))

    cascade = Cascade(
        [Route("only", client, ask, decode)],
        lambda task, text: text == "One.",
        make_stop=lambda task: lambda text: text.endswith("."),
    )
    cascade.ask("t", "task", ended.append)
    loop.run()
    (routed,) = ended
    assert routed.answer == "One." and routed.attempts[0].reason == "stop"
    assert routed.attempts[0].num_tokens == 4 and not routed.is_cancelled
    client.engine.check_integrity()
    assert client.engine.pool.num_used == 0


def test_the_cheapest_route_that_passes_answers():
    routed = Cascaded("right", "right").run()
    assert (routed.answer, routed.route, len(routed.attempts)) == ("right", "model0", 1)


def test_an_answer_that_fails_its_check_escalates():
    routed = Cascaded("wrong", "right").run()
    assert (routed.answer, routed.route) == ("right", "model1")
    assert [attempt.is_valid for attempt in routed.attempts] == [False, True]


def test_no_answer_is_given_when_all_fail():
    routed = Cascaded("wrong", "bad").run()
    assert routed.answer is None and len(routed.attempts) == 2


def test_a_check_that_raises_or_is_unsure_has_failed():
    def broken(task, text):
        raise RuntimeError("no connection")

    assert Cascaded("right", validate=broken).run().answer is None
    assert Cascaded("right", validate=lambda task, text: None).run().answer is None


def test_a_truncated_answer_is_never_valid():
    routed = Cascaded("right", "right", validate=lambda task, text: True, max_tokens=3).run()
    assert routed.answer is None
    assert {attempt.reason for attempt in routed.attempts} == {"length"}


@pytest.mark.parametrize("at_s", [0.05, 0.25, 0.9, 1.4])
def test_a_cancelled_task_ends_once_and_asks_nobody_else(at_s):
    cascaded = Cascaded("wrong", "right")
    routed = cascaded.run(at_s)
    assert routed.is_cancelled and routed.answer is None
    assert not any(client.engine.has_unfinished for client in cascaded.clients)
    cascaded.cascade.cancel("t")


def test_a_cascade_needs_a_route_and_a_fresh_id():
    with pytest.raises(ConfigError):
        Cascade([], lambda task, text: True)
    cascaded = Cascaded("right")
    cascaded.cascade.ask("t", "task", lambda routed: None)
    with pytest.raises(ConfigError, match="in use"):
        cascaded.cascade.ask("t", "task", lambda routed: None)


# -- hedging


class Hedged:
    """Two replicas; the first stalls now and then, by chance."""

    def __init__(self, chance=0.08, stall_s=3.0, **options):
        self.loop = EventLoop(VirtualClock())
        rng = random.Random(5)
        stall = lambda: stall_s if rng.random() < chance else rng.uniform(0, 0.02)  # noqa: E731
        self.first, self.second = engine(self.loop, 0.05, stall), engine(self.loop, 0.05)
        self.hedging = Hedging(self.first, self.second, self.loop, **options)
        self.events = {}
        self.seen = [0, 0]
        for number, client in enumerate((self.first, self.second)):
            client.engine.log.listen(lambda event, n=number: self._count(n, event))

    def _count(self, number, event):
        self.seen[number] += isinstance(event, Submitted)

    def run(self, count=300, gap_s=1.0):
        self.arrivals = {f"r{n}": n * gap_s for n in range(count)}
        for id, at_s in self.arrivals.items():
            self.loop.at(at_s, lambda id=id, at_s=at_s: self.send(id, at_s))
        self.loop.run()
        return self

    def send(self, id, at_s):
        self.hedging.send(request(id, at_s), self.events.setdefault(id, []).append)

    def ttft_s(self):
        return [
            next(e.time_s for e in events if isinstance(e, TokensProduced)) - self.arrivals[id]
            for id, events in self.events.items()
        ]


def test_hedging_cuts_the_tail_for_a_few_percent_of_load():
    without = Hedged(0.02, is_overloaded=lambda: True).run(1000, 10.0)
    hedged = Hedged(0.02).run(1000, 10.0)
    tail, cut = percentile(without.ttft_s(), 0.99), percentile(hedged.ttft_s(), 0.99)
    assert cut < 0.6 * tail
    assert 0 < hedged.hedging.num_won <= hedged.hedging.num_hedges
    assert sum(hedged.seen) - 1000 == hedged.hedging.num_hedges <= 0.05 * 1000


def test_copies_never_exceed_their_share():
    hedged = Hedged(chance=0.5, share=0.05).run()
    assert 0 < hedged.hedging.num_hedges <= 0.05 * 300


@pytest.mark.parametrize(
    "options", [{"is_overloaded": lambda: True}, {"is_idempotent": lambda request: False}]
)
def test_there_is_no_copy_under_overload_nor_of_what_acts(options):
    hedged = Hedged(chance=0.5, share=1.0, **options).run(100)
    assert hedged.hedging.num_hedges == hedged.seen[1] == 0


def test_each_request_is_heard_once_under_its_own_name_and_in_whole():
    hedged = Hedged(chance=0.3, share=1.0).run()
    assert hedged.hedging.num_won > 5
    for id, events in hedged.events.items():
        assert {event.request_id for event in events} == {id}
        assert sum(isinstance(event, Finished) for event in events) == 1
        assert isinstance(events[-1], Finished) and events[-1].reason == "stop"
        tokens = [t for e in events if isinstance(e, TokensProduced) for t in e.token_ids]
        assert decode(tokens) == "right"
        assert sum(isinstance(event, Submitted) for event in events) == 1


def test_losers_are_cancelled_and_nothing_is_left_running():
    hedged = Hedged(chance=0.3, share=1.0).run()
    for client in (hedged.first, hedged.second):
        assert not client.engine.has_unfinished
        client.engine.check_integrity()
    assert hedged.hedging._races == {}


def test_cancelling_ends_both_copies_and_is_heard_once():
    hedged = Hedged(chance=0.0).run(60)
    hedged.hedging._share = 1.0
    now_s = hedged.loop.clock.now_s()
    hedged.first.engine.executor.cost = CostModel(50.0, 0, 0, 0)
    hedged.arrivals["late"] = now_s
    hedged.send("late", now_s)
    hedged.loop.at(now_s + 0.12, lambda: hedged.hedging.cancel("late"))
    hedged.loop.at(now_s + 0.01, lambda: None)
    hedged.loop.run()
    ends = [e for e in hedged.events["late"] if isinstance(e, Finished)]
    assert len(ends) == 1
    assert not hedged.first.engine.has_unfinished and not hedged.second.engine.has_unfinished


def test_the_benchmark_shows_a_shorter_tail_for_at_most_its_share_of_load():
    from minserve.cli import bench_routing

    runs = bench_routing._both(bench_routing._simulated, VirtualClock, 600, 0.05, 0)
    plain, hedged = runs["not hedged"], runs["hedged"]
    assert plain["copies"] == 0 < hedged["copies"] <= 0.05 * 600
    assert hedged["p99_s"] < 0.8 * plain["p99_s"]
