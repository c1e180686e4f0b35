"""Getting submissions into the course: from folders, a zip file, or nbgrader's exchange.

Only notebooks are taken. Nothing is trusted but their bytes and, in the exchange, what the
machine itself knows: who owns a file, and when its inode last changed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from autograder import receipts
from autograder.course import Course
from autograder.intake import SIZE_LIMIT, Problem, read_bytes
from autograder.notebooks import printable, write_whole
from autograder.scoring.base import Lab
from minserve.errors import ConfigError, DataNotFound

PATTERN = r"(?P<student>[^/]+)/(?:.*/)?(?P<name>[^/]+\.ipynb)"
ZIP_LIMIT = 20_000  # entries
BROKEN = (  # what zipfile raises for a damaged, encrypted or unknown kind of file
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
TOTAL_LIMIT = 8 * 2**30  # bytes of all notebooks of one zip file


@dataclass
class Collected:
    """Who was collected, what was left as it was, and what was refused, each in one line."""

    taken: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def as_id(text: str) -> str:
    """An id as the course writes it. NOTE: a Mac's zip file takes an ë apart, a roster does not."""
    return unicodedata.normalize("NFC", text).strip()


def is_plain_id(student: str) -> bool:
    """Whether an id can name a folder, and stand in a line of a report and in the formgrader."""
    return (
        bool(student.strip())
        and student.isprintable()
        and not student.startswith(("-", "."))
        and not any(c in student for c in '/\\*?[]<>"')
    )


def take_in(
    course: Course, lab: Lab, student: str, data: bytes, source: str, received: datetime
) -> bool:
    """Make these bytes the student's submission; what it replaces is kept. False if unchanged."""
    target = course.root / "submitted" / student / lab.name / f"{lab.name}.ipynb"
    digest = hashlib.sha256(data).hexdigest()
    known = receipts.find(course, lab, student)
    if known is not None and known.digest == digest and target.is_file():
        return False
    if target.is_file() and not target.is_symlink():
        old = course.root / "earlier" / lab.name / receipts.file_id(student)
        old.mkdir(parents=True, exist_ok=True)
        stamp = known.received if known else "unknown"
        shutil.copy(target, old / f"{stamp.replace(':', '')}.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".part")
    temporary.write_bytes(data)
    os.replace(temporary, target)
    receipts.record(course, lab, student, digest, source, received)
    return True


def from_folder(
    course: Course, lab: Lab, source: Path, received: datetime, only: set[str] | None = None
) -> Collected:
    """STUDENT/LAB.ipynb or STUDENT/LAB/LAB.ipynb below a folder.

    NOTE: links and files under another name are copied as they are: intake says what is wrong.
    """
    if not source.is_dir():
        raise DataNotFound(f"{source} is no folder", "give a folder with one folder per student")
    done = Collected()
    for folder in sorted(source.iterdir()):
        student = as_id(folder.name)
        if not folder.is_dir() or folder.is_symlink() or (only and student not in only):
            continue
        if not is_plain_id(student):
            done.refused.append(f"{printable(student)}: no student id")
            continue
        inner = folder / lab.name if (folder / lab.name).is_dir() else folder
        path = inner / f"{lab.name}.ipynb"
        if path.is_file() and not path.is_symlink():
            try:
                _put(course, lab, student, read_bytes(path, source), source.name, received, done)
            except Problem as problem:
                done.refused.append(f"{student}: {problem.line}")
            continue
        target = course.root / "submitted" / student / lab.name
        target.mkdir(parents=True, exist_ok=True)
        for other in inner.glob("*.ipynb"):
            try:
                data = None if other.is_symlink() else read_bytes(other, source)
            except Problem as problem:
                done.refused.append(f"{student}: {printable(problem.line)}")
                continue
            copy = target / other.name
            copy.unlink(missing_ok=True)
            if data is None:
                copy.symlink_to(os.readlink(other))
            else:
                copy.write_bytes(data)
    return done


def from_zip(
    course: Course, lab: Lab, source: Path, received: datetime, pattern: str = PATTERN
) -> Collected:
    """The notebooks of a zip file whose paths match `pattern`, which names a student.

    Refuses paths that climb out, absolute ones, links, and what unpacks to too much.
    """
    try:
        matcher = re.compile(pattern)
        matcher.groupindex["student"]
    except (re.error, KeyError):
        raise ConfigError(
            f"the pattern {pattern!r} does not name a student", f"as in {PATTERN}"
        ) from None
    done, total = Collected(), 0
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            if len(entries) > ZIP_LIMIT:
                raise ConfigError(f"{source.name} has more than {ZIP_LIMIT} entries")
            for entry in entries:
                name = entry.filename
                if entry.is_dir() or not name.endswith(".ipynb"):
                    continue
                if (why := _refusal(entry)) is not None:
                    done.refused.append(f"{printable(name)}: {why}")
                    continue
                match = matcher.fullmatch(name)
                student = as_id(match["student"]) if match else ""
                if not is_plain_id(student):
                    done.refused.append(f"{printable(name)}: names no student by the pattern")
                    continue
                try:
                    with archive.open(entry) as file:  # NOTE: the entry's own size may lie
                        data = file.read(SIZE_LIMIT + 1)
                except BROKEN as error:
                    done.refused.append(
                        f"{printable(name)}: cannot be read ({printable(str(error))})"
                    )
                    continue
                total += len(data)
                if len(data) > SIZE_LIMIT or total > TOTAL_LIMIT:
                    done.refused.append(f"{printable(name)}: larger than {SIZE_LIMIT // 2**20} MiB")
                    continue
                _put(course, lab, student, data, source.name, received, done)
    except BROKEN as error:
        raise DataNotFound(
            f"cannot read {source} ({type(error).__name__}: {error})", "a zip file, not encrypted"
        ) from None
    return done


def _refusal(entry: zipfile.ZipInfo) -> str | None:
    path = PurePosixPath(entry.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in path.parts[0]:
        return "its path climbs out of the folder"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "it is a link"
    return None


def account_of(path: Path) -> str:
    """The name of the account that owns a file."""
    import pwd

    try:
        return pwd.getpwuid(path.lstat().st_uid).pw_name
    except KeyError:
        return f"account {path.lstat().st_uid}"


def from_exchange(
    course: Course, lab: Lab, owner_of: Callable[[Path], str] = account_of
) -> Collected:
    """What `nbgrader submit` left in the exchange: the latest of each student.

    The time is the inode's, set by the machine whenever a file changes; the submitter's
    timestamp.txt and the time in the folder's name are not read. A folder that is owned by
    another account than its student goes to quarantine.
    """
    rules = course.rules()
    root = Path(rules.exchange or course.root / "exchange")
    inbound = root / "minserve" / "inbound"
    if not inbound.is_dir():
        raise DataNotFound(
            f"there is no {inbound}",
            "hand out with `nbgrader release_assignment` first, or give --from FOLDER",
        )
    done = Collected()
    for _, student, folder in sorted(_handed_in(inbound, lab)):
        path = folder / f"{lab.name}.ipynb"
        owner = owner_of(folder)
        if rules.check_owner and owner != student:
            _quarantine(course, lab, student, path)
            done.refused.append(
                f"{printable(folder.name)}: says it is {printable(student)}'s and is owned by "
                f"{owner}: in quarantine"
            )
            continue
        received = datetime.fromtimestamp(_changed_s(folder, path), UTC)
        try:
            data = read_bytes(path, inbound)
            _put(course, lab, student, data, "exchange", received, done)
        except Problem as problem:
            done.refused.append(f"{printable(folder.name)}: {problem.line}")
    return done


def _handed_in(inbound: Path, lab: Lab) -> Iterator[tuple[float, str, Path]]:
    for folder in inbound.iterdir():
        student, plus, rest = folder.name.partition(f"+{lab.name}+")
        student = as_id(student)
        if plus and rest and folder.is_dir() and not folder.is_symlink() and is_plain_id(student):
            yield _changed_s(folder, folder / f"{lab.name}.ipynb"), student, folder


def _changed_s(*paths: Path) -> float:
    return max(path.lstat().st_ctime for path in paths if os.path.lexists(path))


def _quarantine(course: Course, lab: Lab, student: str, path: Path) -> None:
    try:
        data = read_bytes(path, path.parents[1])
    except Problem:
        return
    target = course.root / "quarantine" / lab.name / student / f"{lab.name}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target.with_suffix(".owner"), account_of(path) + "\n", 0o600)
    target.write_bytes(data)


def _put(
    course: Course,
    lab: Lab,
    student: str,
    data: bytes,
    source: str,
    received: datetime,
    done: Collected,
) -> None:
    is_new = take_in(course, lab, student, data, source, received)
    (done.taken if is_new else done.same).append(student)
