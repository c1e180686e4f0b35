"""Grading one notebook: scores made outside of any kernel, never a silent zero."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import nbformat

from autograder import intake, notebooks, release, sandbox
from autograder.course import Course
from autograder.harness import Child, ChildError, ChildTimedOut
from autograder.receipts import file_id
from autograder.scoring.base import CellScore, Lab, seed_of

Result = dict[str, Any]
SUBMISSION_S = 600.0  # of waiting for all children of one submission; honest ones need 2 to 5
AGAIN = "remove it and grade again"
STATUSES = ("graded", "partly", "crashed", "timed_out", "unreadable", "tampered", "missing")


def score_notebook(
    notebook: nbformat.NotebookNode,
    lab: Lab,
    seed: bytes,
    level: str,
) -> Result:
    """Score a transplanted notebook in the sandbox. No file is read or written."""
    loader = Loader(notebook, lab, level)
    notes = list(notebook.metadata.get(intake.NOTES, []))
    cells: list[CellScore] = []
    for cell in lab.cells:
        scored = lab.score_cell(cell, loader.open, seed)
        if scored.failed and loader.errors and not scored.stopped:
            scored.feedback = [*loader.errors, *scored.feedback]
        cells.append(scored)
    stopped = [cell.stopped for cell in cells if cell.stopped]
    if "tampered" in stopped or any(note.startswith("tampered") for note in notes):
        status = "tampered"
    elif len(stopped) == len(cells):
        status = stopped[0]
    elif stopped:
        status = "partly"
    elif loader.is_undefined:
        status = "crashed"
    else:
        status = "graded"
    notes += loader.notes
    for words in dict.fromkeys(cell.feedback[0] for cell in cells if cell.stopped):
        ids = [cell.grade_id for cell in cells if cell.stopped and cell.feedback[0] == words]
        notes.append(f"cell {', '.join(ids)}: {words}")
    return {
        "status": status,
        "notes": notes,
        "score": sum(cell.score for cell in cells),
        "points": lab.auto_points,
        "cells": [vars(cell) for cell in cells],
        "printed": loader.printed,
        "isolation": level,
    }


class Loader:
    """Starts children with the learner's cells.

    First with all of them; if those crash, hang or leave the required names undefined, with the
    answers alone, so that a stray experiment does not cost the marks of a right answer.
    """

    def __init__(self, notebook: nbformat.NotebookNode, lab: Lab, level: str) -> None:
        self._lab, self._level = lab, level
        needed, everything = [], []
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            name = notebooks.cell_id(cell)
            is_needed = name in lab.setup or name in lab.solutions
            if is_needed:
                needed.append((name, cell.source))
            if is_needed or "nbgrader" not in cell.metadata:
                everything.append((name, cell.source))
        self._cells, self._rest = everything, needed if needed != everything else None
        self.notes: list[str] = []
        self.errors: list[str] = []
        self.printed: dict[str, str] = {}
        self.is_undefined = False
        self._failure: ChildError | None = None
        self._opened: list[Child] = []

    def open(self) -> Child:
        if self._failure is not None:
            raise self._failure
        if sum(child.waited_s for child in self._opened) > SUBMISSION_S:
            raise ChildTimedOut(f"took more than {SUBMISSION_S:g} s in all its processes")
        try:
            child = Child(self._cells, self._lab.limits, self._level)
        except ChildError as error:
            if self._rest is None:
                self._failure = error
                raise
            return self._fall_back(f"the notebook as a whole {error}")
        missing = [name for name in self._lab.required if name not in child.names]
        if missing and self._rest is not None:
            child.close()
            return self._fall_back(f"{missing[0]} was not defined by the notebook as a whole")
        self._note(child, missing)
        self._opened.append(child)
        return child

    def _fall_back(self, why: str) -> Child:
        self.notes.append(f"{why}; graded from the answer cells alone")
        self._cells, self._rest = self._rest, None
        return self.open()

    def _note(self, child: Child, missing: list[str]) -> None:
        self.is_undefined = bool(missing)
        answers = [name for name in self._lab.solutions if child.cells.get(name, {}).get("error")]
        self.errors = [f"Cell {name} stopped: {child.cells[name]['error']}." for name in answers]
        self.printed = {n: c["printed"] for n, c in child.cells.items() if c["printed"]}


# -- one submission, from nbgrader's pipeline


def score_submission(
    course: Course, lab: Lab, student: str, notebook: nbformat.NotebookNode
) -> Result:
    """Score, and leave the result in the course. A group's members share their hidden values.

    Raises `ConfigError` where the isolation is weak and nobody has accepted that.
    """
    level, who = sandbox.accepted_level(), course.rules().group_of(lab, student)
    seed = seed_of(course.secret, course.offering, who, lab.name, work_of(notebook, lab))
    result = score_notebook(notebook, lab, seed, level)
    result |= {"student": student, "lab": lab.name, "version": release.version(lab)}
    save(course, result)
    return result


def work_of(notebook: nbformat.NotebookNode, lab: Lab) -> str:
    """A digest of the learner's own code in a transplanted notebook."""
    sources = [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code"
        and ("nbgrader" not in cell.metadata or notebooks.cell_id(cell) in lab.solutions)
    ]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def blank(lab: Lab, student: str) -> Result:
    """A result without a score, to be filled with a status and a note."""
    return {
        "student": student,
        "lab": lab.name,
        "version": release.version(lab),
        "score": None,
        "points": lab.auto_points,
        "cells": [],
        "printed": {},
        "isolation": sandbox.best_level(),
    }


def result_path(course: Course, lab: Lab, student: str) -> Path:
    return course.root / "results" / lab.name / f"{file_id(student)}.json"


def save(course: Course, result: Result) -> None:
    path = course.root / "results" / result["lab"] / f"{file_id(result['student'])}.json"
    notebooks.write_whole(path, json.dumps(result, indent=1) + "\n", 0o600)


def result_of(course: Course, lab: Lab, student: str) -> Result | None:
    path = result_path(course, lab, student)
    return notebooks.read_record(path, AGAIN) if path.exists() else None


def results(course: Course, lab: Lab) -> list[Result]:
    """Every result of a lab, by student."""
    paths = sorted((course.root / "results" / lab.name).glob("*.json"))
    found = [notebooks.read_record(path, AGAIN) for path in paths]
    return sorted(found, key=lambda result: result["student"])
