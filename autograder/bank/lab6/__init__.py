"""Lab 6's submissions, each with the score vector that was written by hand before it was graded.

A vector is (once 4, accepted 3, lease 4, poison 3, regression 3, bonus 1). A submission is an edit
of a notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Submission
from autograder.scoring.lab6.subjects import LAB

FULL = (4.0, 3.0, 4.0, 3.0, 3.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0, 1.0)

BANK = Bank(LAB, setup="lab6-setup", answers=("lab6-queue", "lab6-regression", "lab6-bonus"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row, solved_but = BANK.own_cell, BANK.row, BANK.solved_but

KEY = 'f"{job_id} {name}"'


# -- right ways and the untouched release

RIGHT = [
    row("right: the solution", solved, FULL, through_nbgrader=True),
    *(
        row(f"right: {name}", lambda source=source: solved(source), FULL)
        for name, source in bank.right_sources(LAB).items()
    ),
    row(
        "right: a ledger key of each attempt, in one commit with the end",
        lambda: edited((KEY, 'f"{job_id} {token} {name}"')),
        FULL,
    ),
    row(
        "right: a helper in a cell of its own, magics, prints",
        lambda: own_cell(
            own_cell(edited((KEY, "key_of(job_id, name)")), "%matplotlib inline\nprint(1)"),
            "def key_of(*parts):\n    return json.dumps(parts)\n",
        ),
        FULL,
    ),
    row("untouched release", released, NONE, through_nbgrader=True),
    *(row(f"untouched variant {v}", lambda v=v: released(v), NONE) for v in "bc"),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab6.hostile import HOSTILE
    from autograder.bank.lab6.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
