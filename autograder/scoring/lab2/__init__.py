"""Lab 2: the long-prompt burst."""

from __future__ import annotations

import random

from autograder.harness import Raised, refuse
from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, CellScore, Finding, Lab, Open, Session
from autograder.scoring.lab2 import subjects
from autograder.scoring.lab2.advice import ADVICE
from autograder.scoring.lab2.stories import STORIES
from autograder.scoring.lab2.world import CLASS, World
from autograder.scoring.stories import kinds_of, note, player

BONUS = "lab2-bonus-check"


def make_world(session: Session, rng: random.Random):
    budget, running = rng.choice((48, 64, 96)), rng.choice((18, 20, 24))
    bypasses, size = rng.randint(2, 5), rng.choice((6, 8))
    return lambda: World(session, budget, running, bypasses, size)


play_cell = player(STORIES, make_world, ADVICE)
play_regression = regression.scorer("test_planner", subjects)


def play_bonus(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """Budgets that exist, among them one that divides evenly, and limits that none keeps."""
    with open_child() as session:
        for case in range(6):
            base_us, token_us, running = rng.randint(1, 20) * 1000, rng.randint(50, 400), 32
            tokens = rng.randint(33, 900) if case < 4 else rng.choice((0, 31, 32))
            gap_us = base_us + tokens * token_us + (rng.randrange(token_us) if case else 0)
            due = tokens if tokens > running else 0
            try:
                session.new("largest_budget", [gap_us, base_us, token_us, running], refuse)
                told = session.call("__index__", [], refuse)  # an int stays one, a float has none
            except Raised as error:
                finding = Finding("raised", f"{error}, {error.place}")
            else:
                if type(told) is int and told == due:
                    continue
                finding = Finding("budget")
            note(scored, finding, False, ADVICE)


LAB = Lab(
    name="lab2_long_prompt_burst",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab2-gap", 4.0, "answers never wait for a long prompt", play_cell),
        Cell("lab2-budget", 4.0, "the token budget is kept, and used", play_cell),
        Cell("lab2-fair", 3.0, "nobody starves", play_cell),
        Cell("lab2-memory", 3.0, "the right ones make room", play_cell),
        Cell("lab2-regression-check", 3.0, "your regression test", play_regression),
        Cell(BONUS, 1.0, "bonus: the largest budget that keeps a gap", play_bonus),
    ),
    setup=("lab2-setup",),
    solutions=("lab2-planner", "lab2-regression", "lab2-bonus"),
    required=(CLASS,),
    manual={"lab2-explanation": 3.0},
    kinds={
        **kinds_of(STORIES),
        "lab2-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
        BONUS: ("budget",),
    },
    # The reference planner, minserve.scheduling, is not there to be called.
    limits=Limits(shared=("__init__.py", "errors.py"), session_s=180.0),
    bonus=(BONUS,),
)
