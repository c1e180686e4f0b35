"""A cascade and hedging over engines with real weights."""

from __future__ import annotations

import pytest

from minserve.cli import bench_routing, replay_reuse
from minserve.clock import WallClock
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.registry import known_models

pytestmark = pytest.mark.slow


def test_a_cascade_answers_on_every_slice_what_its_first_model_cannot():
    """SmolLM2 reads poorly and says so nowhere; the check against the evidence finds it out."""
    here = {model.name for model in known_models() if model.folder}
    if "smollm2" not in here:
        pytest.skip("smollm2 is not on this machine: minserve generate Hello --model smollm2")
    executor = TorchExecutor("smollm2", num_blocks=256)
    report = replay_reuse.measure(executor, "smollm2", "nano", "default", 12, 0, lambda name: None)
    alone, cascade = report["columns"]["no reuse"], report["columns"]["cascade"]
    assert cascade["escalations"] > 0
    assert cascade["qualified"] > alone["qualified"]
    for kind, found in cascade["by_kind"].items():
        assert found["qualified"] >= alone["by_kind"][kind]["qualified"]
    assert all(column["leaks"] == 0 for column in report["columns"].values())


def test_hedging_between_two_real_engines_stays_within_its_share_and_ends_every_request():
    executors = bench_routing._real("nano")
    run = bench_routing._run(executors, WallClock(), 60, 0.1, 0, True)
    assert run["requests"] == 60 and run["copies"] <= 6
    assert 0 < run["p50_s"] <= run["p99_s"]
