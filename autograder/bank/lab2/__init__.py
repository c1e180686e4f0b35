"""Lab 2's submissions, each with the score vector that was written by hand before it was graded.

A vector is (gap 4, budget 4, fair 3, memory 3, regression 3, bonus 1). A submission is an edit of
a notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Submission
from autograder.scoring.lab2.subjects import LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

BANK = Bank(LAB, setup="lab2-setup", answers=("lab2-planner", "lab2-regression", "lab2-bonus"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row, solved_but = BANK.own_cell, BANK.row, BANK.solved_but


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
            own_cell(
                edited(("        return rows", "        return in_order(rows)")),
                "%matplotlib inline\nimport sys\nprint('hello')\nprint('noise', file=sys.stderr)",
            ),
            "def in_order(rows):\n    return tuple(sorted(map(tuple, rows)))\n",
        ),
        FULL,
    ),
    row("untouched release", released, NONE, through_nbgrader=True),
    *(
        row(f"untouched variant {variant}", lambda variant=variant: released(variant), NONE)
        for variant in "bc"
    ),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab2.hostile import HOSTILE
    from autograder.bank.lab2.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
