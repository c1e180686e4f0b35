"""How the submissions of a lab's bank are made: edits of the solved or the released notebook."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autograder import planting
from autograder.notebooks import LABS, path_in, source_cells

Notebook = dict[str, Any]
Files = dict[str, bytes | str]


@dataclass(frozen=True)
class Submission:
    """`files` maps names in the learner's folder to bytes, or to a link's target as text."""

    name: str
    files: Callable[[], Files]
    expected: tuple[float, ...] | None  # None: no score may exist
    status: str = "graded"
    through_nbgrader: bool = False
    contains: str = ""  # words that must stand in the notes or feedback


def cell(notebook: Notebook, name: str) -> dict[str, Any]:
    (found,) = [cell for cell in notebook["cells"] if cell["id"] == name]
    return found


def set_source(notebook: Notebook, name: str, source: str) -> Notebook:
    cell(notebook, name)["source"] = source
    return notebook


def append(notebook: Notebook, name: str, text: str) -> Notebook:
    """Add lines at the end of a cell."""
    source = "".join(cell(notebook, name)["source"])
    return set_source(notebook, name, f"{source}\n{text}")


def as_file(make: Callable[[], Notebook], name: str) -> Callable[[], Files]:
    return lambda: {name: json.dumps(make()).encode()}


@dataclass(frozen=True)
class Bank:
    """One lab's notebooks. `answers` are the cells that a learner fills, the main one first;
    cells of the learner's own are put right after `setup`."""

    lab: str
    setup: str
    answers: tuple[str, ...]

    @property
    def notebook_name(self) -> str:
        return f"{self.lab}.ipynb"

    def solution(self, name: str) -> str:
        """A cell of the solution, without markers."""
        return planting.plant(source_cells(self.lab)[name], None)

    def released(self, variant: str | None = None) -> Notebook:
        """What learners get, or its main answer cell with another variant of the fault."""
        notebook = json.loads(path_in(LABS, self.lab).read_text("utf-8"))
        if variant is not None:
            for name in self.answers:
                source = source_cells(self.lab)[name]
                if planting.has_faults(source):
                    set_source(notebook, name, planting.plant(source, variant))
        return notebook

    def solved(self, main: str | None = None) -> Notebook:
        """The released notebook with the solution, or with another main answer, filled in."""
        notebook = self.released()
        for name in self.answers:
            set_source(notebook, name, self.solution(name))
        if main is not None:
            set_source(notebook, self.answers[0], main)
        return notebook

    def solved_but(self, name: str, source: str | None = None) -> Notebook:
        """The solved notebook, with another source of one answer, or that which was handed out."""
        if source is None:
            source = "".join(cell(self.released(), name)["source"])
        return set_source(self.solved(), name, source)

    def edited(self, *edits: tuple[str, str]) -> Notebook:
        """The solved notebook with pieces of the main answer replaced.

        Each piece must stand there once.
        """
        source = self.solution(self.answers[0])
        for old, new in edits:
            if source.count(old) != 1:
                raise ValueError(f"the solution has changed: {old!r}")
            source = source.replace(old, new)
        return self.solved(source)

    def own_cell(self, notebook: Notebook, source: str, first: bool = True) -> Notebook:
        """Add a cell of the learner's own, right after the imports or at the end."""
        at = [c["id"] for c in notebook["cells"]].index(self.setup) + 1 if first else 10_000
        made = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
        notebook["cells"].insert(at, made | {"execution_count": None, "id": f"own{len(source)}"})
        return notebook

    def row(
        self,
        name: str,
        make: Callable[[], Notebook],
        expected: tuple[float, ...] | None,
        **more: Any,
    ) -> Submission:
        return Submission(name, as_file(make, self.notebook_name), expected, **more)
