"""Batching policies as pure functions, and what each promises when the engine carries it out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, content_engine, continuous_policies, drain, small

from minserve.errors import ConfigError
from minserve.request import Status
from minserve.scheduling.batching import (
    ContinuousBatching,
    Decision,
    DynamicBatching,
    Snapshot,
    StaticBatching,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StaticBatching(0),
        lambda: DynamicBatching(0),
        lambda: DynamicBatching(4, max_wait_s=-0.1),
        lambda: ContinuousBatching(token_budget=0),
        lambda: ContinuousBatching(max_running=0),
        lambda: ContinuousBatching(chunk_tokens=0),
        lambda: ContinuousBatching(token_budget=8, max_running=8),
    ],
)
def test_a_policy_that_could_not_work_is_refused(make):
    with pytest.raises(ConfigError):
        make()


# -- decisions


def fake(name: str, to_compute: int, new_blocks: int, is_running: bool, **more):
    fields = {"arrival_s": 0.0, "num_bypasses": 0, "num_forks_to_come": 0} | more
    return SimpleNamespace(
        id=name,
        to_compute=to_compute,
        new_blocks=new_blocks,
        is_prefill=to_compute > 1,
        status=Status.RUNNING if is_running else Status.WAITING,
        **fields,
    )


def snapshot(running=(), waiting=(), num_blocks: int = 100, now_s: float = 0.0) -> Snapshot:
    return Snapshot(
        now_s,
        tuple(running),
        tuple(waiting),
        num_blocks,
        lambda request: request.to_compute,
        lambda request: request.new_blocks,
    )


@st.composite
def snapshots(draw, max_running: int):
    sizes = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(0, 5))
    running = [
        fake(f"run{n}", to_compute, min(1, blocks) if to_compute == 1 else 0, True)
        for n, (to_compute, blocks, _) in enumerate(draw(st.lists(sizes, max_size=max_running)))
    ]
    waiting = [
        fake(f"wait{n}", to_compute, blocks, False, num_bypasses=passed)
        for n, (to_compute, blocks, passed) in enumerate(draw(st.lists(sizes, max_size=8)))
    ]
    return snapshot(running, waiting, draw(st.integers(0, 20)))


@given(data=st.data(), policy=continuous_policies)
@small(300)
def test_continuous_leaves_no_decode_out_stays_in_budget_and_gives_prefill_its_share(data, policy):
    shown = data.draw(snapshots(policy.max_running))
    decision = policy.decide(shown)
    tokens = {request.id: num_tokens for request, num_tokens in decision.run}
    assert len(tokens) == len(decision.run), "nobody is listed twice"
    assert sum(tokens.values()) <= policy.token_budget
    decodes = [request for request in shown.running if not request.is_prefill]
    assert [tokens[request.id] for request in decodes] == [1] * len(decodes)
    prefills = [request for request in shown.running if request.is_prefill]
    if prefills:
        assert tokens[prefills[0].id] >= 1, "the oldest prefill goes on in every step"
    for request, num_tokens in decision.run:
        assert 1 <= num_tokens <= min(request.to_compute, max(1, policy.chunk_tokens))
    admitted = [r for r, _ in decision.run if r.status is Status.WAITING]
    assert len(shown.running) + len(admitted) <= policy.max_running
    needed = sum(r.new_blocks for r in (*decodes, *admitted))
    if admitted:
        assert needed <= shown.num_available_blocks
    places = [place for place, request in enumerate(shown.waiting) if request in admitted]
    for place, request in enumerate(shown.waiting):
        num_passing = sum(other > place for other in places)
        if request not in admitted and num_passing:
            assert request.num_bypasses + num_passing <= policy.max_bypasses


@given(data=st.data(), batch_size=st.integers(1, 9))
@small(150)
def test_static_admits_nobody_until_the_batch_is_done(data, batch_size):
    shown = data.draw(snapshots(6))
    decision = StaticBatching(batch_size).decide(shown)
    ran = [request for request, _ in decision.run]
    if shown.running:
        assert ran == list(shown.running)
    else:
        assert len(ran) <= batch_size and ran == list(shown.waiting[: len(ran)])
        assert sum(request.new_blocks for request in ran) <= shown.num_available_blocks
    assert all(num_tokens == request.to_compute for request, num_tokens in decision.run)


@pytest.mark.parametrize("num_waiting", range(1, 5))
@pytest.mark.parametrize("now_s", [1.0, 1.4, 1.5, 2.0])
def test_dynamic_waits_until_the_batch_is_full_or_its_oldest_is_due(num_waiting, now_s):
    waiting = [fake(f"w{n}", 3, 1, False, arrival_s=1.0 + n / 10) for n in range(num_waiting)]
    decision = DynamicBatching(3, max_wait_s=0.5).decide(snapshot((), waiting, now_s=now_s))
    if num_waiting >= 3 or now_s >= 1.5:
        assert [r.id for r, _ in decision.run] == [r.id for r in waiting[:3]]
    else:
        assert decision == Decision(wake_at_s=1.5)


def test_dynamic_does_not_wait_while_a_batch_runs_or_nobody_is_there():
    policy = DynamicBatching(3, max_wait_s=0.5)
    running = [fake("a", 1, 0, True)]
    decision = policy.decide(snapshot(running, [fake("b", 3, 1, False)]))
    assert [request.id for request, _ in decision.run] == ["a"] and decision.wake_at_s is None
    nobody = policy.decide(snapshot())
    assert not nobody.run and nobody.wake_at_s is None


# -- carried out


@pytest.mark.parametrize("batch_size", [1, 3, 100, 200])
def test_a_static_batch_is_as_large_as_its_size_even_beyond_the_lookahead(batch_size):
    engine = content_engine(StaticBatching(batch_size), num_blocks=1_000)
    for n in range(250):
        engine.submit(ask(f"r{n}", 2, 2), 0.0)
    engine.step(0.0)
    assert len(engine.executor.plans[0].rows) == batch_size


def test_a_dynamic_batch_that_is_full_starts_at_once_even_beyond_the_lookahead():
    engine = content_engine(DynamicBatching(100, max_wait_s=5.0), num_blocks=1_000)
    for n in range(99):
        engine.submit(ask(f"r{n}", 2, 2), 0.0)
    assert engine.step(0.0) is False and engine.wake_at_s == 5.0
    engine.submit(ask("last", 2, 2), 0.0)
    assert engine.step(0.0) is True


@pytest.mark.parametrize("lengths", [(1, 1, 1), (1, 5, 2), (6, 1, 1)])
def test_a_static_batch_is_not_joined_while_its_longest_answer_runs(lengths):
    engine = content_engine(StaticBatching(3), num_blocks=100)
    for n, length in enumerate(lengths):
        engine.submit(ask(f"r{n}", 3, length), 0.0)
    engine.step(0.0)
    engine.submit(ask("late", 3, 2), 0.0)
    drain(engine)
    steps = [{row.request_id for row in plan.rows} for plan in engine.executor.plans]
    assert all(step == {"late"} for step in steps if "late" in step)
    assert steps.index({"late"}) == max(lengths)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), min_size=1, max_size=8),
    policy=continuous_policies,
)
@small(80)
def test_under_continuous_every_running_decode_has_a_row_in_every_step(lengths, policy):
    engine = content_engine(policy, num_blocks=200, block_size=2)
    for n, (prompt, max_tokens) in enumerate(lengths):
        engine.submit(ask(f"r{n}", prompt, max_tokens), 0.0)
    while engine.has_unfinished:
        running = list(engine.scheduler.running)
        decodes = {r.id for r in running if not r.is_prefill}
        prefills = [r for r in running if r.is_prefill]
        computed = prefills[0].num_computed_tokens if prefills else 0
        handle = engine.begin_step(0.0)
        assert decodes <= {row.request_id for row in handle.plan.rows}
        assert handle.plan.num_tokens <= policy.token_budget
        engine.finish_step(0.0)
        if prefills:
            assert prefills[0].num_computed_tokens > computed


@pytest.mark.parametrize("max_bypasses", [0, 1, 3, 10])
def test_small_requests_pass_a_large_one_only_so_often(max_bypasses):
    """Small ones keep coming and would for ever take what the large one waits for."""
    policy = ContinuousBatching(token_budget=64, max_running=8, max_bypasses=max_bypasses)
    engine = content_engine(policy, num_blocks=8, block_size=2)
    engine.submit(ask("first", 2, 6), 0.0)
    engine.step(0.0)
    large = ask("large", 14, 2, arrival_s=1.0)
    engine.submit(large, 1.0)
    passed = []
    engine.log.listen(lambda e: e.kind == "admitted" and passed.append(e.request_id))
    for tick in range(2, 100):
        engine.submit(ask(f"small{tick}", 2, 4, arrival_s=float(tick)), float(tick))
        engine.step(float(tick))
        if large.status is not Status.WAITING:
            break
    assert passed.index("large") == max_bypasses


def test_a_small_request_passes_a_large_one_that_does_not_fit_yet():
    engine = content_engine(num_blocks=8, block_size=2)
    engine.submit(ask("first", 2, 12), 0.0)
    engine.step(0.0)
    engine.submit(ask("large", 15, 2), 0.0)
    small_one = ask("small", 2, 2)
    engine.submit(small_one, 0.0)
    engine.step(0.0)
    assert small_one.status is Status.RUNNING
