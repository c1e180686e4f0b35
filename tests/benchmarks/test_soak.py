"""Half a minute of everything against the real server: it ends as it began."""

from __future__ import annotations

import random

import pytest

from minserve.benchmarks.soak import _memory, deed, soak


def test_every_kind_of_deed_comes_up_and_is_the_same_for_the_same_seed():
    def names(seed):
        rng = random.Random(seed)
        return [deed(rng).name for _ in range(600)]

    assert len(set(names(0))) == 21 and names(0) == names(0) != names(1)


def test_growth_is_that_of_the_second_half():
    flat = [(float(t), 100 if t < 50 else 200) for t in range(100)]
    assert _memory(flat)["growth_second_half"] == pytest.approx(0.0)
    growing = [(float(t), 1000 + t) for t in range(101)]
    found = _memory(growing)
    assert found["slope_bytes_per_minute"] == pytest.approx(60.0)
    assert found["growth_second_half"] == pytest.approx(50 / 1075)


@pytest.mark.slow
def test_half_a_minute_of_everything_ends_with_nothing_held_hung_or_unexpected():
    report = soak("nano", 0.5, 12, 0)
    assert report["num_deeds"] > 100
    assert (report["hung"], report["unexpected"]) == (0, [])
    assert report["at_the_end"]["is_idle"], report["at_the_end"]
