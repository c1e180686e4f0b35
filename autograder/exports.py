"""Grades as CSV: for people, for Canvas, for Moodle, and with pseudonyms."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autograder.course import Course
from autograder.notebooks import write_whole
from autograder.report import Standing, standings
from autograder.scoring.base import Lab
from minserve.errors import DataNotFound

COLUMNS = (
    "student_id",
    "last_name",
    "first_name",
    "assignment",
    "status",
    "score",
    "max_score",
    "points",
    "auto_score",
    "bonus",
    "manual_score",
    "needs_manual_grade",
    "late_penalty",
    "received",
    "notes",
    "version",
    "isolation",
)
# signs that begin a formula, the wide ones included, where a cell may begin
FORMULA = re.compile(r'(^|[;,"]\s*)([-=+@|%\uff0b\uff0d\uff1d\uff20])')
POSSIBLE = "    Points Possible"  # NOTE: Canvas knows its second line by these four spaces
Row = list[Any]


def plain(course: Course, lab: Lab, everybody: list[Standing]) -> list[Row]:
    """Everything that is known. A score that does not exist stays empty."""
    return [list(COLUMNS), *([cells[name] for name in COLUMNS] for cells in map(_cells, everybody))]


def _cells(standing: Standing) -> dict[str, Any]:
    result, has_score = standing.result or {}, standing.total is not None
    return {
        "student_id": standing.student,
        "last_name": standing.last_name,
        "first_name": standing.first_name,
        "assignment": standing.lab.name,
        "status": standing.status,
        "score": standing.total if has_score else "",
        "max_score": standing.lab.max_points,
        "points": standing.points,
        "auto_score": standing.automatic if has_score else "",
        "bonus": standing.bonus if has_score else "",
        "manual_score": "" if standing.by_hand is None else standing.by_hand,
        "needs_manual_grade": _yes(standing.by_hand is None) if has_score else "",
        "late_penalty": standing.penalty if has_score else "",
        "received": f"{standing.received:%Y-%m-%dT%H:%M:%SZ}" if standing.received else "",
        "notes": standing.notes,
        "version": result.get("version", ""),
        "isolation": result.get("isolation", ""),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def pseudonymous(course: Course, lab: Lab, everybody: list[Standing]) -> list[Row]:
    """Scores and status under ids that only this course's secret leads back to a person."""
    keep = ("assignment", "status", "score", "max_score", "points", "auto_score", "bonus")
    made = [
        [pseudonym(course, standing.student), *(_cells(standing)[name] for name in keep)]
        for standing in everybody
    ]
    return [["student_id", *keep], *sorted(made)]


def pseudonym(course: Course, student: str) -> str:
    digest = hmac.new(course.secret, f"pseudonym\0{student}".encode(), hashlib.sha256)
    return f"s-{digest.hexdigest()[:10]}"


def canvas(course: Course, lab: Lab, everybody: list[Standing]) -> list[Row]:
    """For Canvas' gradebook import: students by login id, an empty cell changes nothing."""
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", lab.name]
    possible = [POSSIBLE, "", "", "", "", lab.max_points]
    return [
        head,
        possible,
        *(
            [f"{s.last_name}, {s.first_name}".strip(", "), "", s.student, s.student, "", _score(s)]
            for s in everybody
        ),
    ]


def moodle(course: Course, lab: Lab, everybody: list[Standing]) -> list[Row]:
    """For Moodle's grade import: students by ID number or e-mail, feedback in one line."""
    return [
        ["ID number", "Email address", lab.name, f"{lab.name} (feedback)"],
        *([s.student, s.email, _score(s), f"{s.status}: {s.points}"] for s in everybody),
    ]


def _score(standing: Standing) -> Any:
    return "" if standing.total is None else standing.total


FORMATS: dict[str, Callable[[Course, Lab, list[Standing]], list[Row]]] = {
    "plain": plain,
    "canvas": canvas,
    "moodle": moodle,
    "pseudonyms": pseudonymous,
}


def export(course: Course, lab: Lab, path: Path, style: str = "plain") -> int:
    """Write the CSV; returns the number of students."""
    if style not in FORMATS:
        raise DataNotFound(f"no format is called {style!r}", f"one of {', '.join(FORMATS)}")
    everybody = standings(course, lab)
    write_whole(path, to_csv(FORMATS[style](course, lab, everybody)), 0o600)
    return len(everybody)


def to_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([neutral(value) for value in row] for row in rows)
    return text.getvalue()


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it.

    NOTE: within a text too: where cells end at a semicolon or a quote, what follows begins one.
    """
    if not isinstance(value, str):
        return value
    if value == POSSIBLE:
        return value
    text = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return FORMULA.sub(r"\1'\2", text)


def student_of(course: Course, name: str) -> str | None:
    """Whose pseudonym this is."""
    with course.gradebook() as gradebook:
        names = [student.id for student in gradebook.students]
    return next((student for student in names if pseudonym(course, student) == name), None)
