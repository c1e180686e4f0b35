"""`python -m autograder`: from a lab's source to exported grades."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from autograder.commands import classes, labs
from minserve.errors import MinserveError

app = typer.Typer(
    help="Release, grade and export the labs over nbgrader, and prove that the grader is right.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (labs.release, classes.collect, classes.grade, classes.regrade, classes.feedback):
    app.command()(command)
for command in (classes.export, classes.similar, classes.whois, classes.purge):
    app.command()(command)
for command in (labs.selftest, labs.practice):
    app.command()(command)
app.command("student-copy")(labs.student_copy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that a user can mend is one line and exit code 2."""
    try:
        app(None if arguments is None else list(arguments))
    except MinserveError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder where a file is wanted, no permission
        where = f": {error.filename2 or error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
