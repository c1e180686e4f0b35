"""Who may share a step, and that those kept apart take turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, check_output, content_engine, drain, small

from minserve.request import Identity, Status
from minserve.scheduling.batching import ContinuousBatching, DynamicBatching, StaticBatching
from minserve.scheduling.compatibility import anyone, same_adapter, same_tenant

RULES = {
    "adapter": (same_adapter, lambda name: {"adapter": name}),
    "tenant": (same_tenant, lambda name: {"identity": Identity(name)}),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_symmetric_and_let_like_run_with_like(rule):
    compatible, fields = RULES[rule]
    a, a2, b = ask("a", **fields("x")), ask("a2", **fields("x")), ask("b", **fields("y"))
    assert compatible(a, a2) and compatible(a2, a)
    assert not compatible(a, b) and not compatible(b, a)
    assert anyone(a, b)


@pytest.mark.parametrize("rule", RULES)
@given(
    names=st.lists(st.sampled_from("xyz"), min_size=2, max_size=8),
    policy=st.sampled_from([StaticBatching(3), ContinuousBatching(16, 3), DynamicBatching(2, 1.0)]),
)
@small(60)
def test_whatever_a_rule_keeps_apart_never_shares_a_step_and_all_finish(rule, names, policy):
    compatible, fields = RULES[rule]
    engine = content_engine(policy, num_blocks=12, compatible=compatible)
    requests = {f"r{n}": ask(f"r{n}", n + 2, 4, **fields(name)) for n, name in enumerate(names)}
    for request in requests.values():
        engine.submit(request, 0.0)
    drain(engine)
    for plan in engine.executor.plans:
        together = [requests[row.request_id] for row in plan.rows]
        assert all(compatible(a, b) for a in together for b in together)
    for request in requests.values():
        check_output(request)


@pytest.mark.parametrize("max_running", [1, 3])
@pytest.mark.parametrize("backlog", [5, 100])
def test_groups_take_turns_however_long_the_other_ones_backlog_is(backlog, max_running):
    engine = content_engine(
        ContinuousBatching(64, max_running), num_blocks=400, compatible=same_adapter
    )
    for n in range(backlog):
        engine.submit(ask(f"x{n}", 3, 20, adapter="x"), 0.0)
    engine.step(0.0)
    lone = ask("lone", 3, 6, adapter="y")
    engine.submit(lone, 0.0)
    for n in range(backlog):
        engine.submit(ask(f"later{n}", 3, 20, adapter="x"), 0.0)
    for _ in range(2 * 6 + 1):  # every other step is its own
        engine.step(0.0)
    assert lone.status is Status.FINISHED


def test_a_stream_of_short_requests_of_one_group_does_not_starve_the_other():
    engine = content_engine(ContinuousBatching(64, 2), num_blocks=400, compatible=same_adapter)
    lone = ask("lone", 3, 6, adapter="y")
    for n in range(80):
        engine.submit(ask(f"x{n}", 3, 1, adapter="x"), 0.0)
    engine.submit(lone, 0.0)
    for n in range(2 * 6 + 1):
        engine.submit(ask(f"more{n}", 3, 1, adapter="x"), 0.0)
        engine.step(0.0)
    assert lone.status is Status.FINISHED


def test_a_large_request_of_one_group_is_not_kept_short_of_blocks_by_another_group():
    # Two at a time, out of phase: without a rule one of them would always hold some blocks.
    engine = content_engine(
        ContinuousBatching(64, 2), num_blocks=8, block_size=2, compatible=same_adapter
    )
    engine.submit(ask("x0", 2, 6, adapter="x"), 0.0)
    engine.step(0.0)
    large = ask("large", 15, 2, adapter="y", arrival_s=1.0)
    engine.submit(large, 1.0)
    for tick in range(2, 100):
        engine.submit(ask(f"x{tick}", 2, 4, adapter="x", arrival_s=float(tick)), float(tick))
        engine.step(float(tick))
        if large.status is not Status.WAITING:
            return
    raise AssertionError("the large request never got its blocks")
