"""The parts that a server runs: the learner's where they are checked and installed, else not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minserve.learn.checker import load
from minserve.learn.parts import SLOTS
from minserve.learn.serving.guard import Guard, PartFailed
from minserve.learn.serving.ledger import Ledger
from minserve.learn.workspace import MINE, Version, Workspace

log = logging.getLogger("minserve.parts")


@dataclass(slots=True)
class Book:
    """One part: whose runs, and `why` it is not the learner's. `target` is the learner's code."""

    name: str
    version: Version | None = None
    target: Any = None
    why: str = ""

    @property
    def is_mine(self) -> bool:
        return self.target is not None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        runs = "yours" if self.is_mine else "the reference"
        number = self.version.number if self.version else None
        return {"name": self.name, "runs": runs, "version": number, "why": self.why}


class Shelf:
    """All parts that `names` a server can run. What fails is taken off, and the reference runs.

    `undo[name]()` is called when part `name` fails: it puts the reference in its place.
    """

    def __init__(self, names: tuple[str, ...], guard: Guard | None = None) -> None:
        self.books = {name: _take(name) for name in names if name in SLOTS}
        self.ledger = Ledger()
        self.guard = guard or Guard()
        self.guard.on_failed = self._failed
        self.undo: dict[str, Callable[[], None]] = {}
        self.at_start: list[str] = []
        """Parts that worked before any request came, for all of them."""
        self.last_failure: PartFailed | None = None

    def is_mine(self, name: str) -> bool:
        """The learner's part runs."""
        return name in self.books and self.books[name].is_mine

    def call(self, name: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """Run code of part `name`, counted for the current requests. Raises `PartFailed`."""
        self.ledger.note(name)
        return self.guard.call(name, function, *args, **settings)

    def function(self, name: str) -> Callable[..., Any]:
        """The learner's function, each call counted and guarded; once it failed, the reference."""

        def run(*args: Any, **settings: Any) -> Any:
            target = self.books[name].target
            if target is None:
                return SLOTS[name].load_reference()(*args, **settings)
            return self.call(name, target, *args, **settings)

        return run

    def make(self, name: str, *args: Any, target: Any = None) -> Any:
        """An object of the learner's class, each call of a method counted and guarded."""
        made = self.guard.call(name, target or self.books[name].target, *args)
        return Watched(self, name, made)

    def lines(self) -> list[str]:
        """One line for each part that is not the learner's, which says why."""
        books = self.books.values()
        return [f"{b.name}: {b.why}, so the reference runs" for b in books if not b.is_mine]

    def told(self) -> dict[str, Any]:
        """Whose parts run, and which of them the last requests went through: for JSON."""
        return {
            "parts": [book.as_dict() for book in self.books.values()],
            "at_start": [name for name in self.at_start if self.is_mine(name)],
            "requests": self.ledger.passages(),
        }

    def _failed(self, failure: PartFailed) -> None:
        book = self.books[failure.part]
        self.last_failure = failure
        if not book.is_mine:
            return
        log.warning("%s. The reference runs from now on", failure)
        book.target, book.why = None, str(failure)
        if undo := self.undo.get(failure.part):
            undo()


class Watched:
    """An object of a learner's: calls of its methods are counted and guarded."""

    def __init__(self, shelf: Shelf, name: str, made: Any) -> None:
        self._shelf, self._name, self._made = shelf, name, made

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._made, attribute)
        if not callable(value):
            return value
        return lambda *args, **settings: self._shelf.call(self._name, value, *args, **settings)


def _take(name: str) -> Book:
    workspace = Workspace(name)
    version = workspace.current()
    if version is None:
        return Book(name, why="yours is not built yet")
    if workspace.use != MINE:
        return Book(name, version, why="yours is built, and not installed")
    try:
        target = load(version.name, version.text, str(version.path))
    except Exception as error:  # a kept version that no longer runs must not stop the server
        return Book(name, version, why=f"version {version.number} of yours does not load ({error})")
    return Book(name, version, target)
