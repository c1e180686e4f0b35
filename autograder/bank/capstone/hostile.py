"""The capstone's hostile submissions: those of every lab, and a few of its own."""

from __future__ import annotations

from autograder.bank.capstone import BANK, FULL, NONE, row, solved_but
from autograder.bank.hostile import Hostile
from autograder.notebooks import REPOSITORY

NO_PLAN = (0.0, 0.0, 0.0, 0.0, 0.0, 3.0)

MAKER = Hostile(
    bank=BANK,
    class_name="EfficiencyPlan",
    method="__init__",
    graded="capstone-cost",
    explanation="capstone-document",
    test="test_plan",
    full=FULL,
    broken=NO_PLAN,
    untested=(3.0, 3.0, 3.0, 3.0, 3.0, 0.0),
    always_equal=NO_PLAN,
    public="args[0] == 0.1",
    references=(
        ("minserve.cli.gate", "compare"),
        ("minserve.metrics", "summarise"),
    ),
)
METHODS = ("figures", "gate", "classify", "recommend")
ALWAYS = """
class Always(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __bool__(self): return True
    def get(self, *args): return self
    def keys(self): return self
    __hash__ = str.__hash__
"""
NEAR = """
class Near(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return Near(0)
    __rsub__ = __abs__ = __sub__
    __hash__ = float.__hash__

_figures = EfficiencyPlan.figures
def figures(self, *args):
    found = _figures(self, *args)
    tables = {n: {c: Near(1) for c in t} for n, t in found.items() if isinstance(t, dict)}
    return {**dict.fromkeys(found, Near(1)), **tables}
EfficiencyPlan.figures = figures
"""
DELEGATES = """
try:
    from minserve.cli.gate import compare
    EfficiencyPlan.gate = lambda self, base, new: list(compare(base, new))
except ImportError:
    pass
"""


def pasted():
    """The project's own gate, under the class's name."""
    text = (REPOSITORY / "minserve" / "cli" / "gate.py").read_text("utf-8")
    lines = [line for line in text.split("\n") if "import" not in line or "typing" in line]
    source = "\n".join(lines) + "\nclass EfficiencyPlan:\n    gate = staticmethod(compare)\n"
    return solved_but("capstone-calculator", source)


def from_every(method: str, code: str):
    """The untouched class, with one method that returns what `code` makes."""
    return MAKER.untouched_with(f"{ALWAYS}\nEfficiencyPlan.{method} = lambda self, *args: {code}")


HOSTILE = [
    *MAKER.rows(),
    *(
        row(
            f"hostile: {method} equals everything",
            lambda method=method: from_every(method, "Always('leak')"),
            NONE,
        )
        for method in METHODS
    ),
    row("hostile: floats near to everything", lambda: MAKER.untouched_with(NEAR), NONE),
    row("hostile: delegates where it can", lambda: MAKER.untouched_with(DELEGATES), NONE),
    row("hostile: a pasted reference", pasted, NO_PLAN, status="crashed"),
    row(
        "hostile: all reasons at once",
        lambda: from_every("gate", "['authorisation', 'leak', 'quality']"),
        NONE,
    ),
    row(
        "hostile: no reason at all, and the first variant",
        lambda: MAKER.untouched_with(
            "EfficiencyPlan.gate = lambda self, *args: []\n"
            "EfficiencyPlan.recommend = lambda self, variants: variants[0]['name']"
        ),
        NONE,
    ),
    row(
        "hostile: spoils the records that it was given",
        lambda: MAKER.right_with(
            "_figures = EfficiencyPlan.figures\n"
            "def figures(self, records, rented_s):\n"
            "    found = _figures(self, records, rented_s)\n"
            "    records.clear()\n"
            "    return found\n"
            "EfficiencyPlan.figures = figures\n"
        ),
        FULL,
    ),
]
