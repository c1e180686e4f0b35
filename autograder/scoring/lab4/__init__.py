"""Lab 4: the unsalted prefix."""

from __future__ import annotations

import itertools
import random

from autograder.harness import Raised, refuse
from autograder.sandbox import Limits
from autograder.scoring import regression
from autograder.scoring.base import Cell, CellScore, Finding, Lab, Open, Session
from autograder.scoring.lab4 import subjects
from autograder.scoring.lab4.advice import ADVICE
from autograder.scoring.lab4.stories import NAMES, STORIES
from autograder.scoring.lab4.world import CLASS, World
from autograder.scoring.stories import kinds_of, note, player

BONUS = "lab4-bonus-check"
MARKS = ("", "|", "/", ":", "\0", ",", " ", "-", "_", "', '", '", "')  # between two names


def make_world(session: Session, rng: random.Random):
    size = rng.choice((2, 3, 5, 8))
    return lambda: World(session, size)


play_cell = player(STORIES, make_world, ADVICE)
play_regression = regression.scorer("test_prefixes", subjects)


def play_bonus(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """Salts of everybody, in two processes, under two secrets."""
    secrets = [f"{rng.getrandbits(64):x}" for _ in range(2)]
    salts = [Salts(session_of, secrets) for session_of in (open_child, open_child)]
    people = whos(rng)
    try:
        told = [salt.of(people) for salt in salts]
    except Raised as error:
        note(scored, Finding("raised", f"{error}, {error.place}"), False, ADVICE)
        return
    if when := wrong_salts(people, *told):
        note(scored, Finding("salts", when), False, ADVICE)


class Salts:
    """What `salt_of` says in one process."""

    def __init__(self, open_child: Open, secrets: list[str]) -> None:
        self.open_child, self.secrets = open_child, secrets

    def of(self, people: list[tuple[str, str, str]]) -> list[list[object]]:
        """For each secret, the salt of each of `people`."""
        told = []
        with self.open_child() as session:
            for secret in self.secrets:
                told.append([])
                for who in people:
                    session.new("salt_of", [secret, *who], refuse)
                    told[-1].append(session.call("strip", [], refuse))
        return told


def whos(rng: random.Random) -> list[tuple[str, str, str]]:
    """(scope, tenant, user), among them names that run into each other."""
    a, b, c = rng.sample(NAMES, 3)
    pairs = [(a, b), (a, c), (b, a)]
    for mark in MARKS:
        pairs += [(f"{a}{mark}{b}", c), (a, f"{b}{mark}{c}")]
    return [(scope, *pair) for scope in ("tenant", "user") for pair in pairs]


def wrong_salts(
    people: list[tuple[str, str, str]], here: list[list[object]], there: list[list[object]]
) -> str:
    """What is wrong, in words; empty if nothing is."""
    if here != there:
        return "another process gives other salts"
    if any(type(salt) is not str or not salt for salt in itertools.chain(*here)):
        return "a salt is a text"
    if set(here[0]) & set(here[1]):
        return "a salt does not depend on the secret"
    names = {name for _, *pair in people for name in pair}
    if any(name in salt for salt in itertools.chain(*here) for name in names):
        return "a name can be read in a salt"
    shares = {who: who[:2] if who[0] == "tenant" else who for who in people}
    for (one, salt), (other, second) in itertools.combinations(
        zip(people, here[0], strict=True), 2
    ):
        if (shares[one] == shares[other]) != (salt == second):
            return "two who may not share" if salt == second else "two who share"
    return ""


LAB = Lab(
    name="lab4_unsalted_prefix",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab4-salt", 4.0, "who shares a salt shares blocks, and nobody else", play_cell),
        Cell("lab4-exact", 4.0, "only exactly the same prefix is a hit", play_cell),
        Cell("lab4-computed", 3.0, "only what is full, computed and still there", play_cell),
        Cell("lab4-channel", 3.0, "the clock tells a stranger nothing", play_cell),
        Cell("lab4-regression-check", 3.0, "your regression test", play_regression),
        Cell(BONUS, 1.0, "bonus: where salts come from", play_bonus),
    ),
    setup=("lab4-setup",),
    solutions=("lab4-cache", "lab4-regression", "lab4-bonus"),
    required=(CLASS,),
    manual={"lab4-explanation": 3.0},
    kinds={
        **kinds_of(STORIES),
        "lab4-regression-check": regression.kinds_of(tuple(subjects.FAULTY)),
        BONUS: ("salts",),
    },
    limits=Limits(shared=("__init__.py", "errors.py", "clock.py")),  # nothing of minserve.kv
    bonus=(BONUS,),
)
