"""Arrivals: seeded, of the rate they say, and as bursty as they say."""

from __future__ import annotations

import random
from itertools import islice
from statistics import fmean, pstdev

import pytest

from minserve.errors import ConfigError
from minserve.loadtest import arrivals


def gaps(times_s, count: int = 20_000) -> list[float]:
    times = list(islice(times_s, count))
    assert times == sorted(times)
    return [later - sooner for sooner, later in zip(times, times[1:], strict=False)]


def test_constant_arrivals_are_evenly_spaced_from_zero():
    assert list(islice(arrivals.constant(4.0), 4)) == [0.0, 0.25, 0.5, 0.75]


def test_equal_seeds_give_equal_times():
    first, again = (list(islice(arrivals.poisson(5, random.Random(1)), 50)) for _ in range(2))
    other = list(islice(arrivals.poisson(5, random.Random(2)), 50))
    assert first == again != other


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness(burstiness):
    found = gaps(arrivals.gamma(10.0, burstiness, random.Random(7)))
    assert fmean(found) == pytest.approx(0.1, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(burstiness**-0.5, rel=0.05)


@pytest.mark.parametrize("rng", [None, random.Random(5)])
def test_ramp_goes_from_one_rate_to_the_other_and_stays(rng):
    times = list(islice(arrivals.ramp(10, 100, 10.0, rng), 5_000))
    assert sum(t < 10.0 for t in times) == pytest.approx(550, rel=0.1)
    assert sum(t < 1.0 for t in times) == pytest.approx(14.5, abs=8)
    assert sum(20 <= t < 30 for t in times) == pytest.approx(1_000, rel=0.1)


def test_ramp_may_go_down_or_stay_level():
    assert list(islice(arrivals.ramp(2, 2, 5.0), 3)) == [0.0, 0.5, 1.0]
    down = list(islice(arrivals.ramp(100, 1, 1.0), 60))
    assert down == sorted(down) and down[55] > 1.0


def test_scaled_keeps_the_pattern():
    assert list(arrivals.scaled([0.0, 3.0, 6.0], 3.0)) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: arrivals.constant(0),
        lambda: arrivals.gamma(1.0, 0.0, random.Random()),
        lambda: arrivals.gamma(float("inf"), 1.0, random.Random()),
        lambda: arrivals.ramp(1, 2, 0.0),
    ],
)
def test_senseless_settings_are_refused(make):
    with pytest.raises(ConfigError):
        next(make())
