"""The planners that a learner's regression test of lab 2 meets: right ones and faulty ones."""

from __future__ import annotations

from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

LAB = "lab2_long_prompt_burst"
METHODS = {"planner": {"plan": ["running", "waiting", "num_free_blocks"]}}
MAKE = {
    "name": "make_planner",
    "methods": {"__call__": ["token_budget", "max_running", "max_bypasses"]},
    "properties": [],
    "emptied": {},
}

# Each edit turns the solution into one fault: (text of the solution, its replacement)
FAULTY = {
    "answers left out": (
        "leaves running answers out while a prompt is read",
        "rows = [[request.id, 1] for request in answering]",
        "rows = [[request.id, 1] for request in answering if not prompts]",
    ),
    "whole prompts": (
        "computes a whole prompt in one step",
        "num_tokens = min(request.num_left, budget)\n            if num_tokens > 0:",
        "num_tokens = request.num_left\n            if budget > 0:",
    ),
    "a victim's row": (
        "gives a row to a victim",
        "return self._rows(answering, prompts), [",
        "return self._rows([*answering, *victims], prompts), [",
    ),
}


SUBJECTS = Subjects(LAB, "lab2-setup", "lab2-planner", "StepPlanner", FAULTY)


def make_planner(
    planner_class: type, token_budget: Any = None, max_running: Any = None, max_bypasses: Any = None
) -> dict[str, Any]:
    """A fresh planner, if the contract allows these values."""
    for value in (token_budget, max_running, max_bypasses):
        if type(value) is not int or not 0 <= value <= 10**6:
            raise RemoteError("ValueError", f"a whole number, not {str(value)[:40]}")
    if not token_budget > max_running >= 1:
        raise RemoteError("ValueError", "token_budget must be larger than max_running")
    return {"planner": planner_class(token_budget, max_running, max_bypasses)}


INTERFACE = Interface(MAKE, make_planner, METHODS, {})
