"""Experiments with a question, an expected outcome, and a pass or fail on what they exist to show.

Each runs the same way on the simulator and on the real engine; see `minserve scenario`.
"""

from __future__ import annotations

from minserve.scenarios.adversarial import ADVERSARIAL
from minserve.scenarios.controlled import CONTROLLED
from minserve.scenarios.lab import Bench, Outcome, Scenario
from minserve.scenarios.mlperf import MLPERF

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (*CONTROLLED, *ADVERSARIAL, *MLPERF)
}

__all__ = ["SCENARIOS", "Bench", "Outcome", "Scenario"]
