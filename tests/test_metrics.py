"""Figures, computed by hand."""

from __future__ import annotations

import pytest

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
from minserve.metrics import outcomes, percentile, summarise
from minserve.request import Request, SamplingParams


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
    assert summary.energy == "not measured"
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
