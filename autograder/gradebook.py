"""The course's gradebook: one writer, a copy before each run, people's own scores never lost."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from autograder import receipts
from autograder.course import Course
from autograder.grading import Result
from autograder.jobs import Graded, copy_database
from autograder.notebooks import write_whole
from autograder.scoring.base import Lab
from minserve.errors import ConfigError

NUM_BACKUPS = 10


@contextmanager
def locked(course: Course) -> Iterator[None]:
    """Hold the course, so that no two runs write at once. Raises `ConfigError` if it is held."""
    with open(course.root / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another run holds {course.root}", "wait for its end; nothing was changed"
            ) from None
        yield


def back_up(course: Course, now: datetime) -> Path | None:
    """Copy the gradebook to backups/, and forget all but the last ones."""
    source = course.root / "gradebook.db"
    if not source.exists():
        return None
    folder = course.root / "backups"
    path = folder / f"gradebook-{now:%Y%m%dT%H%M%S%f}.db"
    copy_database(source, path)
    for old in sorted(folder.glob("gradebook-*.db"))[:-NUM_BACKUPS]:
        old.unlink()
    return path


def merge(course: Course, lab: Lab, graded: Graded, is_new_work: bool) -> None:
    """Write what a job found into the course. A person's score stays, and is looked at again if
    the work is new or the computed score beside it has changed."""
    name = graded.result["student"]
    received = receipts.find(course, lab, name)
    with course.gradebook() as gradebook:
        gradebook.update_or_create_student(name)
        stamp = {"timestamp": received.received} if received else {}
        if received:  # NOTE: the formgrader shows nobody as graded whose two times differ
            folder = course.root / "submitted" / name / lab.name
            write_whole(folder / "timestamp.txt", received.received + "\n", 0o600)
        submission = gradebook.update_or_create_submission(lab.name, name, **stamp)
        if set(_rows(submission, "grades")) != set(graded.grades):
            submission = _with_todays_cells(gradebook, lab, submission, stamp)
        for saved in submission.notebooks:
            for grade in saved.grades:
                score, needs_person = graded.grades[grade.name]
                if grade.manual_score is not None:
                    has_changed = is_new_work or score != grade.auto_score
                    needs_person = has_changed or grade.needs_manual_grade
                grade.auto_score, grade.needs_manual_grade = score, needs_person
            for comment in saved.comments:
                comment.auto_comment = graded.comments[comment.name]
        gradebook.db.commit()
    target = course.root / "autograded" / name / lab.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(graded.folder, target)


def _rows(submission: Any, kind: str) -> dict[str, Any]:
    return {row.name: row for saved in submission.notebooks for row in getattr(saved, kind)}


def _with_todays_cells(gradebook: Any, lab: Lab, old: Any, stamp: dict[str, str]) -> Any:
    """The submission made anew, after the lab has got another cell. What people gave moves along.

    NOTE: nbgrader leaves a submission with the cells that the lab had when it was first graded.
    """
    name = old.student.id
    fields = ("manual_score", "extra_credit", "auto_score", "needs_manual_grade")
    kept = {
        cell: {field: getattr(grade, field) for field in fields}
        for cell, grade in _rows(old, "grades").items()
    }
    words = {cell: row.manual_comment for cell, row in _rows(old, "comments").items()}
    gradebook.remove_submission(lab.name, name)
    made = gradebook.add_submission(lab.name, name, **stamp)
    for cell, grade in _rows(made, "grades").items():
        for field, value in kept.get(cell, {}).items():
            setattr(grade, field, value)
    for cell, row in _rows(made, "comments").items():
        row.manual_comment = words.get(cell)
    return made


def graded_students(course: Course, lab: Lab) -> set[str]:
    """Who has a submission in the gradebook."""
    with course.gradebook() as gradebook:
        if lab.name not in {assignment.name for assignment in gradebook.assignments}:
            return set()
        return {one.student.id for one in gradebook.assignment_submissions(lab.name)}


def settle_lateness(course: Course, lab: Lab, results: list[Result]) -> None:
    """Set every penalty as the rules say today: due times and extensions may have changed."""
    rules, saved_students = course.rules(), graded_students(course, lab)
    with course.gradebook() as gradebook:
        for result in results:
            name = result["student"]
            receipt = receipts.find(course, lab, result.get("handed_in_by") or name)
            if result["score"] is None or receipt is None or name not in saved_students:
                continue
            penalty = rules.penalty(lab, name, receipt.time)
            for saved in gradebook.find_submission(lab.name, name).notebooks:
                saved.late_submission_penalty = penalty
        gradebook.db.commit()


def manual_scores(gradebook: Any, lab: Lab, student: str) -> dict[str, float]:
    """cell -> the score that a person gave."""
    if student not in {one.id for one in gradebook.students}:
        return {}
    found = [s for s in gradebook.assignment_submissions(lab.name) if s.student.id == student]
    return {
        grade.name: grade.manual_score
        for submission in found
        for saved in submission.notebooks
        for grade in saved.grades
        if grade.manual_score is not None
    }
