"""Lab 1's submissions, each with the score vector that was written by hand before it was graded.

A vector is (tokens 4, tail 4, outcomes 3, disclosure 3, regression 3, bonus 1). A submission is an
edit of a notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank
from autograder.bank.base import Bank, Submission
from autograder.scoring.lab1.subjects import LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0, 1.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

BANK = Bank(LAB, setup="lab1-setup", answers=("lab1-report", "lab1-regression", "lab1-bonus"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row, solved_but = BANK.own_cell, BANK.row, BANK.solved_but


# -- right ways and the untouched release

FIRST = 'next(chunk["time_s"] for chunk in record["chunks"] if chunk["num_tokens"] > 0)'
LAST = 'max(chunk["time_s"] for chunk in record["chunks"] if chunk["num_tokens"] > 0)'

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
                edited((FIRST, "tokens_of(record)[0]"), (LAST, "tokens_of(record)[-1]")),
                "%matplotlib inline\nimport sys\nprint('hello')\nprint('noise', file=sys.stderr)",
            ),
            "def tokens_of(record):\n"
            "    return [each['time_s'] for each in record['chunks'] if each['num_tokens']]\n",
        ),
        FULL,
    ),
    row(
        "right: a bonus by logarithms",
        lambda: solved_but(
            "lab1-bonus",
            "def samples_needed(share, confidence):\n"
            "    return math.ceil(math.log(1 - confidence) / math.log(share))",
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
    from autograder.bank.lab1.hostile import HOSTILE
    from autograder.bank.lab1.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
