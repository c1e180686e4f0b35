"""Whether a queue grows: told by the drift of latency, with its uncertainty, never by the count."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.record import OK, REJECTED, Record
from minserve.loadtest.steady import GROUPS, STUDENT, Drift, Queue
from minserve.loadtest.sweep import try_rate, with_enough


def serial(count: int, load: float, seed: int = 0, decode_s: float = 0.0) -> Tally:
    """A server that takes one request at a time, of 0.1 s on average, at so much load.

    Each of its answers has 11 tokens, and goes on for `decode_s` beside the others.
    """
    rng, now_s, free_s = random.Random(f"{seed}/{count}"), 0.0, 0.0
    tally = Tally(Objectives(ttft_s=1.0))
    for number in range(count):
        free_s = max(now_s, free_s) + rng.uniform(0.05, 0.15)
        times_s = [free_s, free_s + decode_s]
        tally.add(
            Record(f"r{number}", now_s, now_s, times_s[1], OK, times_s=times_s, counts=[1, 10])
        )
        now_s += rng.expovariate(load / 0.1)
    return tally


def verdicts(count: int, load: float) -> Counter[Queue]:
    return Counter(serial(count, load, seed).drift().queue for seed in range(24))


@pytest.mark.parametrize("count", [60, 250, 800])
def test_however_many_are_sent_a_queue_that_is_kept_up_with_hardly_ever_grows(count):
    assert verdicts(count, 0.6)[Queue.GROWS] <= 2
    assert verdicts(count, 0.8)[Queue.GROWS] <= 3


@pytest.mark.parametrize("count", [60, 250, 800])
def test_however_few_are_sent_a_queue_that_grows_is_hardly_ever_called_steady(count):
    assert verdicts(count, 1.3)[Queue.STEADY] <= 2
    assert verdicts(count, 2.5)[Queue.STEADY] == 0


def test_enough_requests_tell_and_five_times_too_much_is_told_by_few():
    assert verdicts(800, 0.6)[Queue.STEADY] >= 22
    assert verdicts(800, 1.3)[Queue.GROWS] >= 22
    assert verdicts(60, 5.0)[Queue.GROWS] >= 22


def test_drift_is_by_how_much_more_comes_than_is_served():
    for load in (1.2, 1.5, 2.0):
        drift = serial(6_000, load).drift()
        assert drift.slope == pytest.approx(load - 1, rel=0.15) and drift.low > 0.1


def test_longer_answers_are_no_slower_ones():
    tally = Tally()
    for n in range(600):
        count, first_s = 10 + n, n * 0.2 + 0.1
        times_s = [first_s + 0.01 * k for k in range(count)]
        tally.add(
            Record(f"r{n}", n * 0.2, n * 0.2, times_s[-1], OK, times_s=times_s, counts=[1] * count)
        )
    assert tally.drift().queue is Queue.STEADY


def test_arrivals_that_last_no_longer_than_some_answers_are_too_few():
    few, many = serial(100, 0.5, decode_s=10.0).drift(), serial(1_000, 0.5, decode_s=10.0).drift()
    assert few.queue is Queue.TOO_FEW and "arrivals took" in str(few)
    assert many.queue is Queue.STEADY


def test_nothing_served_is_too_few_and_all_at_once_has_no_later():
    nobody = Tally()
    assert nobody.drift().queue is Queue.TOO_FEW
    nobody.add(Record("r", 0.0, 0.0, 1.0, REJECTED))
    assert nobody.drift().queue is Queue.TOO_FEW and str(nobody.drift())
    at_once = Tally()
    for n in range(500):
        at_once.add(Record(f"r{n}", 0.0, 0.0, n + 1.0, OK, times_s=[n + 1.0], counts=[1]))
    assert at_once.drift().queue is Queue.TOO_FEW


@pytest.mark.parametrize(
    ("low", "high", "why", "queue"),
    [
        (-0.1, 0.04, "", Queue.STEADY),
        (-0.1, 0.2, "", Queue.TOO_FEW),
        (0.06, 0.2, "", Queue.GROWS),
        (0.06, 0.2, "short", Queue.TOO_FEW),
        (1.1, 1.5, "short", Queue.GROWS),
    ],
)
def test_verdict_follows_from_the_bounds(low, high, why, queue):
    assert Drift((low + high) / 2, low, high, why).queue is queue


def test_every_number_of_groups_has_its_quantile():
    assert len(STUDENT) == GROUPS - 3


# -- as many as it takes


def counting(serve):
    """`serve(rate_per_s, count)` and the counts that it was asked for."""
    asked: list[int] = []

    def at(rate_per_s: float, count: int) -> Tally:
        asked.append(count)
        return serve(rate_per_s, count)

    return at, asked


def test_more_are_sent_until_a_steady_state_is_seen():
    serve, asked = counting(lambda rate, count: serial(count, 0.1 * rate, decode_s=10.0))
    cell = try_rate(with_enough(serve, 100), 6.0)
    assert cell.queue is Queue.STEADY and cell.is_met
    assert asked == [100, 200, 400]


def test_no_more_are_sent_once_the_objectives_are_missed_or_the_traffic_ends():
    serve, asked = counting(lambda rate, count: serial(count, 0.1 * rate))
    cell = try_rate(with_enough(serve, 100), 30.0)
    assert not cell.is_met and asked == [100] and cell.said == "queue grows"
    serve, asked = counting(lambda rate, count: serial(min(count, 30), 0.1 * rate, decode_s=9.0))
    assert try_rate(with_enough(serve, 20), 6.0).said == "too few to tell"
    assert asked == [20, 40]
