"""What a learner's regression test meets: right implementations of a lab, and faulty ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autograder import bank, planting
from autograder.notebooks import source_cells
from minserve.errors import ConfigError


@dataclass(frozen=True)
class Subjects:
    """The subjects of one lab, whose main answer, the cell `answer`, defines `class_name`.

    `edits` maps a fault's name to what it does in words, and then a text of the solution and its
    replacement, or several such pairs.
    """

    lab: str
    setup: str
    answer: str
    class_name: str
    edits: Mapping[str, tuple[str, ...]]

    @cached_property
    def solution(self) -> str:
        """The answer cell of the solution, without markers."""
        return planting.plant(source_cells(self.lab)[self.answer], None)

    def build(self, source: str) -> type:
        """The class that a trusted source defines, after the setup cell."""
        return self._after_setup(source)[self.class_name]

    def namespace_of(self, cell: str) -> dict[str, Any]:
        """What a cell of the source notebook defines, after the setup cell."""
        return self._after_setup(source_cells(self.lab)[cell])

    @cached_property
    def right(self) -> tuple[tuple[str, type], ...]:
        """(name, class): the solution, and correct ones that are written differently."""
        others = ((name, self.build(text)) for name, text in bank.right_sources(self.lab).items())
        return ("the solution", self.build(self.solution)), *others

    @cached_property
    def faulty(self) -> dict[str, tuple[type, str]]:
        """name -> (class with that one fault, what it does in words)."""
        made = {}
        for name, (words, *texts) in self.edits.items():
            source = self.solution
            for old, new in zip(texts[::2], texts[1::2], strict=True):
                if source.count(old) != 1:
                    raise ConfigError(f"the solution of {self.lab} changed: cannot plant {name!r}")
                source = source.replace(old, new)
            made[name] = (self.build(source), words)
        return made

    def _after_setup(self, source: str) -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": __name__}
        exec(compile(source_cells(self.lab)[self.setup], "<setup>", "exec"), namespace)
        exec(compile(source, "<cell>", "exec"), namespace)
        return namespace
