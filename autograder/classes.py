"""A class: who is graded, what is kept, what may change, in a run that can be taken up again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from autograder import gradebook, grading, intake, jobs, receipts, release
from autograder.course import Course
from autograder.grading import Result
from autograder.jobs import Graded, Task
from autograder.scoring.base import Lab

Told = Callable[[Result], None]


@dataclass
class Run:
    """What a run did. `changes` are lines for people; `kept_lower` were not lowered."""

    results: list[Result] = field(default_factory=list)
    num_graded: int = 0
    num_kept: int = 0  # done before, with the same notebook and the same version of the lab
    changes: list[str] = field(default_factory=list)
    peak_mb: float = 0.0  # of the largest job


def students(course: Course, lab: Lab, roster: Iterable[str]) -> list[str]:
    """Who is on the roster, in the gradebook or in a group, or has handed something in."""
    found = set(roster)
    for folder in (course.root / "submitted").iterdir():
        if (folder.is_dir() or folder.is_symlink()) and not folder.name.startswith("."):
            found.add(folder.name)
    with course.gradebook() as book:
        found |= {student.id for student in book.students}
    groups = course.rules().groups_of(lab)
    members = {name for group in groups.values() for name in group}
    # NOTE: a group may be named after one of its own, who is a student all the same
    return sorted((found | members) - (set(groups) - members))


def grade(
    course: Course,
    lab: Lab,
    names: Iterable[str],
    told: Told = lambda result: None,
    num_jobs: int = 1,
    force: bool = False,
    may_lower: bool = False,
    is_rehearsal: bool = False,
    now: datetime | None = None,
) -> Run:
    """Grade one lab for these students; `told` hears of each as it is done.

    What is done is not done again, unless the notebook or the lab's version has changed, or
    `force`. A score that the same notebook has already is lowered only if it `may_lower`. A
    rehearsal changes no result and no score.
    """
    now = now or datetime.now(UTC)
    with gradebook.locked(course):
        if not is_rehearsal:
            gradebook.back_up(course, now)
        release.register(course, lab)
        plan = [_planned(course, lab, name, now) for name in names]
        run, waiting, there = Run(), {}, gradebook.graded_students(course, lab)
        for task, handed_in_by, digest in plan:
            old = grading.result_of(course, lab, task.student)
            is_saved = old is not None and (old["score"] is None or task.student in there)
            if not force and is_saved and _is_done(lab, old, digest):
                run.results.append(old)
                run.num_kept += 1
                told(old)
            else:
                waiting[task.student] = (task, handed_in_by, digest, old)
        doing = jobs.run(course, lab, [task for task, *_ in waiting.values()], num_jobs)
        with closing(doing):  # an interrupted run ends its jobs at once
            for graded in doing:
                task, handed_in_by, digest, old = waiting[graded.result["student"]]
                graded.result |= {"digest": digest, "handed_in_by": handed_in_by}
                if handed_in_by != task.student and digest:
                    graded.result["notes"].append(f"handed in by {handed_in_by} for the group")
                result = _decided(course, lab, graded, old, may_lower, is_rehearsal, run)
                run.peak_mb = max(run.peak_mb, graded.peak_mb)
                run.num_graded += 1
                run.results.append(result)
                told(result)
        run.results.sort(key=lambda result: result["student"])
        if not is_rehearsal:
            gradebook.settle_lateness(course, lab, run.results)
    return run


def _planned(course: Course, lab: Lab, student: str, now: datetime) -> tuple[Task, str, str]:
    """(task, who handed it in, digest of the notebook or "")."""
    digests = {m: _digest(course, lab, m) for m in course.rules().members(lab, student)}
    there = [member for member, digest in digests.items() if digest]
    for member in there:  # what was put there by hand is received when it is first seen
        receipts.record(course, lab, member, digests[member], "found", now)
    by = receipts.newest(course, lab, there) or student
    folder = course.root / "submitted" / by / lab.name
    return Task(student, folder), by, digests.get(by, "")


def _digest(course: Course, lab: Lab, student: str) -> str:
    path: Path = course.root / "submitted" / student / lab.name / f"{lab.name}.ipynb"
    if any(part.is_symlink() for part in (path.parent.parent, path.parent)):
        return ""
    try:
        return hashlib.sha256(intake.read_bytes(path)).hexdigest()
    except intake.Problem:
        return ""


def _is_done(lab: Lab, old: Result, digest: str) -> bool:
    is_same = old.get("digest") == digest and old["version"] == release.version(lab)
    return bool(digest) and is_same and not old.get("grader_failed")


def _decided(
    course: Course,
    lab: Lab,
    graded: Graded,
    old: Result | None,
    may_lower: bool,
    is_rehearsal: bool,
    run: Run,
) -> Result:
    """Keep the old result or take the new one, and say what changes."""
    new, name = graded.result, graded.result["student"]
    is_new_work = old is None or old.get("digest") != new["digest"]
    had = old is not None and old["score"] is not None
    is_lower = had and (new["score"] is None or new["score"] < old["score"])
    if had and not is_new_work and is_lower and not may_lower:
        run.changes.append(f"{name}: {_difference(old, new)}; kept, --lower would take it")
        return old
    if had and _vector(new) != _vector(old):
        run.changes.append(f"{name}: {_difference(old, new)}")
    with course.gradebook() as book:
        manual = gradebook.manual_scores(book, lab, name)
    for cell, score in sorted(manual.items()):
        if old is not None:
            run.changes.append(f"{name}: {cell} keeps the {score:g} that a person gave")
        if cell not in lab.manual:  # it wins over the computed one: never silently
            new["notes"].append(f"cell {cell} keeps its manual score {score:g}")
    if not is_rehearsal:
        if graded.folder is not None:
            gradebook.merge(course, lab, graded, is_new_work)
        grading.save(course, new)
    return new


def _vector(result: Result) -> dict[str, float]:
    return {cell["grade_id"]: cell["score"] for cell in result["cells"]}


def _difference(old: Result, new: Result) -> str:
    if new["score"] is None:
        return f"{old['score']:g} -> {new['status']}"
    was, cells = _vector(old), []
    for cell, score in _vector(new).items():
        if was.get(cell) != score:
            cells.append(f"{cell} {was.get(cell, 0):g} -> {score:g}")
    return f"{old['score']:g} -> {new['score']:g} ({', '.join(cells)})"
