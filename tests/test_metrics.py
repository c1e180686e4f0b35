"""Figures, computed by hand."""

from __future__ import annotations

import pytest

from minserve.energy import Energy
from minserve.errors import ConfigError
from minserve.events import (
    Admitted,
    Finished,
    Preempted,
    StepEnded,
    StepStarted,
    Submitted,
    TokensProduced,
)
from minserve.metrics import cancel_delays_s, outcomes, percentile, summarise
from minserve.request import Request, SamplingParams, WorkloadClass


def request(name, arrival_s=0.0, deadline_s=None, num_prompt=4):
    return Request(
        name, tuple(range(num_prompt)), SamplingParams(), arrival_s=arrival_s, deadline_s=deadline_s
    )


def life(name, arrival_s, admitted_s, chunks, reason="length", cached=0, num_prompt=4):
    """The events of one request; `chunks` are (time, number of tokens)."""
    events = [
        Submitted(arrival_s, name, num_prompt, "standard"),
        Admitted(admitted_s, name, cached),
        *(TokensProduced(time_s, name, (7,) * count) for time_s, count in chunks),
    ]
    total = sum(count for _, count in chunks)
    return [*events, Finished(chunks[-1][0] if chunks else admitted_s, name, reason, total)]


def one(events, **options):
    return outcomes([request("a", **options)], events)[0]


def test_latencies_run_from_the_intended_time():
    outcome = one(
        [Submitted(1.5, "a", 4, "standard"), *life("a", 1.5, 2.0, [(3.0, 1), (3.5, 1), (5.0, 1)])],
        arrival_s=1.0,
    )
    assert outcome.dispatch_delay_s == 0.5
    assert outcome.queue_delay_s == 1.0
    assert outcome.ttft_s == 2.0
    assert outcome.itl_s == [0.5, 1.5]
    assert outcome.tpot_s == 1.0
    assert outcome.e2e_s == 4.0


@pytest.mark.parametrize("chunks", [[(1, 1)] * 1, [(1, 1), (2, 1)], [(1, 2), (3, 4)], [(1, 5)]])
def test_n_tokens_give_n_minus_1_gaps_however_they_are_chunked(chunks):
    outcome = one(life("a", 0, 0, chunks))
    assert len(outcome.itl_s) == outcome.num_output_tokens - 1


def test_a_chunk_of_k_tokens_counts_k():
    outcome = one(life("a", 0, 0, [(1.0, 1), (3.0, 4)]))
    assert outcome.itl_s == [0.5] * 4
    assert outcome.tpot_s == 0.5


def test_a_single_token_answer_has_no_tpot_and_no_gap():
    summary = summarise([request("a")], life("a", 0, 0, [(1.0, 1)]))
    assert summary.tpot_p50_s is None
    assert summary.itl_p95_s is None
    assert summary.ttft_p50_s == 1.0


def test_ttft_is_not_an_inter_token_latency():
    summary = summarise([request("a")], life("a", 0, 0, [(100.0, 1), (100.5, 1)]))
    assert summary.itl_p95_s == 0.5


def test_percentiles_interpolate_raw_samples():
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([1, 2, 3, 4, 5], 0.95) == pytest.approx(4.8)
    assert percentile([5], 0.95) == 5
    assert percentile([], 0.95) is None
    with pytest.raises(ConfigError):
        percentile([1], 95)


def test_percentiles_of_two_runs_come_from_their_samples_and_not_from_an_average():
    fast = [request(f"f{n}") for n in range(19)]
    slow = [request("s")]
    events = [e for r in fast for e in life(r.id, 0, 0, [(1.0, 1)])]
    events += life("s", 0, 0, [(101.0, 1)])
    together = summarise([*fast, *slow], events).ttft_p50_s
    apart = [summarise(part, events).ttft_p50_s for part in (fast, slow)]
    assert together == 1.0
    assert sum(apart) / 2 == 51.0


def test_gaps_are_pooled_over_requests():
    events = life("a", 0, 0, [(1, 1), (2, 1), (3, 1), (4, 1)]) + life("b", 0, 0, [(1, 1), (11, 1)])
    summary = summarise([request("a"), request("b")], events)
    assert summary.itl_p50_s == 1.0  # of 1, 1, 1, 10; the mean of two medians would be 5.5


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_failures_are_counted_apart_and_never_speed_up_the_figures(reason):
    good = life("a", 0, 0, [(10.0, 1), (20.0, 1)])
    bad = life("b", 0, 0, [(0.1, 1), (0.2, 8)], reason)
    alone = summarise([request("a")], good)
    summary = summarise([request("a"), request("b")], sorted([*good, *bad], key=lambda e: e.time_s))
    for name in ("ttft_p50_s", "ttft_p95_s", "itl_p95_s", "tpot_p50_s", "e2e_p95_s"):
        assert getattr(summary, name) == getattr(alone, name)
    assert summary.tokens_per_s == alone.tokens_per_s == 0.1
    assert summary.output_tokens == 2
    assert (summary.num_ok, summary.num_errors + summary.num_cancelled) == (1, 1)


def test_a_refused_request_is_rejected_and_not_an_error():
    events = [Finished(0.5, "a", "error", 0, "too large"), *life("b", 0, 0, [], "error")]
    summary = summarise([request("a"), request("b"), request("c")], events)
    assert (summary.num_rejected, summary.num_errors, summary.num_unfinished) == (1, 1, 1)
    assert summary.tokens_per_s in (None, 0.0)
    assert summary.ttft_p95_s is None


def test_deadlines_count_whoever_failed_and_leave_out_whoever_has_none_or_left():
    requests = [
        request("met", deadline_s=5),
        request("late", deadline_s=1),
        request("refused", deadline_s=5),
        request("left", deadline_s=5),
        request("free"),
    ]
    events = [
        Finished(0, "refused", "error", 0, "no"),
        *life("met", 0, 0, [(5.0, 1)]),
        *life("late", 0, 0, [(1.1, 1)]),
        *life("left", 0, 0, [(1.0, 1)], "cancelled"),
        *life("free", 0, 0, [(9.0, 1)]),
    ]
    assert summarise(requests, events).deadline_attainment == pytest.approx(1 / 3)
    assert summarise([request("free")], events).deadline_attainment is None


def test_who_has_not_ended_has_not_met_its_deadline():
    requests = [request("met", deadline_s=5), request("running", deadline_s=5)]
    events = [*life("met", 0, 0, [(5.0, 1)]), *life("running", 0, 0, [(1.0, 1)])[:-1]]
    assert summarise(requests, events).deadline_attainment == 0.5


def test_prefix_hits_are_counted_in_tokens_at_every_admission():
    events = [
        Submitted(0, "a", 100, "standard"),
        Admitted(0, "a", 32),
        TokensProduced(1, "a", (1, 1, 1, 1)),
        Preempted(2, "a"),
        Admitted(3, "a", 96),
        TokensProduced(4, "a", (1,)),
        Finished(4, "a", "length", 5),
    ]
    summary = summarise([request("a", num_prompt=100)], events)
    assert summary.prefix_tokens_reused == 128
    assert summary.prefix_hit_rate == 128 / (100 + 104)
    assert summary.preemptions == 1
    assert summary.queue_delay_p50_s == 0


def test_steps_give_peak_blocks_and_rows():
    events = [
        StepStarted(0.0, 1, (("a", 4, 4),), 0, 10, 3, 0),
        StepEnded(0.5, 1),
        StepStarted(0.5, 2, (("a", 1, 5), ("b", 4, 4)), 0, 5, 8, 0),
        StepEnded(1.5, 2),
        *life("a", 0, 0, [(0.5, 1), (1.5, 1)]),
    ]
    summary = summarise([request("a")], events)
    assert (summary.kv_blocks_peak, summary.num_steps) == (8, 2)
    assert summary.mean_rows_per_step == 1.5
    assert summary.step_p95_s == pytest.approx(0.975)


def test_cost_is_price_times_duration_per_qualified_answer():
    requests = [request(name) for name in "abc"]
    events = [e for r in requests for e in life(r.id, 0, 0, [(36.0, 1)])]
    summary = summarise(requests, events, qualified={"a", "b"}, price_per_hour=1.0)
    assert summary.num_qualified == 2
    assert summary.cost_per_qualified_task == pytest.approx(0.005)
    assert summary.energy_source == "not measured"
    nobody = summarise(requests, events, qualified=set(), price_per_hour=1.0)
    assert (nobody.num_qualified, nobody.cost_per_qualified_task) == (0, None)
    assert summarise(requests, events, price_per_hour=1.0).num_qualified is None


def test_an_answer_that_failed_is_never_qualified():
    events = life("a", 0, 0, [(1.0, 1)], "cancelled")
    assert summarise([request("a")], events, qualified={"a"}).num_qualified == 0


def test_nothing_at_all_gives_no_figures_and_no_crash():
    summary = summarise([], [])
    assert summary.num_requests == 0
    assert summary.tokens_per_s is None
    assert summary.as_dict()["ttft_p95_s"] is None


def test_cancel_delay_is_the_rest_of_the_step_in_flight():
    events = [
        *(Submitted(0, name, 4, "standard") for name in "abc"),
        Finished(0.5, "a", "cancelled", 0),
        StepStarted(1, 1, (("b", 4, 4), ("c", 4, 4)), 0, 5, 2, 1),
        Finished(1.2, "b", "cancelled", 0),
        StepEnded(1.5, 1),
        Finished(2, "c", "stop", 0),
    ]
    assert cancel_delays_s(events, set("abc")) == pytest.approx([0.0, 0.3])
    summary = summarise([request("b"), request("c")], events)
    assert summary.cancel_delay_p95_s == pytest.approx(0.3)


def test_recomputed_tokens_are_what_a_preempted_request_has_to_compute_again():
    events = [
        Submitted(0, "a", 64, "standard"),
        Admitted(0, "a", 32),
        TokensProduced(1, "a", (7, 7)),
        Preempted(2, "a"),
        Admitted(3, "a", 16),
        Finished(4, "a", "stop", 2),
    ]
    asked = request("a", num_prompt=64)
    assert summarise([asked], events).recomputed_tokens == 64 + 2 - 16
    assert summarise([asked], events[:3]).recomputed_tokens == 0


def test_rates_per_hour_and_energy_count_only_what_is_right():
    events = [*life("a", 0, 0, [(1, 1)]), *life("b", 0, 0, [(36, 1)])]
    asked = [request("a"), request("b")]
    summary = summarise(asked, events, qualified={"a"}, energy=Energy(72.0, "RAPL"))
    assert (summary.requests_per_hour, summary.qualified_per_hour) == (200.0, 100.0)
    assert (summary.energy_j, summary.energy_source) == (72.0, "RAPL")
    assert summary.energy_per_qualified_task_j == 72.0
    unknown = summarise(asked, events)
    assert unknown.qualified_per_hour is unknown.energy_per_qualified_task_j is None
    assert unknown.energy_source == "not measured"


def test_context_held_in_a_step_is_told_by_class_and_choices_belong_to_their_request():
    asked = [request("a"), request("b")]
    asked[1].workload_class = WorkloadClass.BATCH
    rows = (("a", 1, 10), ("a#1", 1, 12), ("b", 4, 4), ("stranger", 1, 99))
    events = [StepStarted(0, 1, rows, 0, 5, 2, 1), StepStarted(1, 2, rows[:1], 0, 5, 2, 1)]
    assert summarise(asked, events).kv_tokens_peak_by_class == {"standard": 22, "batch": 4}


def test_deadline_misses_are_those_who_did_not_meet_theirs():
    events = [*life("a", 0, 0, [(1, 1)]), *life("b", 0, 0, [(3, 1)])]
    summary = summarise([request("a", deadline_s=2), request("b", deadline_s=2)], events)
    assert (summary.num_deadline_misses, summary.deadline_attainment) == (1, 0.5)
