"""Does the grader give the scores that people wrote down beforehand?

Three proofs: every submission of the bank is scored directly in the sandbox; a part of them goes
through real nbgrader as well; and for every kind of failure that costs points, not looking for
it would change a score, so a check that silently stopped working cannot stay green.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from autograder import bank, classes, grading, intake, notebooks, sandbox
from autograder.course import Course
from autograder.scoring.base import CellScore, Lab, seed_of

SECRET = "selftest"
Vector = tuple[float, ...]


@dataclass
class Line:
    """One comparison."""

    name: str
    way: str  # direct or nbgrader
    expected: Vector | None
    actual: Vector | None
    expected_status: str
    status: str
    lacks: str = ""
    cells: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return (
            self.expected == self.actual and self.expected_status == self.status and not self.lacks
        )


@dataclass
class Outcome:
    """Everything that a selftest found."""

    lines: list[Line]
    undetected: list[str]  # kinds of failure that could go unnoticed
    isolation: str
    num_skipped: int = 0  # hostile ones, where they could do harm

    @property
    def is_green(self) -> bool:
        are_equal = all(line.is_equal for line in self.lines)
        return are_equal and not self.undetected and not self.num_skipped


def run(
    lab: Lab,
    told: Callable[[Line], None] = lambda line: None,
    only: Callable[[Any], bool] = lambda submission: True,
    level: str | None = None,
) -> Outcome:
    """Score the bank. `told` hears of each line as it is done."""
    level = level or sandbox.best_level()
    submissions = import_module(f"autograder.bank.{bank.folder_of(lab.name)}").all_submissions()
    wanted = [submission for submission in submissions if only(submission)]
    if not (is_safe := level == "bubblewrap"):
        os.environ[sandbox.ACCEPTS_WEAK] = "yes"  # nothing hostile runs then
    chosen = [s for s in wanted if is_safe or not s.name.startswith("hostile")]
    lines = []
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        for line in pool.map(lambda submission: direct(lab, submission, level), chosen):
            lines.append(line)
            told(line)
    undetected = undetected_kinds(lab, lines) if len(chosen) == len(submissions) else []
    through = [s for s in chosen if s.through_nbgrader or s.expected is None]
    if through:
        for line in nbgrader_lines(lab, through):
            lines.append(line)
            told(line)
    return Outcome(lines, undetected, level, len(wanted) - len(chosen))


def hand_in(submission: Any, folder: Path) -> None:
    """Write a submission's files; text stands for a symbolic link's target."""
    files = submission.files()
    if files:
        folder.mkdir(parents=True)
    for name, content in files.items():
        if isinstance(content, str):
            (folder / name).symlink_to(content)
        else:
            (folder / name).write_bytes(content)


def direct(lab: Lab, submission: Any, level: str) -> Line:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "student" / lab.name
        hand_in(submission, folder)
        try:
            notebook = intake.transplant(intake.take(folder, lab), lab)
        except intake.Problem as problem:
            result = {"status": problem.status, "notes": [problem.line], "cells": []}
        else:
            seed = seed_of(SECRET.encode(), "selftest", submission.name, lab.name)
            result = grading.score_notebook(notebook, lab, seed, level)
    return compare(submission, result, "direct")


def compare(submission: Any, result: dict[str, Any], way: str) -> Line:
    cells = result["cells"]
    words = " ".join([*result["notes"], *(text for cell in cells for text in cell["feedback"])])
    return Line(
        submission.name,
        way,
        submission.expected and tuple(float(score) for score in submission.expected),
        tuple(cell["score"] for cell in cells) or None,
        submission.status,
        result["status"],
        "" if submission.contains in words else f"no words {submission.contains!r}",
        cells,
    )


def nbgrader_lines(lab: Lab, submissions: list[Any]) -> list[Line]:
    """The same submissions handed in, graded and read back from the gradebook."""
    with tempfile.TemporaryDirectory(prefix="selftest-") as root:
        course = Course.open(root)
        notebooks.write_whole(course.root / "secret", SECRET)
        names = {f"student{number:02}": s for number, s in enumerate(submissions)}
        for name, submission in names.items():
            hand_in(submission, course.root / "submitted" / name / lab.name)
        results = {r["student"]: r for r in classes.grade(course, lab, names).results}
        lines = []
        with course.gradebook() as gradebook:
            for name, submission in names.items():
                line = compare(submission, results[name], "nbgrader")
                line.actual = saved_vector(gradebook, lab, name)
                lines.append(line)
    return lines


def saved_vector(gradebook: Any, lab: Lab, student: str) -> Vector | None:
    """The scores that nbgrader holds; None if it holds no submission."""
    if student not in {s.id for s in gradebook.students}:
        return None
    grades = {
        grade.name: grade.auto_score
        for notebook in gradebook.find_submission(lab.name, student).notebooks
        for grade in notebook.grades
    }
    return tuple(grades[cell.grade_id] for cell in lab.cells)


def undetected_kinds(lab: Lab, lines: list[Line]) -> list[str]:
    """Kinds of failure of which no submission's score depends: nobody would miss their check."""
    detected = set()
    for line in lines:
        for cell in line.cells:
            scored = CellScore(**cell)
            for kind in lab.kinds[scored.grade_id]:
                if scored.without(kind) != scored.score:
                    detected.add((scored.grade_id, kind))
    wanted = {(cell, kind) for cell, kinds in lab.kinds.items() for kind in kinds}
    return [f"{cell}: {kind}" for cell, kind in sorted(wanted - detected)]
