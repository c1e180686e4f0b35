"""Lab 4's submissions, each with the score vector that was written by hand before it was graded.

A vector is (salt 4, exact 4, computed 3, channel 3, regression 3, bonus 1). A submission is an edit
of a notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Notebook, Submission
from autograder.scoring.lab4.subjects import LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0, 1.0)

BANK = Bank(LAB, setup="lab4-setup", answers=("lab4-cache", "lab4-regression", "lab4-bonus"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row, solved_but = BANK.own_cell, BANK.row, BANK.solved_but

ROOT = 'parent = json.dumps({"salt": request["salt"], "adapter": request["adapter"]})'
PREFIX = 'return [request["salt"], request["adapter"], request["tokens"][:end]]'


def rooted(who: str) -> Notebook:
    """The solution, with another expression for who shares a first block, wherever it counts."""
    return edited(
        (ROOT, f"parent = json.dumps({who})"),
        (PREFIX, f'return [{who}, request["tokens"][:end]]'),
    )


# -- right ways and the untouched release

RIGHT = [
    row("right: the solution", solved, FULL, through_nbgrader=True),
    *(
        row(f"right: {name}", lambda source=source: solved(source), FULL)
        for name, source in bank.right_sources(LAB).items()
    ),
    row(
        "right: a helper in a cell of its own, magics, prints",
        lambda: own_cell(
            own_cell(edited((ROOT, "parent = who(request)")), "%matplotlib inline\nprint(1)"),
            'def who(request):\n    return repr((request["salt"], request["adapter"]))\n',
        ),
        FULL,
    ),
    row("untouched release", released, NONE, through_nbgrader=True),
    *(row(f"untouched variant {v}", lambda v=v: released(v), NONE) for v in "bc"),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab4.hostile import HOSTILE
    from autograder.bank.lab4.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
