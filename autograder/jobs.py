"""Jobs: each grades one submission after the other in a little course of its own.

A job has its own process, gradebook and folders under COURSE/work/. What it found goes back to
the run as plain values (see classes.py), which alone writes the course's gradebook.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

from nbgrader.api import MissingEntry

from autograder import grading, intake, notebooks, scoring
from autograder.collecting import is_plain_id
from autograder.course import DATABASE_HINT, Course
from autograder.grading import Result
from autograder.scoring.base import Lab
from minserve.errors import ConfigError

PATIENCE_S = 900.0  # for one submission, far beyond every limit of the sandbox


@dataclass(frozen=True)
class Task:
    """One student, and the folder of the submission that counts."""

    student: str
    folder: Path


@dataclass
class Graded:
    """What a job found. `grades` and `comments` are what its nbgrader saved, by cell."""

    result: Result
    grades: dict[str, tuple[float | None, bool]] = field(default_factory=dict)
    comments: dict[str, str | None] = field(default_factory=dict)
    folder: Path | None = None  # of the autograded notebook
    peak_mb: float = 0.0


class Desk:
    """The little course, in a new folder in `run`, in which one job grades."""

    def __init__(self, course: Course, lab: Lab, run: Path) -> None:
        root = Path(tempfile.mkdtemp(prefix="job-", dir=run))
        for name in ("secret", "offering", "course.toml"):
            if (course.root / name).exists():
                shutil.copy(course.root / name, root / name)
        copy_database(course.root / "gradebook.db", root / "gradebook.db")
        self.course, self.lab = Course.open(root), lab
        self._api = self.course.nbgrader(submitted="intake")

    def grade(self, task: Task) -> Graded:
        """Grade one submission. Never raises: one submission must not stop a class."""
        started_s = time.monotonic()
        try:
            graded = self._graded(task)
        except intake.Problem as problem:
            graded = Graded(_without(self.lab, task.student, problem.status, problem.line))
        except Exception as error:
            graded = failed(self.lab, task.student, f"{type(error).__name__}: {error}")
        graded.result["seconds"] = round(time.monotonic() - started_s, 2)
        graded.peak_mb = peak_mb()
        return graded

    def _graded(self, task: Task) -> Graded:
        course, lab, name = self.course, self.lab, task.student
        if not is_plain_id(name):
            raise intake.Problem("unreadable", "the student id cannot be a folder name")
        notebook = intake.take(task.folder, lab)
        grading.result_path(course, lab, name).unlink(missing_ok=True)
        with course.gradebook() as gradebook, contextlib.suppress(MissingEntry):
            gradebook.remove_submission(lab.name, name)  # it may have the cells of an older version
        target = course.root / "intake" / name / lab.name
        shutil.rmtree(target, ignore_errors=True)
        notebooks.write(notebook, target / f"{lab.name}.ipynb")
        answer = self._api.autograde(lab.name, name)
        result = grading.result_of(course, lab, name)
        if result is None or not answer["success"]:
            lines = (answer.get("error") or answer.get("log") or "").strip().splitlines()
            return failed(lab, name, f"nbgrader: {lines[-1] if lines else 'no reason given'}")
        graded = Graded(result, folder=course.root / "autograded" / name / lab.name)
        with course.gradebook() as gradebook:
            for saved in gradebook.find_submission(lab.name, name).notebooks:
                for grade in saved.grades:
                    graded.grades[grade.name] = (grade.auto_score, grade.needs_manual_grade)
                for comment in saved.comments:
                    graded.comments[comment.name] = comment.auto_comment
        return graded


def _without(lab: Lab, student: str, status: str, line: str) -> Result:
    return grading.blank(lab, student) | {"status": status, "notes": [line]}


def failed(lab: Lab, student: str, why: str) -> Graded:
    """The grader's own failure: no score, and it is tried again at the next run."""
    line = f"the grader itself failed ({why}): please report it"
    result = _without(lab, student, "unreadable", line)
    return Graded(result | {"grader_failed": True})


def peak_mb() -> float:
    """The most memory that this process and its largest child had, in MB."""
    child_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (_own_peak_kb() + child_kb) * 1024 / 1e6


def _own_peak_kb() -> int:
    # NOTE: a started process's `ru_maxrss` begins with what its parent had.
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy of an SQLite file that may be in use. Raises `ConfigError`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            contextlib.closing(sqlite3.connect(source)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise ConfigError(f"cannot copy {source}: {error}", DATABASE_HINT) from None
    target.chmod(0o600)


def run(course: Course, lab: Lab, tasks: Sequence[Task], jobs: int) -> Iterator[Graded]:
    """Grade all tasks, as they are done. With one job it happens in this process."""
    work = course.root / "work"
    shutil.rmtree(work, ignore_errors=True)  # what a killed run has left
    work.mkdir(mode=0o700, exist_ok=True)
    # NOTE: a name of its own, since a job of a killed run may still be at its last breath
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    try:
        if jobs <= 1 or len(tasks) <= 1:
            desk = Desk(course, lab, folder) if tasks else None
            for task in tasks:
                yield desk.grade(task)
        else:
            yield from _run_side_by_side(course, lab, tasks, min(jobs, len(tasks)), folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Job:
    """A process that grades, and the pipe to it."""

    def __init__(self, course: Course, lab: Lab, run: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (course.root, lab.name, run, theirs)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.deadline_s = 0.0

    def give(self, task: Task) -> None:
        self.task, self.deadline_s = task, time.monotonic() + PATIENCE_S
        with contextlib.suppress(OSError):  # it has died: whoever listens hears of it
            self.pipe.send(task)

    def stop(self) -> None:
        # NOTE: killed, not asked: the sandbox of a killed job dies with it.
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _end_with(run: BaseProcess) -> None:
    run.join()
    os._exit(1)


def _serve(root: Path, lab_name: str, run: Path, pipe: Connection) -> None:
    """A job's whole life: it ends when the run hangs up, and at once when the run is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    desk = None
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        lab = scoring.find(lab_name)
        desk = desk or Desk(Course.open(root), lab, run)
        pipe.send(desk.grade(task))


def _run_side_by_side(
    course: Course, lab: Lab, tasks: Sequence[Task], jobs: int, run: Path
) -> Iterator[Graded]:
    left = list(reversed(tasks))
    team = [_Job(course, lab, run) for _ in range(jobs)]
    try:
        for job in team:
            job.give(left.pop())
        while busy := [job for job in team if job.task is not None]:
            ready = wait([job.pipe for job in busy], timeout=1.0)
            for job in busy:
                graded, lost = None, ""
                if job.pipe in ready:
                    try:
                        graded = job.pipe.recv()
                    except (EOFError, OSError):
                        lost = "its process ended"
                elif time.monotonic() > job.deadline_s:
                    lost = f"no end after {PATIENCE_S:g} s"
                if lost:
                    graded = failed(lab, job.task.student, lost)
                    job.stop()  # NOTE: another one takes its place in the team
                    team[team.index(job)] = job = _Job(course, lab, run)
                if graded is None:
                    continue
                job.task = None
                yield graded
                if left:
                    job.give(left.pop())
    finally:
        for job in team:
            job.stop()
