"""The capstone's submissions, each with the score vector that was written before it was graded.

A vector is (tail 3, cost 3, gate 3, classes 3, choice 3, regression 3). A submission is an edit of
a notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Submission
from autograder.scoring.capstone.subjects import LAB

FULL = (3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

BANK = Bank(LAB, setup="capstone-setup", answers=("capstone-calculator", "capstone-regression"))
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
                edited(
                    ("percentile(values, 0.95) if values else None", "tail_of(values)"),
                    ("reasons = set()", "reasons = set()\n        print('the gate')"),
                ),
                "%matplotlib inline\nimport sys\nprint('noise', file=sys.stderr)",
            ),
            "def tail_of(values):\n    return percentile(values, 0.95) if values else None\n",
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
    from autograder.bank.capstone.hostile import HOSTILE
    from autograder.bank.capstone.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
