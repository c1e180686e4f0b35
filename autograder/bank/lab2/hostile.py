"""Lab 2's hostile submissions: those of every lab, and a few of its own."""

from __future__ import annotations

from autograder.bank.hostile import Hostile
from autograder.bank.lab2 import BANK, FULL, NONE, row

NO_PLANNER = (0.0, 0.0, 0.0, 0.0, 3.0, 1.0)

MAKER = Hostile(
    bank=BANK,
    class_name="StepPlanner",
    method="plan",
    graded="lab2-fair",
    explanation="lab2-explanation",
    test="test_planner",
    full=FULL,
    broken=NO_PLANNER,
    untested=(4.0, 4.0, 3.0, 3.0, 0.0, 1.0),
    always_equal=NO_PLANNER,
    public="args[0] in (32, 256)",
    references=(
        ("minserve.scheduling.batching", "ContinuousBatching"),
        ("minserve.scheduling.scheduler", "Scheduler"),
    ),
)
# The reference, typed in: it decides rows, but not who makes room, and it is asked otherwise.
PASTED = """
from minserve.scheduling.batching import ContinuousBatching, Snapshot

class StepPlanner(ContinuousBatching):
    def plan(self, running, waiting, num_free_blocks):
        decision = self.decide(Snapshot(0.0, running, waiting, num_free_blocks, len, len))
        return decision.run, decision.victims
"""
SPOILED_VIEWS = """
_plan = StepPlanner.plan
def plan(self, running, waiting, num_free_blocks):
    for each in [*running, *waiting]:
        each.update(num_left=1, is_answering=True, num_new_blocks=0, num_bypasses=10**9)
    running.clear()
    return _plan(self, [], waiting, 10**9)
StepPlanner.plan = plan
"""
HOSTILE = [
    *MAKER.rows(),
    row(
        "hostile: delegates to the reference policy",
        lambda: MAKER.untouched_with(PASTED),
        NONE,
        contains="stopped: ",
    ),
    row(
        "hostile: spoils what it is given",
        lambda: MAKER.untouched_with(SPOILED_VIEWS),
        NONE,
    ),
    row(
        "hostile: a plan without end",
        lambda: MAKER.in_method("return [['a0', 1]] * 10**6, []"),
        NO_PLANNER,
        status="tampered",
    ),
    row(
        "hostile: numbers beyond all measure",
        lambda: MAKER.in_method("return [[each['id'], 10**400] for each in args[1]], []"),
        NO_PLANNER,
    ),
    row(
        "hostile: a bonus that equals everything",
        lambda: MAKER.untouched_with(
            "class Always(int):\n    def __eq__(self, other): return True\n"
            "    def __index__(self): return self\n"
            "def largest_budget(*args): return Always(1)\n"
        ),
        NONE,
    ),
]
