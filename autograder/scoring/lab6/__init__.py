"""Lab 6: paid twice."""

from __future__ import annotations

import random

from autograder.harness import Raised, refuse
from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, CellScore, Finding, Lab, Open, Session
from autograder.scoring.lab6 import subjects
from autograder.scoring.lab6.advice import ADVICE
from autograder.scoring.lab6.stories import CRASHES, STORIES
from autograder.scoring.lab6.world import CLASS, World, draw
from autograder.scoring.stories import findings, kinds_of, note, play_stories


def make_world(session: Session, rng: random.Random):
    setting = draw(rng)
    return lambda: World(session, setting)


def play_cell(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    with open_child() as session:
        play_stories(scored, session, rng, STORIES[scored.grade_id], make_world, ADVICE)
        if story := CRASHES.get(scored.grade_id):
            for finding in findings(make_world(session, rng), story.play, rng):
                if finding.kind in (*story.counts, "raised"):
                    note(scored, finding, False, ADVICE)


play_regression = regression.scorer("test_delivery", subjects)


def play_bonus(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """Waits after early, late and absurdly late attempts, told by the bank or not."""
    with open_child() as session:
        for attempt in (1, 2, rng.randint(3, 6), rng.randint(20, 60), 5000):
            for told_s in (None, 0, rng.randint(1, 90)):
                share, base_s = rng.random(), rng.uniform(0.5, 4)
                cap_s = base_s * rng.uniform(5, 50)
                due_s = (told_s or 0) + share * min(cap_s, base_s * 2 ** min(attempt - 1, 99))
                try:
                    session.new("wait_s", [attempt, share, base_s, cap_s, told_s], refuse)
                    said_s = session.call("__float__", [], refuse)
                except Raised as error:
                    note(scored, Finding("raised", f"{error}, {error.place}"), False, ADVICE)
                    continue
                if type(said_s) is not float or not abs(said_s - due_s) <= 1e-6 * (1 + due_s):
                    note(scored, Finding("waits"), False, ADVICE)


BONUS = "lab6-bonus-check"
LONG = {cell: (story,) for cell, story in CRASHES.items()}

LAB = Lab(
    name=subjects.LAB,
    variants=("a", "b", "c"),
    cells=(
        Cell("lab6-once", 4.0, "payments once and whole, wherever it is killed", play_cell),
        Cell("lab6-accepted", 3.0, "nothing that was accepted is lost", play_cell),
        Cell("lab6-lease", 4.0, "who holds a job, and who no longer does", play_cell),
        Cell("lab6-poison", 3.0, "a job that kills its workers ends among the dead", play_cell),
        Cell("lab6-regression-check", 3.0, "your regression test", play_regression),
        Cell(BONUS, 1.0, "bonus: when to try again", play_bonus),
    ),
    setup=("lab6-setup",),
    solutions=("lab6-queue", "lab6-regression", "lab6-bonus"),
    required=(CLASS,),
    manual={"lab6-explanation": 3.0},
    kinds={
        **kinds_of({cell: (*each, *LONG.get(cell, ())) for cell, each in STORIES.items()}),
        "lab6-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
        BONUS: ("waits",),
    },
    bonus=(BONUS,),
    limits=Limits(shared=("__init__.py", "errors.py", "clock.py")),  # no jobs, no leases
)
