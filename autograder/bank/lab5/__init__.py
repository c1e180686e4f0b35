"""Lab 5's submissions, each with the score vector that was written by hand before it was graded.

A vector is (scope 4, key 4, fresh 3, gate 3, regression 3, bonus 1). A submission is an edit of a
notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Submission
from autograder.scoring.lab5.subjects import LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0, 1.0)

BANK = Bank(LAB, setup="lab5-setup", answers=("lab5-cache", "lab5-regression", "lab5-bonus"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row, solved_but = BANK.own_cell, BANK.row, BANK.solved_but

DIGEST = "        return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()\n"


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
                edited((DIGEST, "        return named(form)\n")), "%matplotlib inline\nprint(1)"
            ),
            "def named(form):\n    return repr(sorted(form.items()))\n",
        ),
        FULL,
    ),
    row("untouched release", released, NONE, through_nbgrader=True),
    *(row(f"untouched variant {v}", lambda v=v: released(v), NONE) for v in "bc"),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab5.hostile import HOSTILE
    from autograder.bank.lab5.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
