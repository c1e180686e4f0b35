"""The ladder climbs at once, comes down slowly, and never touches who may do what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask

from minserve.errors import ConfigError
from minserve.request import Identity, WorkloadClass
from minserve.scheduling.overload import (
    CRITICAL_ROLE,
    Ladder,
    LadderState,
    Rung,
    Signals,
    is_low_priority,
    may_enrich,
    output_limit,
)

LADDER = Ladder(hold_s=2.0)


def climb(*steps: tuple[float, Signals]) -> list[Rung]:
    state, rungs = LadderState(), []
    for now_s, signals in steps:
        state = LADDER.next(state, signals, now_s)
        rungs.append(state.rung)
    return rungs


@pytest.mark.parametrize(
    ("signals", "rung"),
    [
        (Signals(), Rung.NORMAL),
        (Signals(drain_s=2.0), Rung.DROP_ENRICHMENT),
        (Signals(queue_age_s=2.5), Rung.SHORTEN_OUTPUT),
        (Signals(kv_pressure=1.0), Rung.MOVE_TO_JOBS),
        (Signals(deadline_risk=0.5), Rung.REJECT_LOW),
        (Signals(drain_s=1e9), Rung.RESERVE),
        (Signals(drain_s=3.0, queue_age_s=6.0, kv_pressure=0.5), Rung.MOVE_TO_JOBS),
    ],
)
def test_the_loudest_signal_decides_at_once(signals, rung):
    assert climb((0.0, signals)) == [rung]


def test_it_comes_down_one_rung_at_a_time_each_after_the_hold():
    busy, calm = Signals(drain_s=9.0), Signals()
    assert climb((0, busy), (1, calm), (2.9, calm), (3, calm), (4.9, calm), (5, calm)) == [
        Rung.MOVE_TO_JOBS,
        Rung.MOVE_TO_JOBS,
        Rung.MOVE_TO_JOBS,
        Rung.SHORTEN_OUTPUT,
        Rung.SHORTEN_OUTPUT,
        Rung.DROP_ENRICHMENT,
    ]


def test_it_does_not_flutter_around_a_level():
    near = [Signals(drain_s=4.0 if n % 2 else 3.5) for n in range(40)]
    rungs = climb(*enumerate(near))
    assert set(rungs[1:]) == {Rung.SHORTEN_OUTPUT}


def test_a_relapse_starts_the_hold_anew():
    busy, calm = Signals(drain_s=2.5), Signals()
    assert climb((0, busy), (1, calm), (2.5, busy), (3, calm), (4.5, calm), (5, calm)) == [
        *[Rung.DROP_ENRICHMENT] * 5,
        Rung.NORMAL,
    ]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_it_is_never_below_what_the_signals_call_for_and_ends_normal_when_calm(drains):
    state, now_s = LadderState(), 0.0
    for drain_s in drains:
        now_s += 1.0
        state = LADDER.next(state, Signals(drain_s=drain_s), now_s)
        assert state.rung >= LADDER.called_for(Signals(drain_s=drain_s))
    for _ in range(6 * 3):
        now_s += 1.0
        state = LADDER.next(state, Signals(), now_s)
    assert state.rung is Rung.NORMAL


@pytest.mark.parametrize("levels", [(1, 2, 3), (5, 4, 3, 2, 1), (0, 1, 2, 3, 4)])
def test_levels_that_make_no_ladder_are_refused(levels):
    with pytest.raises(ConfigError, match="drain_s"):
        Ladder(drain_s=levels)


def test_only_low_priority_work_is_cut_and_the_critical_role_exempts():
    batch = ask("b", 8, 500, workload_class=WorkloadClass.BATCH)
    critical = ask(
        "c",
        8,
        500,
        workload_class=WorkloadClass.BATCH,
        identity=Identity("t", "s", frozenset({CRITICAL_ROLE})),
    )
    humble, person = ask("h", 8, 500, priority=-1), ask("p", 8, 500)
    assert [is_low_priority(r) for r in (batch, humble, person, critical)] == [1, 1, 0, 0]
    assert output_limit(batch, Rung.DROP_ENRICHMENT, 64) == 500
    assert output_limit(batch, Rung.SHORTEN_OUTPUT, 64) == 64
    assert output_limit(person, Rung.RESERVE, 64) == 500
    assert output_limit(critical, Rung.RESERVE, 64) == 500


def test_extras_are_the_first_to_go():
    assert may_enrich(Rung.NORMAL) and not may_enrich(Rung.DROP_ENRICHMENT)
