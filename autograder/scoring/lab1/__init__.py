"""Lab 1: the load report that lies."""

from __future__ import annotations

import math
import random

from autograder.harness import Raised, refuse
from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, CellScore, Finding, Lab, Open, Session
from autograder.scoring.lab1 import subjects
from autograder.scoring.lab1.advice import ADVICE
from autograder.scoring.lab1.stories import STORIES
from autograder.scoring.lab1.world import CLASS, World
from autograder.scoring.stories import kinds_of, note, player

BONUS = "lab1-bonus-check"


def make_world(session: Session, rng: random.Random):
    return lambda: World(session, rng)


play_cell = player(STORIES, make_world, ADVICE)
play_regression = regression.scorer("test_report", subjects)


def play_bonus(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    with open_child() as session:
        for _ in range(6):
            share, confidence = rng.randint(500, 990) / 1000, rng.choice((0.9, 0.95, 0.975, 0.99))
            due = math.ceil(math.log(1 - confidence) / math.log(share))
            try:
                session.new("samples_needed", [share, confidence], refuse)
                told = session.call("__index__", [], refuse)  # an int stays one, a float has none
            except Raised as error:
                finding = Finding("raised", f"{error}, {error.place}")
            else:
                if type(told) is int and told == due:
                    continue
                finding = Finding("samples")
            note(scored, finding, False, ADVICE)


LAB = Lab(
    name="lab1_load_report",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab1-tokens", 4.0, "a token is a token", play_cell),
        Cell("lab1-tail", 4.0, "the tail is everybody's, from when they asked", play_cell),
        Cell("lab1-outcomes", 3.0, "failures never make a report look better", play_cell),
        Cell("lab1-disclosure", 3.0, "what was run is said", play_cell),
        Cell("lab1-regression-check", 3.0, "your regression test", play_regression),
        Cell(BONUS, 1.0, "bonus: how many samples a tail needs", play_bonus),
    ),
    setup=("lab1-setup",),
    solutions=("lab1-report", "lab1-regression", "lab1-bonus"),
    required=(CLASS,),
    manual={"lab1-explanation": 3.0},
    kinds={
        **kinds_of(STORIES),
        "lab1-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
        BONUS: ("samples",),
    },
    # The reference report, minserve.loadtest, is not there to be called.
    limits=Limits(shared=("__init__.py", "errors.py"), session_s=180.0),
    bonus=(BONUS,),
)
