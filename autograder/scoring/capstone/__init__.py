"""The capstone: the Northstar efficiency plan."""

from __future__ import annotations

import random

from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, Lab, Session
from autograder.scoring.capstone import subjects
from autograder.scoring.capstone.advice import ADVICE
from autograder.scoring.capstone.stories import STORIES
from autograder.scoring.capstone.world import CLASS, World
from autograder.scoring.stories import kinds_of, player


def make_world(session: Session, rng: random.Random):
    return lambda: World(session, rng)


play_cell = player(STORIES, make_world, ADVICE)
play_regression = regression.scorer("test_plan", subjects)

LAB = Lab(
    name=subjects.LAB,
    variants=("a", "b", "c"),
    cells=(
        Cell("capstone-tail", 3.0, "the tail and the deadlines, as users had them", play_cell),
        Cell("capstone-cost", 3.0, "what a right answer costs", play_cell),
        Cell("capstone-gate", 3.0, "no lower quality, no leak, no weaker check", play_cell),
        Cell("capstone-classes", 3.0, "what may be done with which work", play_cell),
        Cell("capstone-choice", 3.0, "the choice among what was measured", play_cell),
        Cell("capstone-regression-check", 3.0, "your regression test", play_regression),
    ),
    setup=("capstone-setup",),
    solutions=("capstone-calculator", "capstone-regression"),
    required=(CLASS,),
    manual={"capstone-document": 7.0},
    kinds={
        **kinds_of(STORIES),
        "capstone-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
    },
    # The project's own gate and metrics are not there to be called.
    limits=Limits(shared=("__init__.py", "errors.py"), session_s=180.0),
)
