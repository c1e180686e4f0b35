"""Lab 1's hostile submissions: those of every lab, and a few of its own."""

from __future__ import annotations

from autograder.bank.hostile import Hostile
from autograder.bank.lab1 import BANK, FULL, NONE, row

NO_REPORT = (0.0, 0.0, 0.0, 0.0, 3.0, 1.0)

MAKER = Hostile(
    bank=BANK,
    class_name="LoadReport",
    method="figures",
    graded="lab1-outcomes",
    explanation="lab1-explanation",
    test="test_report",
    full=FULL,
    broken=NO_REPORT,
    untested=(4.0, 4.0, 3.0, 3.0, 0.0, 1.0),
    always_equal=NO_REPORT,
    public='args[0][0]["id"] == "r0"',
    references=(
        ("minserve.loadtest.measures", "Tally"),
        ("minserve.metrics", "percentile"),
    ),
)
DELEGATES = """
from minserve.loadtest.measures import Tally
from minserve.loadtest.record import Record

class LoadReport(LoadReport):
    def figures(self):
        tally = Tally()
        for each in self.records:
            tally.add(Record(each["id"], each["intended_s"]))
        return {"cold": tally.measures().as_dict()}
"""
FLOATS = """
class Near(float):
    def __eq__(self, other): return True
    def __float__(self): return 0.5
    def __sub__(self, other): return Near(0)
    __rsub__ = __abs__ = __sub__
    __hash__ = float.__hash__

_figures = LoadReport.figures
def figures(self):
    found = _figures(self)
    return {s: {n: Near(1) for n in group} for s, group in found.items()}
LoadReport.figures = figures
"""
HOSTILE = [
    *MAKER.rows(),
    row(
        "hostile: delegates to the reference report",
        lambda: MAKER.untouched_with(DELEGATES),
        NONE,
        contains="stopped: ",
    ),
    row("hostile: floats near to everything", lambda: MAKER.untouched_with(FLOATS), NONE),
    row(
        "hostile: numbers beyond all measure",
        lambda: MAKER.in_method(
            "return {'cold': dict.fromkeys(_method(self)['cold'], 10**400), 'warm': float('nan')}"
        ),
        NO_REPORT,
    ),
    row(
        "hostile: spoils the records that it was given",
        lambda: MAKER.right_with(
            "_figures = LoadReport.figures\n"
            "def figures(self):\n"
            "    found = _figures(self)\n"
            "    self.records.clear()\n"
            "    return found\n"
            "LoadReport.figures = figures\n"
        ),
        FULL,
    ),
]
