"""Forgetting: everything of a student, or everything that was kept long enough."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

from autograder import gradebook, receipts, scoring
from autograder.collecting import is_plain_id
from autograder.course import Course
from minserve.errors import DataNotFound


def expired(course: Course, keep_days: int | None, now: datetime) -> list[str]:
    """Students of whom the course received nothing for that long."""
    limit = now - timedelta(days=course.rules().keep_days if keep_days is None else keep_days)
    latest: dict[str, datetime] = {}
    for lab in scoring.LABS.values():
        for path in (course.root / "receipts" / lab.name).glob("*.json"):
            receipt = receipts.read(path)
            latest[receipt.student] = max(receipt.time, latest.get(receipt.student, receipt.time))
    return sorted(name for name, time in latest.items() if time < limit)


def purge(course: Course, student: str, is_rehearsal: bool) -> list[str]:
    """Remove a student; returns what was, or would be. Backups go too: they hold everybody.

    Raises `DataNotFound` for whom the course does not know.
    """
    with gradebook.locked(course):
        found = [path for path in _places(course, student) if path.exists() or path.is_symlink()]
        with course.gradebook() as book:
            is_known = student in {one.id for one in book.students}
            if not found and not is_known:
                raise DataNotFound(f"nothing here is of a student {student!r}", "see `export`")
            found += sorted((course.root / "backups").glob("gradebook-*.db"))
            told = [str(path.relative_to(course.root)) for path in found]
            if is_known:
                told.append("gradebook.db: the student and every submission")
                if not is_rehearsal:
                    book.remove_student(student)
        if is_rehearsal:
            return told
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        _compact(course)
    return told


def _places(course: Course, student: str) -> list[Path]:
    root, name = course.root, receipts.file_id(student)
    folders = [root / folder for folder in ("submitted", "autograded", "feedback")]
    folders += [root / "quarantine" / lab.name for lab in scoring.LABS.values()]
    # NOTE: "" and "../.." name folders too, which are no student's
    places = [folder / student for folder in folders] if is_plain_id(student) else []
    for lab in scoring.LABS.values():
        places += [root / folder / lab.name / f"{name}.json" for folder in ("receipts", "results")]
        places += [root / "earlier" / lab.name / name]
    return places


def _compact(course: Course) -> None:
    """SQLite keeps what was deleted in free pages, until they are written over."""
    with contextlib.closing(sqlite3.connect(course.root / "gradebook.db")) as database:
        database.execute("VACUUM")
