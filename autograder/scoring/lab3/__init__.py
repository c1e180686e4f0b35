"""Lab 3: the cancellation leak."""

from __future__ import annotations

import random

from autograder.scoring import regression
from autograder.scoring.base import Cell, Lab, Session
from autograder.scoring.lab3 import subjects
from autograder.scoring.lab3.advice import ADVICE
from autograder.scoring.lab3.stories import STORIES, TOKENS
from autograder.scoring.lab3.world import CLASS, World
from autograder.scoring.stories import kinds_of, player


def make_world(session: Session, rng: random.Random):
    size = rng.choice((2, 4, 8))
    return lambda: World(session, TOKENS // size, size)


play_cell = player(STORIES, make_world, ADVICE)
play_regression = regression.scorer("test_cancellation", subjects)

LAB = Lab(
    name="lab3_cancellation_leak",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab3-returned", 4.0, "blocks of a cancelled request come back", play_cell),
        Cell("lab3-exact", 4.0, "a step keeps its blocks; each goes back once", play_cell),
        Cell("lab3-storm", 3.0, "after a storm all capacity is back", play_cell),
        Cell("lab3-others", 3.0, "nobody else notices", play_cell),
        Cell("lab3-regression-check", 3.0, "your regression test", play_regression),
    ),
    setup=("lab3-setup",),
    solutions=("lab3-engine", "lab3-regression"),
    required=(CLASS,),
    manual={"lab3-explanation": 3.0},
    kinds={
        **kinds_of(STORIES),
        "lab3-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
    },
)
