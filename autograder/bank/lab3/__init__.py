"""Lab 3's submissions, each with the score vector that was written by hand before it was graded.

A vector is (returned 4, exact 4, storm 3, others 3, regression 3). A submission is an edit of a
notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

from autograder import bank, planting
from autograder.bank.base import Bank, Submission, cell, set_source
from autograder.notebooks import source_cells
from autograder.scoring.lab3.subjects import AT_CANCEL, LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0)

BANK = Bank(LAB, setup="lab3-setup", answers=("lab3-engine", "lab3-regression"))
released, solved, edited = BANK.released, BANK.solved, BANK.edited
own_cell, row = BANK.own_cell, BANK.row


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

# -- wrong and partial fixes, each with the solution's regression test

COLLECT = "                self.pool.release(list(request.blocks))\n                continue\n"
END = '                    self.emit("finished", request_id, "length")\n'
GUARD = "        if request is None or request.reason is not None:\n            return False\n"
DEQUEUE = "        (self.running if request in self.running else self.waiting).remove(request)\n"
RELEASE = "self.pool.release(list(request.blocks))"

WRONG = [
    row(
        "wrong: releases at once, even in flight",
        lambda: edited(
            (AT_CANCEL, f"        {RELEASE}\n        request.blocks = ()\n"),
        ),
        (4, 0, 3, 3, 3),
        contains="still computed",
        through_nbgrader=True,
    ),
    row(
        "wrong: releases in flight and again when collected",
        lambda: edited((AT_CANCEL, f"        {RELEASE}\n")),
        (4, 0, 0, 0, 3),
    ),
    row(
        "wrong: in flight is never given back",
        lambda: edited((COLLECT, "                continue\n")),
        (4, 0, 0, 3, 3),
        contains="never came back",
    ),
    row(
        "wrong: a prompt's blocks are still stranded",
        lambda: edited(
            (AT_CANCEL, AT_CANCEL.replace("self.step:", "self.step and request.num_output:"))
        ),
        (0, 4, 0, 3, 3),
    ),
    row(
        "wrong: an answer's blocks are still stranded",
        lambda: edited(
            (AT_CANCEL, AT_CANCEL.replace("self.step:", "self.step and not request.num_output:"))
        ),
        (0, 4, 0, 3, 3),
    ),
    row(
        "wrong: any step in flight delays the release for ever",
        lambda: edited((AT_CANCEL, f"        if not self.step:\n            {RELEASE}\n")),
        (0, 4, 0, 3, 3),
    ),
    row(
        "wrong: cancelling again releases again",
        lambda: edited(
            (
                GUARD,
                GUARD.replace(
                    "            return",
                    "            if request is not None and request_id not in self.step:\n"
                    f"                {RELEASE}\n            return",
                ),
            )
        ),
        (4, 0, 0, 0, 3),
        contains="no longer owned",
    ),
    row(
        "wrong: swallows the pool's error instead",
        lambda: edited(
            (
                GUARD,
                GUARD.replace(
                    "            return",
                    "            try:\n"
                    "                self.pool.release(list(request.blocks))\n"
                    "            except (AttributeError, BlockError):\n"
                    "                pass\n            return",
                ),
            )
        ),
        (4, 0, 0, 0, 3),
    ),
    row(
        "wrong: forgets those who wait",
        lambda: edited(
            (GUARD, GUARD + "        if request in self.waiting:\n            return False\n")
        ),
        (2, 4, 0, 3, 3),
        contains="waited",
    ),
    row(
        "wrong: tokens after cancel",
        lambda: edited(
            (
                COLLECT,
                COLLECT.replace(
                    "                continue",
                    "                if request_id in token_ids:\n"
                    '                    self.emit("token", request_id, token_ids[request_id])\n'
                    "                continue",
                ),
            )
        ),
        (4, 4, 3, 1, 3),
        contains="terminal event",
    ),
    row(
        "wrong: two terminal events",
        lambda: edited(
            (
                COLLECT,
                '                self.emit("finished", request_id, "cancelled")\n' + COLLECT,
            )
        ),
        (4, 4, 3, 1, 3),
    ),
    row(
        "wrong: no terminal event",
        lambda: edited(('        self.emit("finished", request_id, "cancelled")\n', "")),
        (4, 4, 3, 1, 3),
    ),
    row(
        "wrong: always says True",
        lambda: edited((GUARD, GUARD.replace("False", "True"))),
        (4, 2, 3, 3, 3),
    ),
    row(
        "wrong: says 1 for True",
        lambda: edited(("        return True", "        return 1")),
        (2, 2, 3, 3, 3),
    ),
    row(
        "wrong: cancelling drops the whole step",
        lambda: edited(
            (
                AT_CANCEL,
                AT_CANCEL + "        elif len(self.step) > 1:\n"
                "            self.step = {request_id: self.step[request_id]}\n",
            )
        ),
        (4, 4, 3, 0, 3),
        contains="cancelled nothing",
    ),
    row(
        "wrong: one request at a time",
        lambda: edited(
            ("        while self.waiting:\n", "        while self.waiting and not self.running:\n")
        ),
        (4, 4, 1, 3, 3),
    ),
    row(
        "wrong: cancel does nothing",
        lambda: edited((DEQUEUE, "        return True\n" + DEQUEUE)),
        (0, 0, 0, 0, 3),
    ),
    row(
        "partial: right engine, untouched test",
        lambda: set_source(
            solved(), "lab3-regression", "".join(cell(released(), "lab3-regression")["source"])
        ),
        (4, 4, 3, 3, 0),
    ),
    row(
        "partial: untouched engine, right test",
        lambda: set_source(
            solved(), "lab3-engine", "".join(cell(released(), "lab3-engine")["source"])
        ),
        REGRESSION_ONLY,
        through_nbgrader=True,
    ),
    row(
        "partial: a test that always fails",
        lambda: set_source(
            solved(), "lab3-regression", "def test_cancellation(make_engine):\n    assert False"
        ),
        (4, 4, 3, 3, 0),
        contains="correct implementation",
    ),
    row(
        "partial: a test of the prompt's stage alone",
        lambda: set_source(
            solved(),
            "lab3-regression",
            "def test_cancellation(make_engine):\n"
            "    engine, pool, events = make_engine(num_blocks=8)\n"
            "    engine.submit('a', 12, 4)\n"
            "    engine.begin_step(token_budget=4)\n"
            "    engine.finish_step({})\n"
            "    engine.cancel('a')\n"
            "    assert pool.num_free == 8",
        ),
        (4, 4, 3, 3, 1),
    ),
    row(
        "partial: a test that asks what nobody promised",
        lambda: set_source(
            solved(),
            "lab3-regression",
            planting.plant(source_cells(LAB)["lab3-regression"], None)
            + "    assert engine.requests['a'].blocks == ()\n",
        ),
        (4, 4, 3, 3, 0),
    ),
]


def all_submissions() -> list[Submission]:
    from autograder.bank.lab3.hostile import HOSTILE

    return [*RIGHT, *WRONG, *HOSTILE]
