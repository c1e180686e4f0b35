"""`minserve lab` and `minserve check`: work on a lab alone, with the public tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minserve.cli.console import Json, print_json
from minserve.errors import DataNotFound

Name = Annotated[str, typer.Argument(help="The lab, as `minserve lab list` names it.")]

lab = typer.Typer(help="The labs: list them, and get a clean copy.", no_args_is_help=True)


@lab.command("list")
def show(json: Json = False) -> None:
    """List the labs that are here.

    Example: `minserve lab list`
    """
    from minserve.learn import labs

    here = labs.labs()
    if not here:
        raise DataNotFound("there are no labs here", "run this in the course's repository")
    for each in here:
        print(f"{each.short:10} {each.title}")
    if json:
        told = [{"name": each.short, "title": each.title, "path": str(each.path)} for each in here]
        print_json({"labs": told})


@lab.command()
def start(
    name: Name,
    to: Annotated[
        Path | None, typer.Option(help="Folder; by default ./ and the lab's name.")
    ] = None,
) -> None:
    """Get a clean copy of a lab's notebook. Never writes over your work.

    Example: `minserve lab start lab3 --to ~/work`
    """
    from minserve.learn import labs

    found = labs.find(name)
    path = labs.start(found, to or Path(found.name))
    print(path)
    print(
        f"Open it with `jupyter lab {path}`; check it with `minserve check {found.short} {path}`."
    )


def check(
    name: Name,
    notebook: Annotated[Path | None, typer.Argument(help="Your notebook.")] = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds for the run.")] = 120.0,
    json: Json = False,
) -> None:
    """Check a lab's notebook by its public tests. Exit code 1 if one fails.

    Without NOTEBOOK it looks here, in the lab's folder here, and in labs/.

    Example: `minserve check lab3`
    """
    from minserve.learn import labs

    found = labs.find(name)
    path = notebook or _look_for(found.path)
    checked = labs.check(found, path, limit_s)
    print(f"{found.title}\n{path}\n")
    for outcome in checked.outcomes:
        word = "to do" if outcome.is_to_do else "holds" if outcome.holds else "FAILS"
        print(f"{word}  {outcome.points:g} points: {outcome.rule}")
        print(*(f"       {line}" for line in outcome.lines()), sep="\n")
        for line in outcome.printed.splitlines()[-3:]:
            print(f"       it printed: {line}")
    print(*checked.notes, sep="\n")
    if checked.is_untouched:
        print(
            "You have not changed the lab's code yet. It runs as it should at the start, and "
            "nothing is earned yet: find out why each test FAILS, and write what is to do."
        )
    print(
        f"By the public tests: {checked.points}. A class is graded with other values and orders "
        "of events, so this is not yet a score; points by hand are a person's, for your text."
    )
    if json:
        rows = [
            {name: getattr(outcome, name) for name in outcome.__slots__} | {"holds": outcome.holds}
            for outcome in checked.outcomes
        ]
        told = {"points": checked.points, "holds": checked.holds, "outcomes": rows}
        print_json({"lab": found.name, "notebook": str(path), **told})
    if not checked.holds:
        raise typer.Exit(1)


def _look_for(given: Path) -> Path:
    for path in (Path(given.name), Path(given.stem) / given.name):
        if path.exists():
            return path
    return given
