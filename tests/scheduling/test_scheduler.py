"""The mechanism: a policy's nonsense changes nothing, victims stay out of the step, no livelock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    DOCUMENT,
    ContentExecutor,
    ask,
    check,
    check_drained,
    check_output,
    content_engine,
    continuous_policies,
    drain,
    small,
)

from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import EventLog
from minserve.execution.simulated import SimulatedExecutor
from minserve.request import FinishReason, Identity, Request, Status
from minserve.scheduling.batching import ContinuousBatching, Decision
from minserve.scheduling.compatibility import same_tenant
from minserve.scheduling.ordering import Ordering, VirtualTokenCounter
from minserve.scheduling.reservation import OnlineFirst


class Says:
    """A policy that decides whatever `decide(snapshot)` returns, once `is_mad`."""

    def __init__(self, decide, is_mad: bool = True):
        self.nonsense = decide
        self.is_mad = is_mad
        self.sane = ContinuousBatching(token_budget=64, max_running=8)

    def decide(self, snapshot):
        return self.nonsense(snapshot) if self.is_mad else self.sane.decide(snapshot)


def state(engine):
    """Everything that a refused plan must leave as it was."""
    scheduler, pool = engine.scheduler, engine.pool
    requests = [*scheduler.waiting, *scheduler.running]
    return (
        [request.id for request in requests],
        [(r.status, list(r.block_table), r.num_computed_tokens, r.num_bypasses) for r in requests],
        (pool.num_free, pool.num_used, pool.num_cached),
        len(engine.log.events),
    )


STRANGER = ask("stranger")
NONSENSE = {
    "nothing at all": lambda s: None,
    "a list": lambda s: [(s.running[0], 1)],
    "nobody": lambda s: Decision(),
    "not pairs": lambda s: Decision([s.running[0]]),
    "triples": lambda s: Decision([(s.running[0], 1, 1)]),
    "no tokens": lambda s: Decision([(s.running[0], 0)]),
    "negative tokens": lambda s: Decision([(s.running[0], 1), (s.waiting[0], -1)]),
    "half a token": lambda s: Decision([(s.running[0], 1), (s.waiting[0], 1.5)]),
    "tokens without a number": lambda s: Decision([(s.running[0], 1), (s.waiting[0], None)]),
    "somebody twice": lambda s: Decision([(s.running[0], 1), (s.running[0], 1)]),
    "somebody unknown": lambda s: Decision([(s.running[0], 1), (STRANGER, 1)]),
    "an id": lambda s: Decision([(s.running[0].id, 1)]),
    "a copy": lambda s: Decision([(Request(s.running[0].id, (1,)), 1)]),
    "a victim unknown": lambda s: Decision([(s.running[0], 1)], victims=[STRANGER]),
    "a victim's id": lambda s: Decision([(s.running[0], 1)], victims=["r0"]),
    "to be woken in the past": lambda s: Decision(wake_at_s=s.now_s - 1),
    "to be woken now": lambda s: Decision(wake_at_s=s.now_s),
    "to be woken never": lambda s: Decision(wake_at_s=float("inf")),
    "to be woken at no time": lambda s: Decision(wake_at_s=float("nan")),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_a_policy_that_decides_nonsense_gets_a_typed_error_and_nothing_changes(nonsense):
    policy = Says(nonsense, is_mad=False)
    engine = content_engine(policy)
    requests = [ask(f"r{n}") for n in range(3)]
    for request in requests[:2]:
        engine.submit(request, 0.0)
    engine.step(5.0)
    engine.submit(requests[2], 5.0)
    before = state(engine)
    policy.is_mad = True
    with pytest.raises(ConfigError):
        engine.begin_step(5.0)
    assert state(engine) == before
    check(engine)
    policy.is_mad = False
    drain(engine, 5.0)
    check_drained(engine)
    for request in requests:
        check_output(request)


def test_a_policy_that_raises_changes_nothing():
    policy = Says(lambda s: 1 / 0)
    engine = content_engine(policy)
    engine.submit(ask("a"), 0.0)
    before = state(engine)
    with pytest.raises(ZeroDivisionError):
        engine.begin_step(0.0)
    assert state(engine) == before


def test_a_policy_cannot_run_a_request_of_a_group_that_it_was_not_shown():
    engine = content_engine(compatible=same_tenant)
    other = ask("b", identity=Identity("b"))
    engine.scheduler.policy = Says(lambda s: Decision([(s.waiting[0], 1), (other, 1)]))
    engine.submit(ask("a", identity=Identity("a")), 0.0)
    engine.submit(other, 0.0)
    with pytest.raises(ConfigError):
        engine.begin_step(0.0)


def test_a_policy_that_only_ever_waits_is_an_error_and_not_a_hang():
    engine = content_engine(Says(lambda s: Decision(wake_at_s=s.now_s + 1.0)))
    engine.submit(ask("a"), 0.0)
    with pytest.raises(ConfigError):
        drain(engine, max_steps=5_000)


def test_asking_a_waiting_policy_too_early_is_no_error_however_often():
    engine = content_engine(Says(lambda s: Decision(wake_at_s=10.0)))
    engine.submit(ask("a"), 0.0)
    for n in range(5_000):
        assert engine.begin_step(n / 1_000) is None


@pytest.mark.parametrize("num_tokens", [8, 9, 1_000_000])
def test_more_tokens_than_there_are_means_all_of_them(num_tokens):
    engine = content_engine(Says(lambda s: Decision([(r, num_tokens) for r in s.waiting])))
    request = ask("a", 8)
    engine.submit(request, 0.0)
    engine.step(0.0)
    assert request.num_computed_tokens == 8 and request.num_output_tokens == 1


# -- preemption


@given(
    prompts=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    policy=continuous_policies,
    num_blocks=st.integers(9, 14),
)
@small(150)
def test_preemption_never_livelocks_and_a_victim_is_never_in_the_step(prompts, policy, num_blocks):
    engine = content_engine(policy, num_blocks, block_size=2)
    requests = [ask(f"r{n}", (*DOCUMENT[:prompt], n), 8) for n, prompt in enumerate(prompts)]
    for request in requests:
        engine.submit(request, 0.0)
    num_steps = 0
    while engine.has_unfinished:
        num_events = len(engine.log.events)
        handle = engine.begin_step(0.0)
        events = engine.log.events[num_events:]
        victims = {event.request_id for event in events if event.kind == "preempted"}
        admitted = {event.request_id for event in events if event.kind == "admitted"}
        assert not victims & {row.request_id for row in handle.plan.rows}
        assert not victims & admitted
        engine.finish_step(0.0)
        check(engine)
        num_steps += 1
        # Each step computes a token of the oldest at least; at worst all goes one by one.
        assert num_steps <= sum(prompts) + 10 * len(prompts) * 8
    for request in requests:
        check_output(request)


def test_the_oldest_is_never_the_victim_of_a_younger_one():
    engine = content_engine(num_blocks=6, block_size=2)
    requests = [ask(f"r{n}", (*DOCUMENT[:3], n), 8, arrival_s=float(n)) for n in range(3)]
    for request in requests:
        engine.submit(request, 3.0)
    drain(engine)
    assert requests[0].num_preemptions == 0 and requests[1].num_preemptions > 0
    finished = [event.request_id for event in engine.log.events if event.kind == "finished"]
    assert finished[0] == "r0"


@pytest.mark.parametrize("num_waiting", [0, 2])
def test_a_request_that_outgrows_the_pool_alone_fails_alone(num_waiting):
    """The pool has less to give than it promised, as when somebody else holds its blocks."""
    engine = content_engine(num_blocks=6, block_size=2)
    requests = [ask("a", 4, 8), *(ask(f"w{n}", 2, 2) for n in range(num_waiting))]
    engine.submit(requests[0], 0.0)
    engine.step(0.0)
    held = engine.pool.allocate(2 * engine.pool.num_free)
    for request in requests[1:]:
        engine.submit(request, 0.0)
    while requests[0].status is not Status.FINISHED:
        engine.step(0.0)
    assert requests[0].finish_reason is FinishReason.ERROR
    assert "pool" in requests[0].error
    while engine.has_unfinished:
        engine.step(0.0)
    for request in requests[1:]:
        assert request.finish_reason is FinishReason.LENGTH
    for request in requests:
        check_output(request)
    engine.pool.release(held)
    check_drained(engine)


# -- cost


class Looked(list):
    """A lane that counts how many of its requests are looked at."""

    num_looked = 0

    def __iter__(self):
        for request in super().__iter__():
            self.num_looked += 1
            yield request


@pytest.mark.parametrize("num_waiting", [200, 2_000])
@pytest.mark.parametrize(("kind", "num_lanes"), [(Ordering, 1), (VirtualTokenCounter, 20)])
@pytest.mark.parametrize("wrapped", [lambda inner: inner, OnlineFirst], ids=["bare", "online"])
def test_a_plan_costs_what_is_shown_and_the_lanes_and_not_what_waits(
    kind, num_lanes, wrapped, num_waiting
):
    num_keys = 0

    class Counting(kind):
        def key(self, request, now_s):
            nonlocal num_keys
            num_keys += 1
            return super().key(request, now_s)

    ordering = wrapped(Counting())
    engine = Engine(SimulatedExecutor(), ordering=ordering, log=EventLog(keep=False))
    for n in range(64 + num_waiting):
        who = Identity(f"t{n % num_lanes}")
        engine.submit(Request(f"r{n}", (1, 2, 3), ask(max_tokens=9).sampling, who), 0.0)
    engine.step(0.0)
    queue = engine.scheduler.waiting
    assert len(engine.scheduler.running) == 64 and len(queue) == num_waiting
    assert len(queue.lanes) == num_lanes
    queue.lanes = {lane: Looked(requests) for lane, requests in queue.lanes.items()}
    num_keys = 0
    engine.begin_step(0.0)
    lookahead = engine.scheduler.lookahead
    assert num_keys <= len(engine.scheduler.running) + lookahead + 2 * num_lanes
    assert sum(lane.num_looked for lane in queue.lanes.values()) <= lookahead + num_lanes


def test_only_the_first_waiting_requests_are_shown_to_the_policy():
    shown = []
    engine = content_engine(Says(lambda s: shown.append(len(s.waiting)), is_mad=True))
    for n in range(100):
        engine.submit(ask(f"r{n}", 2), 0.0)
    with pytest.raises(ConfigError):
        engine.begin_step(0.0)
    assert shown == [64]


# -- copy-on-write through the engine's own pool


def test_a_shared_block_that_is_written_is_copied_first():
    """As `n` > 1 will: somebody else holds the same blocks, with the same contents."""
    engine = content_engine(num_blocks=8, block_size=4)
    request = ask("a", 6, 6)
    engine.submit(request, 0.0)
    engine.step(0.0)
    fork = engine.pool.share(request.block_table)
    kept = [list(engine.executor.blocks[block]) for block in fork]
    handle = engine.begin_step(0.0)
    assert [(c.source, c.target) for c in handle.plan.copies] == [(fork[1], request.block_table[1])]
    engine.finish_step(0.0)
    while engine.has_unfinished:
        engine.step(0.0)
    assert [list(engine.executor.blocks[block]) for block in fork] == kept
    check_output(request)
    engine.pool.release(fork)
    check_drained(engine)


def test_integrity_covers_every_table_of_the_scheduler():
    from minserve.errors import BlockError

    engine = content_engine(executor=ContentExecutor())
    request = ask("a")
    engine.submit(request, 0.0)
    engine.step(0.0)
    request.block_table.pop()
    with pytest.raises(BlockError):
        engine.check_integrity()
