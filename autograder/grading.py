"""Grading: scores made outside of any kernel, saved by nbgrader, never a silent zero."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat

from autograder import intake, notebooks, release, sandbox
from autograder.course import Course
from autograder.harness import Child, ChildError
from autograder.scoring.base import CellScore, Lab, seed_of

Result = dict[str, Any]
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
    notes += [f"cell {cell.grade_id}: {cell.feedback[0]}" for cell in cells if cell.stopped]
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

    def open(self) -> Child:
        if self._failure is not None:
            raise self._failure
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
    """Score, and keep the result beside the gradebook."""
    seed = seed_of(course.secret, course.offering, student, lab.name)
    result = score_notebook(notebook, lab, seed, sandbox.best_level())
    result |= {"student": student, "lab": lab.name, "version": release.version(lab)}
    save(course, result)
    return result


def result_path(course: Course, lab: Lab, student: str) -> Path:
    # NOTE: a digest, because an id may hold what a file name may not.
    name = hashlib.sha256(student.encode()).hexdigest()[:16]
    return course.root / "results" / lab.name / f"{name}.json"


def save(course: Course, result: Result) -> None:
    lab_name = result["lab"]
    name = hashlib.sha256(result["student"].encode()).hexdigest()[:16]
    path = course.root / "results" / lab_name / f"{name}.json"
    notebooks.write_whole(path, json.dumps(result, indent=1) + "\n", 0o600)


def results(course: Course, lab: Lab) -> list[Result]:
    """Every result of a lab, by student."""
    paths = sorted((course.root / "results" / lab.name).glob("*.json"))
    found = [json.loads(path.read_text("utf-8")) for path in paths]
    return sorted(found, key=lambda result: result["student"])


# -- a class


def students(course: Course, lab: Lab, roster: Iterable[str]) -> list[str]:
    """Who is on the roster, in the gradebook, or has handed something in."""
    found = set(roster)
    for folder in (course.root / "submitted").iterdir():
        if (folder.is_dir() or folder.is_symlink()) and not folder.name.startswith("."):
            found.add(folder.name)
    with course.gradebook() as gradebook:
        found |= {student.id for student in gradebook.students}
    return sorted(found)


def grade(
    course: Course,
    lab: Lab,
    names: Iterable[str],
    told: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Grade one lab for these students; `told` hears of each as it is done."""
    release.register(course, lab)
    api = course.nbgrader(submitted="intake")
    return [_grade_one(course, lab, api, name, told) for name in names]


def _grade_one(course: Course, lab: Lab, api: Any, name: str, told: Callable) -> Result:
    blank: Result = {
        "student": name,
        "lab": lab.name,
        "version": release.version(lab),
        "score": None,
        "points": lab.auto_points,
        "cells": [],
        "printed": {},
        "isolation": sandbox.best_level(),
    }
    try:
        return _graded(course, lab, api, name, blank, told)
    except Exception as error:  # one submission must not stop a class
        line = f"the grader itself failed ({type(error).__name__}: {error}): please report it"
        result = blank | {"status": "unreadable", "notes": [line]}
        save(course, result)
        told(result)
        return result


def _graded(course: Course, lab: Lab, api: Any, name: str, blank: Result, told: Callable) -> Result:
    started_s = time.monotonic()
    try:
        notebook = intake.take(course.root / "submitted" / name / lab.name, lab)
        if name.startswith(("-", ".")) or any(c in name for c in "/*?[]"):
            raise intake.Problem("unreadable", "the student id cannot be a folder name")
    except intake.Problem as problem:
        result = blank | {"status": problem.status, "notes": [problem.line]}
        save(course, result)
    else:
        result_path(course, lab, name).unlink(missing_ok=True)
        kept = manual_scores(course, lab, name)
        target = course.root / "intake" / name / lab.name
        shutil.rmtree(target, ignore_errors=True)
        notebooks.write(notebook, target / f"{lab.name}.ipynb")
        answer = api.autograde(lab.name, name)
        if result_path(course, lab, name).exists() and answer["success"]:
            result = json.loads(result_path(course, lab, name).read_text("utf-8"))
            result["notes"] += kept
        else:
            lines = (answer.get("error") or answer.get("log") or "").strip().splitlines()
            line = f"nbgrader could not save it: {lines[-1] if lines else 'no reason given'}"
            result = blank | {"status": "unreadable", "notes": [line]}
        save(course, result)
    result["seconds"] = round(time.monotonic() - started_s, 2)
    told(result)
    return result


def manual_scores(course: Course, lab: Lab, name: str) -> list[str]:
    """A manual score on a scored cell wins over the computed one: say so, never silently."""
    with course.gradebook() as gradebook:
        try:
            submission = gradebook.find_submission(lab.name, name)
        except Exception:  # nbgrader's MissingEntry: never graded before
            return []
        return [
            f"cell {grade.name} keeps its manual score {grade.manual_score:g}"
            for notebook in submission.notebooks
            for grade in notebook.grades
            if grade.manual_score is not None and grade.name not in lab.manual
        ]
