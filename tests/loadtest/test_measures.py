"""Measures, exactly: from scripted times to figures."""

from __future__ import annotations

import random

import numpy as np
import pytest

from minserve.errors import ConfigError
from minserve.loadtest.distributions import Histogram, Samples, bound_ranks
from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.over_time import Timeline
from minserve.loadtest.record import CANCELLED, ERROR, OK, REJECTED, TIMEOUT, Record


def record(times_s=(1.0, 1.5, 2.0), counts=None, *, outcome=OK, **fields) -> Record:
    counts = [1] * len(times_s) if counts is None else list(counts)
    defaults = {"intended_s": 0.0, "sent_s": 0.25, "ended_s": 3.0, "num_prompt_tokens": 7}
    return Record("r", **(defaults | fields), times_s=list(times_s), counts=counts, outcome=outcome)


def measures(*records: Record, objectives=(), exact=True):
    tally = Tally(Objectives.parse(objectives), exact)
    for each in records:
        tally.add(each)
    return tally.measures()


# -- one request


def test_latencies_count_from_the_intended_time_and_the_uncorrected_from_sending():
    it = record()
    assert (it.ttft_s, it.e2e_s, it.dispatch_delay_s) == (1.0, 2.0, 0.25)
    assert (it.uncorrected_ttft_s, it.uncorrected_e2e_s) == (0.75, 1.75)


def test_n_tokens_give_n_minus_one_gaps_and_ttft_is_none_of_them():
    assert record().gaps_s().tolist() == [0.5, 0.5]
    assert record().tpot_s == 0.5


def test_chunk_of_k_tokens_counts_k():
    it = record((1.0, 2.5), counts=(2, 3))
    assert it.gaps_s().tolist() == [0.0, 0.5, 0.5, 0.5]
    assert it.tpot_s == 1.5 / 4
    assert len(it.gaps_s()) == it.num_tokens - 1


def test_single_token_answer_has_no_tpot_and_no_gap():
    it = record((1.0,))
    assert it.tpot_s is None and it.gaps_s().size == 0
    assert measures(it).latencies["tpot"].count == 0


def test_servers_count_of_tokens_is_what_tpot_divides_by():
    assert record((1.0, 3.0), counts=(1, 1), num_output_tokens=5).tpot_s == 0.5


def test_answer_without_any_token_has_no_latency_and_is_still_a_request():
    m = measures(record(()))
    assert m.num_ok == 1 and m.latencies["ttft"].count == m.latencies["itl"].count == 0


# -- many


def test_failures_are_counted_apart_and_never_speed_up_a_figure():
    bad = [record((0.5, 0.6), outcome=how) for how in (ERROR, REJECTED, TIMEOUT, CANCELLED)]
    m = measures(record(), record(), *bad)
    assert m.outcomes == {"ok": 2, "error": 1, "rejected": 1, "timeout": 1, "cancelled": 1}
    assert m.latencies["ttft"].count == 2 and m["ttft.p50"] == 1.0
    assert m.output_tokens == 6 and m.prompt_tokens == 14


def test_goodput_counts_requests_that_meet_all_objectives_and_attainment_leaves_out_rejections():
    slow = record((2.0, 2.5), ended_s=4.0)
    late_tokens = record((1.0, 2.5), ended_s=4.0)
    rejected, timed_out = record((), outcome=REJECTED), record((), outcome=TIMEOUT)
    m = measures(
        record(), slow, late_tokens, rejected, timed_out, objectives=["ttft:1500", "tpot:600"]
    )
    assert m.num_good == 1 and m.goodput_per_s == 0.25
    assert m.attainment == 1 / 4


def test_objectives_are_read_as_people_write_them():
    wanted = Objectives(ttft_s=0.5, tpot_s=0.05, e2e_s=2.0)
    assert Objectives.parse(["ttft:500 tpot:50", "e2el:2000"]) == wanted
    assert str(wanted) == "TTFT <= 500 ms, TPOT <= 50 ms, e2e <= 2000 ms"
    for wrong in ("ttft", "speed:3", "ttft:-1", "ttft:x", "ttft:nan"):
        with pytest.raises(ConfigError):
            Objectives.parse([wrong])


def test_rates_are_over_the_whole_run_and_the_steady_rate_leaves_out_its_ends():
    steady = [record((t, t + 0.5), intended_s=t, sent_s=t, ended_s=t + 0.5) for t in range(100)]
    long_tail = record((99.0, 300.0), intended_s=99.0, sent_s=99.0, ended_s=300.0)
    m = measures(*steady, long_tail)
    assert m.output_tokens_per_s == pytest.approx(202 / 300)
    assert m.steady_tokens_per_s == pytest.approx(2.0, rel=0.03)


def test_kinds_are_summarised_apart_too():
    tally = Tally()
    tally.add(record(kind="chat"))
    tally.add(record((9.0,), kind="report"))
    assert tally.by_kind["chat"].measures()["ttft.p50"] == 1.0
    assert tally.by_kind["report"].measures()["ttft.p50"] == 9.0
    assert tally.measures().num_requests == 2


# -- percentiles and how sure they are


@pytest.mark.parametrize(
    ("share", "least"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)]
)
def test_upper_bound_of_a_percentile_exists_from_just_enough_samples_on(share, least):
    assert bound_ranks(least - 1, share)[1] == 0
    assert bound_ranks(least, share)[1] == least


def test_bounds_hold_the_true_percentile_as_often_as_they_say():
    rng, count, share = random.Random(3), 120, 0.9
    lower, upper = bound_ranks(count, share)
    below = above = 0
    for _ in range(2_000):
        values = sorted(rng.random() for _ in range(count))
        below += values[lower - 1] <= share
        above += values[upper - 1] >= share
    assert min(below, above) / 2_000 > 0.94
    assert min(below, above) / 2_000 < 0.99, "the bounds are wider than they need be"


def test_bounds_stay_exact_for_a_million_samples():
    lower, upper = bound_ranks(1_000_000, 0.5)
    # The normal approximation: 1.645 standard deviations of a fair coin's count.
    assert 500_000 - lower == pytest.approx(1.645 * 500, abs=3)
    assert upper - 500_000 == pytest.approx(1.645 * 500, abs=3)


def test_gaps_get_no_bounds_for_those_of_one_request_hang_together():
    m = measures(*[record() for _ in range(400)])
    assert m.latencies["itl"].bounds == {}
    assert m.latencies["ttft"].bounds["p99"] == (1.0, 1.0)


def test_histogram_is_within_its_buckets_and_sees_below_the_fastest_service():
    rng, exact, rough = random.Random(1), Samples(), Histogram()
    for value in (rng.lognormvariate(-4, 2) for _ in range(20_000)):
        exact.add(value)
        rough.add(value)
    for share in (0.01, 0.5, 0.95, 0.99):
        assert rough.percentile(share) == pytest.approx(exact.percentile(share), rel=0.015)
    assert Histogram.SMALLEST_S <= 1e-6
    assert len(rough.buckets) < 3_000


def test_merged_histograms_are_the_histogram_of_everything():
    parts, whole = [Histogram(), Histogram()], Histogram()
    for number in range(1, 1_001):
        parts[number % 10 == 0].add(number / 1000)
        whole.add(number / 1000)
    parts[0].merge(parts[1])
    assert parts[0].buckets == whole.buckets
    assert parts[0].percentile(0.99) == whole.percentile(0.99)


def test_tally_of_histograms_agrees_with_the_exact_one():
    rng = random.Random(2)
    records = [
        record((t, t + rng.random()), ended_s=t + 2) for t in (rng.random() for _ in range(500))
    ]
    exact, rough = measures(*records), measures(*records, exact=False)
    for name in ("ttft.p50", "e2e.p99", "itl.p95"):
        assert rough[name] == pytest.approx(exact[name], rel=0.02)
    assert rough.outcomes == exact.outcomes and rough.output_tokens == exact.output_tokens


# -- over time


def test_timeline_stays_bounded_and_loses_nothing_when_its_bins_double():
    timeline = Timeline(width_s=1.0)
    for t in range(1_000):
        timeline.add(record((t + 0.5,), intended_s=float(t), ended_s=t + 0.5))
    assert len(timeline.bins) <= Timeline.MAX_BINS and timeline.width_s == 8.0
    totals = [(b.arrived, b.ended, b.tokens) for b in timeline.bins]
    assert np.sum(totals, axis=0).tolist() == [1_000] * 3
    assert timeline.in_flight()[-1] == 0


def test_timeline_shows_what_is_in_flight():
    timeline = Timeline(width_s=1.0)
    timeline.add(record((3.5,), intended_s=0.5, ended_s=3.5))
    timeline.add(record((1.5,), intended_s=1.5, ended_s=1.6))
    assert timeline.in_flight() == [1, 1, 1, 0]
