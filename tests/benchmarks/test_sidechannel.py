"""The side channel is real where tenants share a cache, and closed where they do not."""

from __future__ import annotations

import random

import pytest

from minserve.benchmarks.sidechannel import (
    CASES,
    measure,
    random_prompts,
    send_in_process,
    wilson,
)
from minserve.clock import VirtualClock
from minserve.errors import ConfigError
from minserve.execution.simulated import SimulatedExecutor


def verdict(case: str, num_trials: int = 40):
    """The experiment on a virtual clock, where nothing but the work itself takes time."""
    rng = random.Random(0)
    send = send_in_process(SimulatedExecutor(2_000), CASES[case][0], VirtualClock())
    return measure(case, send, num_trials, random_prompts(rng, 1_000, 100), rng)


def test_a_shared_cache_tells_every_prompt():
    shared = verdict("shared")
    assert (shared.accuracy, shared.auc, shared.share_cached) == (1.0, 1.0, 1.0)


def test_a_salt_leaves_the_attacker_guessing():
    salted = verdict("salted")
    assert (salted.accuracy, salted.auc, salted.share_cached) == (0.5, 0.5, 0.0)
    assert salted.ttft_sent_p50_s == salted.ttft_unsent_p50_s


def test_with_the_same_salt_the_victims_own_tenant_still_hits():
    control = verdict("control")
    assert control.share_cached == 1.0
    assert control.ttft_sent_p50_s < control.ttft_unsent_p50_s


@pytest.mark.parametrize("num_trials", [0, 1, 41])
def test_trials_are_balanced_or_refused(num_trials):
    with pytest.raises(ConfigError):
        verdict("shared", num_trials)


def test_the_interval_is_wilsons():
    low, high = wilson(200, 400)
    assert low == pytest.approx(0.4513, abs=1e-4) and high == pytest.approx(0.5487, abs=1e-4)
