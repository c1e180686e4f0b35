"""What people read: the table after a run, the CSV for the registry."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from autograder.course import Course
from autograder.grading import Result, results
from autograder.notebooks import printable, write_whole
from autograder.scoring.base import Lab
from minserve.errors import ConfigError, DataNotFound

COLUMNS = (
    "student_id",
    "last_name",
    "first_name",
    "assignment",
    "status",
    "score",
    "max_score",
    "auto_score",
    "manual_score",
    "needs_manual_grade",
    "notes",
    "version",
    "isolation",
)
FROM_THE_NET = re.compile(r"""<script[^>]*\bsrc=["']?https?:[^>]*>\s*</script>""")


def line(result: Result) -> str:
    """One submission in one line of a terminal."""
    score = "-" if result["score"] is None else f"{result['score']:g}/{result['points']:g}"
    notes = "; ".join(result["notes"])
    return printable(f"{result['student']:16} {result['status']:10} {score:>7}  {notes}", 200)


def rows(course: Course, lab: Lab) -> list[dict[str, Any]]:
    """One row per student, on the roster or not. A score that does not exist stays empty."""
    told = {result["student"]: result for result in results(course, lab)}
    made = []
    with course.gradebook() as gradebook:
        people = {student.id: student for student in gradebook.students}
        for name in sorted(told.keys() | people.keys()):
            result, person = told.get(name), people.get(name)
            row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
            row |= {
                "student_id": name,
                "last_name": (person and person.last_name) or "",
                "first_name": (person and person.first_name) or "",
                "assignment": lab.name,
                "status": result["status"] if result else "missing",
                "max_score": lab.max_points,
            }
            if result:
                row |= {key: result[key] for key in ("version", "isolation")}
                row["notes"] = "; ".join(result["notes"])
            if result and result["score"] is not None:
                row |= _scores(gradebook, lab, name)
            made.append(row)
    return made


def _scores(gradebook: Any, lab: Lab, name: str) -> dict[str, Any]:
    submission = gradebook.find_submission(lab.name, name)
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    unread = [grade.name for grade in grades if grade.needs_manual_grade]
    return {
        "score": submission.score,
        "auto_score": sum(grade.auto_score or 0.0 for grade in grades),
        "manual_score": sum(grade.manual_score or 0.0 for grade in grades),
        "needs_manual_grade": "yes" if unread else "no",
    }


def to_csv(table: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in table:
        writer.writerow([neutral(row[column]) for column in COLUMNS])
    return text.getvalue()


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@", "|", "%"):
        return "'" + value
    return " ".join(value.split()) if isinstance(value, str) else value


def export(course: Course, lab: Lab, path: Path) -> int:
    """Write the CSV; returns the number of rows."""
    table = rows(course, lab)
    write_whole(path, to_csv(table), 0o600)
    return len(table)


def feedback(course: Course, lab: Lab) -> list[Path]:
    """Generate nbgrader's feedback pages for everybody who has a score."""
    names = [result["student"] for result in results(course, lab) if result["score"] is not None]
    if not names:
        raise DataNotFound(f"nobody has a score in {lab.name}", "grade first")
    api, paths = course.nbgrader(), []
    for name in names:
        answer = api.generate_feedback(lab.name, name)
        path = course.root / "feedback" / name / lab.name / f"{lab.name}.html"
        if not answer["success"] or not path.exists():
            raise ConfigError(f"nbgrader made no feedback for {name}", "see `nbgrader --debug`")
        page = path.read_text("utf-8")
        write_whole(path, FROM_THE_NET.sub("", page))  # it opens offline, and tells nobody
        paths.append(path)
    return paths
