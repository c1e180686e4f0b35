"""Calibration: known costs are found again, outliers do not move them, replays are exact."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError, DataNotFound
from minserve.execution import calibration
from minserve.execution.calibration import (
    Calibration,
    ObservedStep,
    ReplayedExecutor,
    TimedExecutor,
    fit,
    observe,
)
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

NANO = Path(__file__).resolve().parents[2] / "data/models/northstar-nano/model.safetensors"
TRUE = CostModel(2e-3, 4e-5, 5e-5, 2e-8, 3e-7, 1e-4, 1e-5)


def steps(count: int = 400, noise: float = 0.0, seed: int = 0) -> list[ObservedStep]:
    """Steps of every kind that `TRUE` would take, off by up to `noise`."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        rows = []
        for _ in range(rng.choice((1, 2, 8, 16))):
            num_tokens = rng.choice((1, 1, 1, 16, 64, 256))
            rows.append((num_tokens, num_tokens + rng.choice((0, 100, 2_000))))
        off = 1 + rng.uniform(-noise, noise)
        made.append(ObservedStep(tuple(rows), TRUE.seconds(rows) * off))
    return made


def test_known_costs_are_found_again():
    # Seen from its steps a cost model is not unique: rows, chunks and tokens hang together.
    found = fit(steps())
    for step in steps(50, seed=9):
        assert found.cost.seconds(step.rows) == pytest.approx(step.seconds, rel=1e-6)
    assert found.median_error < 1e-9 and found.total_error < 1e-9


def test_noise_moves_predictions_little_and_no_cost_is_negative():
    found = fit(steps(noise=0.2))
    rows = [(1, 500)] * 8 + [(256, 256)]
    assert found.cost.seconds(rows) == pytest.approx(TRUE.seconds(rows), rel=0.05)
    assert all(getattr(found.cost, name) >= 0 for name in calibration.TERMS)
    assert 0.05 < found.median_error < 0.15, "the error is told as it is"


def test_a_moments_stall_is_no_cost_of_the_model():
    repeated = [step for step in steps(90) for _ in range(9)]
    repeated[5::50] = [ObservedStep(s.rows, s.seconds + 1.0) for s in repeated[5::50]]
    rows = [(1, 500)] * 8
    assert fit(repeated).cost.seconds(rows) == pytest.approx(TRUE.seconds(rows), rel=0.02)


def test_errors_are_of_steps_that_were_held_out():
    assert 60 <= fit(steps(300)).num_steps <= 100
    with pytest.raises(ConfigError):
        fit(steps(10))


class CostlyExecutor(SimulatedExecutor):
    """Takes the time that `TRUE` says, on a clock of its own."""

    time_s = 0.0

    def launch(self, plan, now_s):
        self.time_s += TRUE.step_s(plan)
        return super().launch(plan, now_s)


def test_costs_of_an_executor_that_takes_time_are_observed():
    executor = CostlyExecutor(2048)
    found = fit(observe(executor, budget_s=1.5, now_s=lambda: executor.time_s)).cost
    for rows in ([(1, 500)] * 8, [(256, 256)], [(1, 900)] * 15 + [(100, 400)]):
        assert found.seconds(rows) == pytest.approx(TRUE.seconds(rows), rel=0.05)


def test_designed_steps_hold_all_kinds_of_work_within_the_pool():
    seen = observe(SimulatedExecutor(2048), budget_s=0.0)
    assert any(len(step.rows) == 16 and all(n == 1 for n, _ in step.rows) for step in seen)
    assert any(len(step.rows) == 1 and step.rows[0][0] >= 100 for step in seen)
    assert any({n == 1 for n, _ in step.rows} == {True, False} for step in seen)
    for step in seen:
        assert sum(n for n, _ in step.rows) <= 512 and all(n <= c for n, c in step.rows)
        assert sum(-(-c // 16) for _, c in step.rows) <= 2048


def test_small_pools_can_be_observed_too():
    assert observe(SimulatedExecutor(4), budget_s=0.0)


def test_calibrations_are_kept_per_model_and_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path))
    here, there = {"cpu": "A/B 1", "cores": 2}, {"cpu": "other", "cores": 2}
    kept = Calibration("nano", "nano-float32-abc", here, 64, 16, 4096, 0.5, fit(steps()))
    path = kept.save()
    assert path.is_relative_to(tmp_path)
    assert calibration.load("nano-float32-abc", here) == kept
    for fingerprint, machine in (("nano-float32-abc", there), ("other", here)):
        with pytest.raises(DataNotFound):
            calibration.load(fingerprint, machine)
    path.write_text("{}", "utf-8")
    with pytest.raises(DataNotFound):
        calibration.load("nano-float32-abc", here)


# -- replays


def log_of(executor, requests) -> list:
    """All events of serving `requests` on the virtual clock."""
    engine = Engine(executor, ContinuousBatching(64, 8))
    client = LocalClient(engine, EventLoop(VirtualClock()))
    for request in requests():
        client.send(request)
    client.cancel("r3", at_s=0.05)
    client.run()
    engine.check_integrity()
    return engine.log.events


def requests(count: int = 12, prompt: int = 30, vocab: int = 800):
    rng = random.Random(5)
    for number in range(count):
        ids = tuple(rng.choices(range(20, vocab), k=rng.randint(1, prompt)))
        sampling = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True)
        yield Request(f"r{number}", ids, sampling, arrival_s=number * 0.01)


def test_replayed_durations_give_the_identical_event_log_under_pressure():
    ticks = itertools.accumulate(random.Random(1).uniform(0.001, 0.02) for _ in range(10_000))
    recorded = TimedExecutor(SimulatedExecutor(11, 4), now_s=lambda: next(ticks))
    first = log_of(recorded, requests)
    assert any(event.kind == "preempted" for event in first), "it must have been tight"
    assert log_of(ReplayedExecutor(recorded), requests) == first


@pytest.mark.skipif(not NANO.is_file(), reason="northstar-nano is not in data/models")
def test_replayed_real_steps_give_the_identical_event_log():
    from minserve.execution.torch_executor import TorchExecutor

    recorded = TimedExecutor(TorchExecutor("nano", num_blocks=32))
    first = log_of(recorded, requests)
    assert log_of(ReplayedExecutor(recorded), requests) == first
    assert len(recorded.durations_s) > 10 and min(recorded.durations_s) > 0
