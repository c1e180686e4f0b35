"""The calculators that a learner's regression test of the capstone meets."""

from __future__ import annotations

from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

LAB = "capstone_efficiency_plan"
METHODS = {
    "plan": {
        "figures": ["records", "rented_s"],
        "gate": ["base", "new"],
        "classify": ["request"],
        "recommend": ["variants"],
    }
}
MAKE = {
    "name": "make_plan",
    "methods": {"__call__": ["price_per_hour", "objectives"]},
    "properties": [],
    "emptied": {},
}
FAULTY = {
    "from the send": (
        "measures from when the sender got round to it",
        'each["first_s"] - each["intended_s"] for each in answers',
        'each["first_s"] - each["sent_s"] for each in answers',
    ),
    "not right": (
        "counts answers that are not right",
        'each["outcome"] == "ok" and each["is_qualified"] and not each["is_leak"]',
        'each["outcome"] == "ok" and not each["is_leak"]',
    ),
    "a leak": (
        "lets a leak pass if there was one before",
        'new.get("leaks") != 0',
        'new.get("leaks", 0) > base.get("leaks", 0)',
    ),
}
SUBJECTS = Subjects(LAB, "capstone-setup", "capstone-calculator", "EfficiencyPlan", FAULTY)


def make_plan(plan_class: type, price_per_hour: Any = None, objectives: Any = None):
    """A fresh calculator, if the contract allows these values."""
    if type(price_per_hour) not in (int, float) or not 0 < price_per_hour < 1e9:
        raise RemoteError("ValueError", "a price is a number of USD above 0")
    if type(objectives) is not dict or set(objectives) != {"ttft_p95_s", "attainment"}:
        raise RemoteError("ValueError", "objectives have `ttft_p95_s` and `attainment`")
    return {"plan": plan_class(price_per_hour, objectives)}


INTERFACE = Interface(MAKE, make_plan, METHODS, {})
