"""release, selftest, student-copy, practice: what is done with labs before a class has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from autograder.commands import AsJson, CourseFolder, LabName, find, open_course
from minserve.errors import ConfigError


def release(
    lab_name: LabName,
    to: Annotated[Path | None, typer.Option(help="Folder to write to instead of labs/.")] = None,
    variant: Annotated[str, typer.Option(help="The planted variant.")] = "a",
    student: Annotated[
        str | None, typer.Option(help="Build this student's own variant; needs --to.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: exit 1 if labs/ is out of date.")
    ] = False,
    course: CourseFolder = None,
) -> None:
    """Build what learners get from solutions/: faults planted, solutions gone, leaks refused."""
    from autograder import notebooks
    from autograder import release as builder

    lab = find(lab_name)
    if student is not None:
        if to is None:
            raise ConfigError("a student's own variant is not for labs/", "say where with --to")
        variant, text = builder.for_student(open_course(course), lab, student)
    else:
        text = builder.build(lab, variant)
    path = notebooks.path_in(to or notebooks.LABS, lab.name)
    if check:
        if not path.exists() or path.read_text("utf-8") != text:
            print(
                f"{path} differs from a fresh build: run `python -m autograder release {lab_name}`"
            )
            raise typer.Exit(1)
        print(f"{path} is up to date")
        return
    notebooks.write_whole(path, text)
    print(path)


def selftest(
    lab_name: Annotated[
        str | None, typer.Argument(help="Short name of a lab; all of them without it.")
    ] = None,
    only: Annotated[str, typer.Option(help="Only submissions whose name has this text.")] = "",
    as_json: AsJson = False,
) -> None:
    """Score the bank of right, wrong and hostile submissions; exit 1 unless all are as written."""
    from autograder import scoring
    from autograder import selftest as tester

    labs = [find(lab_name)] if lab_name else list(scoring.LABS.values())
    told = []
    for lab in labs:
        show = _silent if as_json else _show
        outcome = tester.run(lab, show, lambda submission: only in submission.name)
        told.append((lab, outcome))
        if not as_json:
            _summarise(lab, outcome, whole=not only)
    if as_json:
        print(json.dumps(_as_json(told)))
    if not all(outcome.is_green for _, outcome in told):
        raise typer.Exit(1)


def _silent(line: Any) -> None:
    pass


def _show(line: Any) -> None:
    same = "equal " if line.is_equal else "DIFFER"
    print(
        f"{same} {line.way:8} {line.name:52} expected {show_vector(line.expected):16} "
        f"{line.expected_status:10} actual {show_vector(line.actual):16} {line.status} "
        f"{line.lacks}".rstrip(),
        flush=True,
    )


def _summarise(lab: Any, outcome: Any, whole: bool) -> None:
    if outcome.num_skipped:
        print(f"{outcome.num_skipped} hostile submissions need bubblewrap: NOT RUN")
    for name in outcome.undetected:
        print(f"NOT PROVEN: without the check {name} every score would be the same")
    if whole and not outcome.undetected:
        num_kinds = sum(len(kinds) for kinds in lab.kinds.values())
        print(f"each of {num_kinds} checks is needed: without it some score would differ")
    equal = sum(line.is_equal for line in outcome.lines)
    print(f"{lab.name}: {equal} of {len(outcome.lines)} equal (isolation: {outcome.isolation})")


def _as_json(told: list[tuple[Any, Any]]) -> dict[str, Any]:
    labs = []
    for lab, outcome in told:
        lines = [
            {**{k: v for k, v in vars(line).items() if k != "cells"}, "equal": line.is_equal}
            for line in outcome.lines
        ]
        labs.append(
            {
                "lab": lab.name,
                "all_equal": outcome.is_green,
                "num_equal": sum(line.is_equal for line in outcome.lines),
                "num_lines": len(outcome.lines),
                "isolation": outcome.isolation,
                "undetected": outcome.undetected,
                "skipped": outcome.num_skipped,
                "lines": lines,
            }
        )
    return {"labs": labs, "all_equal": all(lab["all_equal"] for lab in labs)}


def show_vector(vector: tuple[float, ...] | None) -> str:
    return "-" if vector is None else " ".join(f"{score:g}" for score in vector)


def student_copy(
    to: Annotated[Path, typer.Argument(help="A folder that is new or empty.")],
) -> None:
    """Make the repository that students get: no solutions, scoring, bank, notes or history."""
    from autograder.student_copy import make

    print(f"{make(to)} files in {to}")


def practice(
    lab_name: LabName,
    to: Annotated[Path, typer.Option(help="Folder to write to.")],
    students: Annotated[int, typer.Option(min=1, max=10_000)] = 30,
) -> None:
    """Invent a class: right, wrong and hostile submissions and a roster, to rehearse with."""
    from autograder.practice import invent

    print(f"{invent(find(lab_name), to, students)} students in {to}")
