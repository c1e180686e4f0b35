"""Lab 3's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder import planting
from autograder.bank.base import set_source
from autograder.bank.lab3 import REGRESSION_ONLY, edited, row, solved, solved_but
from autograder.notebooks import source_cells
from autograder.scoring.lab3.subjects import AT_CANCEL, LAB

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
        lambda: solved_but("lab3-regression"),
        (4, 4, 3, 3, 0),
    ),
    row(
        "partial: untouched engine, right test",
        lambda: solved_but("lab3-engine"),
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
