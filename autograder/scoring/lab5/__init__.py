"""Lab 5: the cache key."""

from __future__ import annotations

import random
from typing import Any

from autograder.harness import Raised, refuse
from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, CellScore, Finding, Lab, Open, Session
from autograder.scoring.lab5 import subjects
from autograder.scoring.lab5.advice import ADVICE
from autograder.scoring.lab5.stories import STORIES, fields_merge
from autograder.scoring.lab5.world import CLASS, MODEL, NAMES, World, draw, request
from autograder.scoring.stories import findings, kinds_of, note, player


def make_world(session: Session, rng: random.Random):
    setting = draw(rng)
    return lambda: World(session, setting)


play_cell = player(STORIES, make_world, ADVICE)


def play_key(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """The stories, one that is long and so played once, and the same requests in two processes."""
    play_cell(scored, open_child, rng)
    with open_child() as session:
        for finding in findings(make_world(session, rng), fields_merge, rng):
            note(scored, finding, False, ADVICE)
    requests = [request(rng, f"Is it {number}?", scope="user") for number in range(5)]
    told = []
    for _ in range(2):
        with open_child() as session:
            try:
                session.new(CLASS, [{"remote": MODEL}, {}, 60], refuse)
                told.append([session.call("key", [each], refuse) for each in requests])
            except Raised as error:
                when = f"{error}, in key, {error.place}"
                return note(scored, Finding("unstable", when), False, ADVICE)
    are_texts = all(type(key) is str for key in told[0])
    if told[0] != told[1] or not are_texts or len(set(told[0])) < len(requests):
        note(scored, Finding("unstable"), False, ADVICE)


play_regression = regression.scorer("test_reuse", subjects)


def play_bonus(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """Labelled pairs: with ties, with intents that no threshold serves, and without false ones."""
    with open_child() as session:
        for _ in range(6):
            examples, due = labelled(rng)
            try:
                session.new("calibrate", [examples], refuse)
                told = session.call("copy", [], refuse)
            except Raised as error:
                note(scored, Finding("raised", f"{error}, {error.place}"), False, ADVICE)
            else:
                if type(told) is not dict or told != due:
                    note(scored, Finding("calibrated"), False, ADVICE)


def labelled(rng: random.Random) -> tuple[list[list[Any]], dict[str, float]]:
    """(examples in drawn order, the thresholds that are due)."""
    examples: list[list[Any]] = []
    due = {}
    for intent in rng.sample(NAMES, 4):
        nears = sorted(rng.sample(range(300, 999), 6))
        last = rng.choice((-1, 2, 3, 5))  # of the false ones, by nearness; none, some, the nearest
        flags = [n not in (last, last - 2) for n in range(6)]
        examples += [[intent, near / 1000, flag] for near, flag in zip(nears, flags, strict=True)]
        if last < 5:
            due[intent] = nears[last + 1] / 1000
        if last >= 0 and rng.random() < 0.5:
            examples.append([intent, nears[last] / 1000, True])  # a tie does not pass
    rng.shuffle(examples)
    return examples, due


KINDS = kinds_of(STORIES)
BONUS = "lab5-bonus-check"

LAB = Lab(
    name="lab5_cache_key",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab5-scope", 4.0, "an answer reaches only those who may have it", play_cell),
        Cell("lab5-key", 4.0, "the key: everything it depends on, nothing mixed up", play_key),
        Cell("lab5-fresh", 3.0, "nothing stale, nothing unfinished", play_cell),
        Cell("lab5-gate", 3.0, "other words, the same question", play_cell),
        Cell("lab5-regression-check", 3.0, "your regression test", play_regression),
        Cell(BONUS, 1.0, "bonus: what a threshold can do", play_bonus),
    ),
    setup=("lab5-setup",),
    solutions=("lab5-cache", "lab5-regression", "lab5-bonus"),
    required=(CLASS,),
    manual={"lab5-explanation": 3.0},
    kinds={
        **KINDS,
        "lab5-key": (*KINDS["lab5-key"], "fields_merge", "unstable"),
        "lab5-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
        BONUS: ("calibrated",),
    },
    bonus=(BONUS,),
    limits=Limits(shared=("__init__.py", "errors.py", "clock.py")),  # nothing of minserve.reuse
)
