"""Lab 3's submissions, each with the score vector that was written by hand before it was graded.

A vector is (returned 4, exact 4, storm 3, others 3, regression 3). A submission is an edit of a
notebook: the solution's or the untouched release's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autograder import bank, planting
from autograder.notebooks import source_cells
from autograder.scoring.lab3_subjects import AT_CANCEL, LAB

FULL = (4.0, 4.0, 3.0, 3.0, 3.0)
NONE = (0.0, 0.0, 0.0, 0.0, 0.0)
REGRESSION_ONLY = (0.0, 0.0, 0.0, 0.0, 3.0)

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Submission:
    """`files` maps names in the learner's folder to bytes, or to a link's target as text."""

    name: str
    files: Callable[[], dict[str, bytes | str]]
    expected: tuple[float, ...] | None  # None: no score may exist
    status: str = "graded"
    through_nbgrader: bool = False
    contains: str = ""  # words that must stand in the notes or feedback


# -- making notebooks


def released() -> Notebook:
    from autograder.notebooks import LABS, path_in

    return json.loads(path_in(LABS, LAB).read_text("utf-8"))


def cell(notebook: Notebook, name: str) -> dict[str, Any]:
    (found,) = [cell for cell in notebook["cells"] if cell["id"] == name]
    return found


def set_source(notebook: Notebook, name: str, source: str) -> Notebook:
    cell(notebook, name)["source"] = source
    return notebook


def solved(engine: str | None = None) -> Notebook:
    """The released notebook with the solution, or with another engine, filled in."""
    notebook = released()
    for name in ("lab3-engine", "lab3-regression"):
        set_source(notebook, name, planting.plant(source_cells(LAB)[name], None))
    if engine is not None:
        set_source(notebook, "lab3-engine", engine)
    return notebook


def edited(*edits: tuple[str, str]) -> Notebook:
    """The solved notebook with pieces of the engine replaced; each piece must stand there once."""
    source = planting.plant(source_cells(LAB)["lab3-engine"], None)
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"the solution has changed: {old!r}")
        source = source.replace(old, new)
    return solved(source)


def own_cell(notebook: Notebook, source: str, first: bool = True) -> Notebook:
    """Add a cell of the learner's own, right after the imports or at the end."""
    at = [c["id"] for c in notebook["cells"]].index("lab3-setup") + 1 if first else 10_000
    made = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
    notebook["cells"].insert(at, made | {"execution_count": None, "id": f"own{len(source)}"})
    return notebook


def as_file(make: Callable[[], Notebook], name: str = f"{LAB}.ipynb") -> Callable[[], dict]:
    return lambda: {name: json.dumps(make()).encode()}


def row(
    name: str, make: Callable[[], Notebook], expected: tuple[float, ...] | None, **more: Any
) -> Submission:
    return Submission(name, as_file(make), expected, **more)


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
        contains="correct engine",
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
