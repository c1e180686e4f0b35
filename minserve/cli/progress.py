"""`minserve progress`: how far a learner has come."""

from __future__ import annotations

from minserve.cli.console import Json, print_json


def progress(json: Json = False) -> None:
    """Show which parts you have built, checked and installed, by lesson, and your concept checks.

    Examples:

    - `minserve progress`

    - `minserve progress --json`
    """
    from minserve.learn import progress

    progress.tell()
    if json:
        print_json(progress.as_dict())
