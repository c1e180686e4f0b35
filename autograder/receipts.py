"""When the course received what: its own record, made at collect, that no submitter can write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from autograder.course import Course
from autograder.notebooks import read_record, write_whole
from autograder.scoring.base import Lab


@dataclass(frozen=True)
class Receipt:
    """One submission that counts. `digest` is of the notebook's bytes, `source` how it came."""

    student: str
    received: str  # ISO 8601, UTC
    digest: str
    source: str

    @property
    def time(self) -> datetime:
        return datetime.fromisoformat(self.received)


def file_id(student: str) -> str:
    """A file name for a student; NOTE: an id may hold what a file name may not."""
    return hashlib.sha256(student.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def path_of(course: Course, lab: Lab, student: str) -> Path:
    return course.root / "receipts" / lab.name / f"{file_id(student)}.json"


def find(course: Course, lab: Lab, student: str) -> Receipt | None:
    path = path_of(course, lab, student)
    return read(path) if path.exists() else None


def read(path: Path) -> Receipt:
    hint = "put it back from a copy; without it the submission counts as received now"
    return Receipt(**read_record(path, hint))


def record(
    course: Course, lab: Lab, student: str, digest: str, source: str, received: datetime
) -> Receipt:
    """The receipt of these bytes: the one there is, if they came before; else a new one."""
    known = find(course, lab, student)
    if known is not None and known.digest == digest:
        return known
    made = Receipt(student, received.astimezone(UTC).isoformat(), digest, source)
    write_whole(path_of(course, lab, student), json.dumps(asdict(made)) + "\n", 0o600)
    return made


def newest(course: Course, lab: Lab, students: Iterable[str]) -> str | None:
    """Whose receipt is the latest; None if nobody has one."""
    found = [receipt for name in students if (receipt := find(course, lab, name)) is not None]
    return max(found, key=lambda receipt: receipt.time).student if found else None
