"""The commands of `python -m autograder`, a file per thing that an instructor does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

LabName = Annotated[str, typer.Argument(help="Short name of the lab, for example lab3.")]
CourseFolder = Annotated[
    Path | None,
    typer.Option(
        "--course", help="Course folder; else MINSERVE_COURSE, else ./gradebook. Made if absent."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")]
Students = Annotated[
    list[str] | None, typer.Option("--student", help="Only these; may be repeated.")
]


def find(name: str) -> Any:
    from autograder import scoring

    return scoring.find(name)


def open_course(folder: Path | None) -> Any:
    from autograder.course import Course

    return Course.open(folder)


def check_isolation(accept_weak: bool) -> None:
    """Refuse to run learners' code where it could read and change files, unless accepted."""
    from autograder import sandbox

    if accept_weak:
        os.environ[sandbox.ACCEPTS_WEAK] = "yes"
    if (level := sandbox.accepted_level()) != "bubblewrap":
        what = f"isolation is only {level!r}: learners' code can read and change your files"
        print(f"warning: {what}", file=sys.stderr)
