"""What a lab is to the grader: scored cells, scenarios, and the words that explain a failure."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from autograder.harness import ChildError
from autograder.sandbox import Limits

GATE_COST = 2.0  # points that losing something which already worked costs, at most the cell's


class Session(Protocol):
    """What scoring needs of a child (see harness.Child)."""

    names: set[str]

    def new(self, class_name: str, args: list[Any], serve: Callable[..., Any]) -> None: ...
    def call(self, method: str, args: list[Any], serve: Callable[..., Any]) -> Any: ...
    def test(self, function: str, args: list[Any], serve: Callable[..., Any]) -> None: ...


Open = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True)
class Finding:
    """A promise that was broken: its `kind`, and what was going on."""

    kind: str
    when: str = ""


@dataclass(frozen=True)
class Advice:
    """Feedback that teaches: what was seen, which rule it breaks, where to look.

    NOTE: learners read all of it, and `when`, the smallest example: no drawn value may be in it,
    and nothing that their code has returned or raised, which could carry one.
    """

    symptom: str
    invariant: str
    look: str

    def text(self, when: str) -> str:
        example = f"  Example: {when}.\n" if when else ""
        return f"Seen: {self.symptom}.\n  Rule: {self.invariant}.\n{example}  Look at: {self.look}."


@dataclass
class CellScore:
    """One graded cell. `failed` and `gates` name what was broken, for the selftest's proof.

    A failure costs all points of the cell, or what `costs` says.
    """

    grade_id: str
    points: float
    score: float = 0.0
    failed: list[str] = field(default_factory=list)
    gates: list[str] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)
    feedback: list[str] = field(default_factory=list)
    stopped: str = ""  # crashed, timed_out or tampered, if the code could not go on here

    def settle(self) -> CellScore:
        self.score = self.without("")
        return self

    def without(self, kind: str) -> float:
        """The score if failures of `kind` were not looked for: always within 0..points."""
        if self.stopped:
            return 0.0
        cost = sum(self.costs.get(name, self.points) for name in set(self.failed) - {kind})
        cost += GATE_COST * len(set(self.gates) - {kind})
        return float(min(self.points, max(0.0, self.points - cost)))


@dataclass(frozen=True)
class Cell:
    """A graded cell: `score(cell, session, rng)` fills a `CellScore` with what was found."""

    grade_id: str
    points: float
    title: str
    score: Callable[[CellScore, Open, random.Random], None]


@dataclass(frozen=True)
class Lab:
    """Everything the grader knows about one lab.

    `setup` and `solutions` are the ids of cells that the learner's code needs; `required` are the
    names that they must define. `variants` are the planted ones; `manual` cells are read by people.
    `kinds` lists, per cell, every kind of failure that costs points: the selftest proves that each
    is looked for. `limits` say what the learner's process may use, and what of minserve it sees:
    never the reference of what the lab asks for. The points of `bonus` cells come on top.
    """

    name: str
    variants: tuple[str, ...]
    cells: tuple[Cell, ...]
    setup: tuple[str, ...]
    solutions: tuple[str, ...]
    required: tuple[str, ...]
    manual: dict[str, float]
    kinds: dict[str, tuple[str, ...]]
    limits: Limits = field(default_factory=Limits)
    bonus: tuple[str, ...] = ()

    @property
    def auto_points(self) -> float:
        return sum(cell.points for cell in self.cells if cell.grade_id not in self.bonus)

    @property
    def max_points(self) -> float:
        return self.auto_points + sum(self.manual.values())

    def score(self, open_child: Open, seed: bytes) -> list[CellScore]:
        """Score every cell. Each cell has a fresh child and randomness of its own: no order."""
        return [self.score_cell(cell, open_child, seed) for cell in self.cells]

    def score_cell(self, cell: Cell, open_child: Open, seed: bytes) -> CellScore:
        scored = CellScore(cell.grade_id, cell.points)
        rng = random.Random(hmac.new(seed, cell.grade_id.encode(), hashlib.sha256).digest())
        try:
            cell.score(scored, open_child, rng)
        except ChildError as error:
            scored.stopped = error.status
            scored.feedback = [f"Not scored, so 0 points: your code {error.told}."]
        return scored.settle()


def seed_of(secret: bytes, offering: str, student: str, lab: str, work: str = "") -> bytes:
    """What all of a student's hidden values derive from: the same at every regrade.

    With `work`, a digest of what was handed in, they differ from one hand-in to the next: what a
    notebook smuggles into its feedback is worth nothing by then.
    """
    message = "\0".join((offering, student, lab, *filter(None, [work]))).encode()
    return hmac.new(secret, message, hashlib.sha256).digest()


def variant_of(lab: Lab, seed: bytes) -> str:
    """The planted variant that belongs to a seed."""
    return lab.variants[seed[0] % len(lab.variants)]
