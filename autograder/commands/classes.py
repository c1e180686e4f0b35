"""collect, grade, regrade, feedback, export, similar: a class, from handing in to the registry."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from autograder.commands import (
    AsJson,
    CourseFolder,
    LabName,
    Students,
    check_isolation,
    find,
    open_course,
)
from minserve.errors import ConfigError, DataNotFound

Jobs = Annotated[int, typer.Option(min=1, max=64, help="Submissions graded side by side.")]
Roster = Annotated[
    Path | None, typer.Option(help="CSV with student_id,last_name,first_name[,email].")
]
Weak = Annotated[
    bool,
    typer.Option(
        "--accept-weak-isolation",
        help="Grade without bubblewrap: learners' code can then read and change your files.",
    ),
]


def collect(
    lab_name: LabName,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Folder with STUDENT/LAB.ipynb, or a zip file of such."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(help="For a zip file: regular expression of a path, with (?P<student>...)."),
    ] = None,
    received: Annotated[
        datetime | None,
        typer.Option(help="When a folder or zip file was received, in UTC; else now."),
    ] = None,
    student: Students = None,
    course: CourseFolder = None,
) -> None:
    """Take submissions into the course, and record when. Without --from: nbgrader's exchange."""
    from autograder import collecting

    lab, opened = find(lab_name), open_course(course)
    when = received.replace(tzinfo=UTC) if received else datetime.now(UTC)
    if source is None:
        done = collecting.from_exchange(opened, lab)
    elif source.is_dir() or not source.exists():
        done = collecting.from_folder(opened, lab, source, when, set(student or ()))
    else:
        done = collecting.from_zip(opened, lab, source, when, pattern or collecting.PATTERN)
    for line in done.refused:
        print(f"refused: {line}")
    print(f"{len(done.taken)} new, {len(done.same)} as before, {len(done.refused)} refused")


def grade(
    lab_name: LabName,
    student: Students = None,
    submissions: Annotated[
        Path | None,
        typer.Option(help="Collect STUDENT/LAB.ipynb from here first, as received now."),
    ] = None,
    roster: Roster = None,
    jobs: Jobs = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Grade again what is done; scores only rise.")
    ] = False,
    weak: Weak = False,
    course: CourseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Grade what was handed in. Who handed in nothing is listed as missing, never as a zero.

    Interrupted? Run it again: what is done is not done again.
    """
    from autograder import collecting

    lab, opened = find(lab_name), open_course(course)
    check_isolation(weak)
    people = read_roster(roster) if roster else {}
    if submissions is not None:
        collecting.from_folder(opened, lab, submissions, datetime.now(UTC))
    with opened.gradebook() as gradebook:
        for name, person in people.items():
            gradebook.update_or_create_student(name, **person)
    run = _run(opened, lab, list(people), student, as_json, num_jobs=jobs, force=force)
    for line in [] if as_json else run.changes:
        print(line)
    if as_json:
        told = {"graded": run.num_graded, "kept": run.num_kept, "peak_mb": round(run.peak_mb)}
        print(json.dumps({"lab": lab.name, **told, "results": run.results}))
    else:
        without = sum(result["score"] is None for result in run.results)
        print(
            f"{run.num_graded} graded, {run.num_kept} done before"
            + (f", {without} of them without a score" if without else "")
            + f"; peak memory of a job {run.peak_mb:.0f} MB"
        )
    alone = run.results[0] if len(run.results) == 1 else None
    if alone and alone["score"] is None:
        raise DataNotFound(f"{alone['student']}: {alone['notes'][0]}", "nothing else was changed")


def regrade(
    lab_name: LabName,
    student: Students = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would change.")
    ] = False,
    lower: Annotated[bool, typer.Option("--lower", help="Let scores fall as well.")] = False,
    jobs: Jobs = 1,
    weak: Weak = False,
    course: CourseFolder = None,
) -> None:
    """Grade everything again and list every change. No score falls unless you say --lower."""
    lab, opened = find(lab_name), open_course(course)
    check_isolation(weak)
    options = {"force": True, "may_lower": lower, "is_rehearsal": dry_run, "num_jobs": jobs}
    run = _run(opened, lab, [], student, True, **options)
    for line in run.changes:
        print(line)
    what = "would change or be kept" if dry_run else "changed or kept"
    print(f"{run.num_graded} graded again; {len(run.changes)} lines of what {what}")


def _run(
    opened: Any,
    lab: Any,
    roster: list[str],
    student: list[str] | None,
    is_quiet: bool,
    **options: Any,
) -> Any:
    from autograder import classes, report

    known = classes.students(opened, lab, roster)
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
            f"use `python -m autograder collect {lab.name}`, or --submissions FOLDER",
        )
    with progress(len(names)) as told:
        run = classes.grade(opened, lab, names, told, **options)
    if not is_quiet:
        print(*report.table(opened, lab, set(names)), sep="\n")
    return run


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar on standard error, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[of]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("grading", total=total, of="")
        yield lambda result: bar.update(task, advance=1, of=result["student"][:24])


def read_roster(path: Path) -> dict[str, dict[str, str]]:
    """The people on a roster, by id. Raises `DataNotFound` that names the line to mend."""
    from autograder.collecting import as_id, is_plain_id

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
            ids = [as_id(row["student_id"] or "") for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise DataNotFound(
            f"cannot read the roster {path} ({type(error).__name__}: {error})",
            "a CSV file whose first line is student_id,last_name,first_name",
        ) from None
    for number, name in enumerate(ids, start=2):
        if not is_plain_id(name) or ids.index(name) != number - 2:
            what = "is there twice" if is_plain_id(name) else "is no student id"
            raise DataNotFound(f"{path}, person {number - 1}: {name!r} {what}", "mend the roster")
    fields = ("last_name", "first_name", "email")
    return {
        name: {key: _shown(row.get(key) or "") for key in fields}
        for name, row in zip(ids, rows, strict=True)
    }


def _shown(text: str) -> str:
    """NOTE: nbgrader's formgrader puts names into its pages as if they were HTML."""
    return "".join(c for c in text if c.isprintable() and c not in "<>").strip()


def feedback(lab_name: LabName, student: Students = None, course: CourseFolder = None) -> None:
    """Write one page per graded student: what was seen, which rule it breaks, where to look."""
    from autograder import feedback as pages

    lab, opened = find(lab_name), open_course(course)
    for path in pages.write(opened, lab, student or ()):
        print(path)


def export(
    lab_name: LabName,
    to: Annotated[Path, typer.Option(help="The CSV file.")] = Path("grades.csv"),
    style: Annotated[
        str, typer.Option("--format", help="plain, canvas, moodle or pseudonyms.")
    ] = "plain",
    course: CourseFolder = None,
) -> None:
    """Write scores with their status as CSV. A score that does not exist stays empty."""
    from autograder import exports

    lab, opened = find(lab_name), open_course(course)
    print(f"{exports.export(opened, lab, to, style)} rows in {to}")


def similar(
    lab_name: LabName,
    least: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Share of the shorter answer that both have.")
    ] = 0.5,
    course: CourseFolder = None,
    as_json: AsJson = False,
) -> None:
    """List hand-ins that read alike, for you to look at. No score changes; nobody is accused."""
    from autograder import similar as hand_ins

    pairs = hand_ins.compare(open_course(course), find(lab_name), least)
    for pair in pairs:
        print(
            f"{pair.one} and {pair.other}: {pair.share:.0%} alike ({pair.num_runs} runs of "
            f"{hand_ins.RUN} tokens), {pair.published:.0%} of it as in the published solution"
        )
    print(f"{len(pairs)} pairs at {least:.0%} or more. Read them before you think anything of it.")
    if as_json:
        print(json.dumps({"lab": lab_name, "least": least, "pairs": [asdict(p) for p in pairs]}))


def whois(pseudonym: str, course: CourseFolder = None) -> None:
    """Say which student a pseudonym of `export --format pseudonyms` stands for."""
    from autograder import exports

    student = exports.student_of(open_course(course), pseudonym)
    if student is None:
        raise DataNotFound(f"nobody here is {pseudonym!r}", "is this the right course folder?")
    print(student)


def purge(
    student: Students = None,
    older_than_days: Annotated[
        int | None, typer.Option(min=0, max=36_500, help="Else [privacy] keep_days of course.toml.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only list.")] = False,
    course: CourseFolder = None,
) -> None:
    """Remove what was kept long enough, or all of one student, from everywhere in the course."""
    from autograder import purging

    opened = open_course(course)
    if student and older_than_days is not None:
        raise ConfigError("give either --student or --older-than-days, not both")
    names = student or purging.expired(opened, older_than_days, datetime.now(UTC))
    for name in names:
        for path in purging.purge(opened, name, is_rehearsal=not yes):
            print(f"{name}: {path}")
    print(f"{len(names)} students {'removed' if yes else 'would be removed: add --yes'}")
