"""`python -m autograder`: from a lab's source to exported grades."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.errors import ConfigError, DataNotFound, MinserveError

app = typer.Typer(
    help="Release, grade and export the labs over nbgrader, and prove that the grader is right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
LabName = Annotated[str, typer.Argument(help="Short name of the lab, for example lab3.")]
CourseFolder = Annotated[
    Path | None,
    typer.Option(
        "--course", help="Course folder; else MINSERVE_COURSE, else ./gradebook. Made if absent."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]


def find(name: str) -> Any:
    from autograder import scoring

    return scoring.find(name)


def open_course(folder: Path | None) -> Any:
    from autograder.course import Course

    return Course.open(folder)


@app.command()
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


@app.command()
def grade(
    lab_name: LabName,
    student: Annotated[
        list[str] | None, typer.Option("--student", help="Only these; may be repeated.")
    ] = None,
    submissions: Annotated[
        Path | None,
        typer.Option(help="Copy STUDENT/LAB.ipynb from here into the course first."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="CSV with student_id,last_name,first_name[,email].")
    ] = None,
    weak: Annotated[
        bool,
        typer.Option(
            "--accept-weak-isolation",
            help="Grade without bubblewrap: learners' code can then read and change your files.",
        ),
    ] = False,
    course: CourseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Grade what was handed in. Who handed in nothing is listed as missing, never as a zero."""
    from autograder import grading, report, sandbox

    lab, opened = find(lab_name), open_course(course)
    if (level := sandbox.best_level()) != "bubblewrap":
        what = f"isolation is only {level!r}: learners' code can read and change your files"
        if not weak:
            raise ConfigError(what, "install bubblewrap, or add --accept-weak-isolation")
        print(f"warning: {what}", file=sys.stderr)
    people = read_roster(roster) if roster else {}
    if submissions is not None:
        collect(opened, lab, submissions)
    with opened.gradebook() as gradebook:
        for name, person in people.items():
            gradebook.update_or_create_student(name, **person)
    known = grading.students(opened, lab, people)
    unknown = sorted(set(student or ()) - set(known))
    if unknown:
        raise DataNotFound(
            f"no student {unknown[0]!r}: not on the roster, and nothing handed in",
            f"put the notebook at {opened.root}/submitted/{unknown[0]}/{lab.name}/{lab.name}.ipynb",
        )
    names = sorted(student) if student else known
    if not names:
        raise DataNotFound(
            f"nothing was handed in under {opened.root / 'submitted'}",
            "use `nbgrader collect`, or --submissions FOLDER with STUDENT/*.ipynb",
        )
    results = grading.grade(opened, lab, names, lambda r: as_json or print(report.line(r)))
    if as_json:
        print(json.dumps({"lab": lab.name, "results": results}))
    alone = results[0] if len(results) == 1 else None
    if alone and alone["score"] is None:
        raise DataNotFound(f"{alone['student']}: {alone['notes'][0]}", "nothing else was changed")


def collect(course: Any, lab: Any, source: Path) -> None:
    """Copy notebooks into the course. Only notebooks, links as links: intake refuses those."""
    import shutil

    if not source.is_dir():
        raise DataNotFound(f"{source} is no folder", "give a folder with one folder per student")
    for folder in sorted(source.iterdir()):
        if not folder.is_dir() or folder.is_symlink():
            continue
        inner = folder / lab.name if (folder / lab.name).is_dir() else folder
        target = course.root / "submitted" / folder.name / lab.name
        target.mkdir(parents=True, exist_ok=True)
        for path in inner.glob("*.ipynb"):
            (target / path.name).unlink(missing_ok=True)
            shutil.copy(path, target / path.name, follow_symlinks=False)


def read_roster(path: Path) -> dict[str, dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
            fields = ("last_name", "first_name", "email")
            return {row["student_id"]: {key: row.get(key) or "" for key in fields} for row in rows}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise DataNotFound(
            f"cannot read the roster {path} ({type(error).__name__}: {error})",
            "a CSV file whose first line is student_id,last_name,first_name",
        ) from None


@app.command()
def feedback(lab_name: LabName, course: CourseFolder = None) -> None:
    """Write one page per graded student: what was seen, which rule it breaks, where to look."""
    from autograder import report

    lab, opened = find(lab_name), open_course(course)
    for path in report.feedback(opened, lab):
        print(path)


@app.command()
def export(
    lab_name: LabName,
    to: Annotated[Path, typer.Option(help="The CSV file.")] = Path("grades.csv"),
    course: CourseFolder = None,
) -> None:
    """Write scores with their status as CSV. A score that does not exist stays empty."""
    from autograder import report

    lab, opened = find(lab_name), open_course(course)
    print(f"{report.export(opened, lab, to)} rows in {to}")


@app.command()
def selftest(
    lab_name: Annotated[str, typer.Argument(help="Short name of a lab.")] = "lab3",
    only: Annotated[str, typer.Option(help="Only submissions whose name has this text.")] = "",
    as_json: AsJson = False,
) -> None:
    """Score the bank of right, wrong and hostile submissions; exit 1 unless all are as written."""
    from autograder import selftest as tester

    lab = find(lab_name)

    def show(line: Any) -> None:
        if not as_json:
            same = "equal " if line.is_equal else "DIFFER"
            print(
                f"{same} {line.way:8} {line.name:52} expected {show_vector(line.expected):16} "
                f"{line.expected_status:10} actual {show_vector(line.actual):16} {line.status} "
                f"{line.lacks}".rstrip(),
                flush=True,
            )

    outcome = tester.run(lab, show, lambda submission: only in submission.name)
    equal = sum(line.is_equal for line in outcome.lines)
    if as_json:
        lines = [
            {**{k: v for k, v in vars(line).items() if k != "cells"}, "equal": line.is_equal}
            for line in outcome.lines
        ]
        print(
            json.dumps(
                {
                    "lab": lab.name,
                    "all_equal": outcome.is_green,
                    "isolation": outcome.isolation,
                    "undetected": outcome.undetected,
                    "skipped": outcome.num_skipped,
                    "lines": lines,
                }
            )
        )
    else:
        if outcome.num_skipped:
            print(f"{outcome.num_skipped} hostile submissions need bubblewrap: NOT RUN")
        for name in outcome.undetected:
            print(f"NOT PROVEN: without the check {name} every score would be the same")
        num_kinds = sum(len(kinds) for kinds in lab.kinds.values())
        if not only and not outcome.undetected:
            print(f"each of {num_kinds} checks is needed: without it some score would differ")
        print(f"{equal} of {len(outcome.lines)} equal (isolation: {outcome.isolation})")
    if not outcome.is_green:
        raise typer.Exit(1)


def show_vector(vector: tuple[float, ...] | None) -> str:
    return "-" if vector is None else " ".join(f"{score:g}" for score in vector)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that a user can mend is one line and exit code 2."""
    try:
        app(None if arguments is None else list(arguments))
    except MinserveError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
