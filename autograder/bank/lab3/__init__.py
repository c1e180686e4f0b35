"""Lab 3's submissions, each with the score vector that was written by hand before it was graded.

A vector is (returned 4, exact 4, storm 3, others 3, regression 3). A submission is an edit of a
notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank, planting
from autograder.bank.base import Bank, Submission, set_source
from autograder.notebooks import source_cells
from autograder.scoring.lab3.subjects import AT_CANCEL, LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0)

BANK = Bank(LAB, setup="lab3-setup", answers=("lab3-engine", "lab3-regression"))
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
                edited((AT_CANCEL, "        give_back(self, request)\n")),
                "%matplotlib inline\nimport sys\nprint('hello')\nprint('noise', file=sys.stderr)",
            ),
            "def give_back(engine, request):\n"
            "    if request.id not in engine.step:\n"
            "        engine.pool.release(list(request.blocks))\n",
        ),
        FULL,
    ),
    row("untouched release", released, NONE, through_nbgrader=True),
    *(
        row(
            f"untouched variant {variant}",
            lambda variant=variant: set_source(
                released(),
                "lab3-engine",
                planting.plant(source_cells(LAB)["lab3-engine"], variant),
            ),
            NONE,
        )
        for variant in "bc"
    ),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab3.hostile import HOSTILE
    from autograder.bank.lab3.wrong import WRONG

    return [*RIGHT, *WRONG, *HOSTILE]
