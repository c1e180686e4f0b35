"""`minserve parts`: what the learner has built, and whose part the engine runs."""

from __future__ import annotations

from typing import Annotated

import typer

from minserve.cli.console import Json, print_json

Name = Annotated[str, typer.Argument(help="The part, as `minserve parts` lists it.")]

parts = typer.Typer(invoke_without_command=True)


@parts.callback()
def show(context: typer.Context, json: Json = False) -> None:
    """Show which parts of the engine you have built, and whose the engine runs.

    Examples:

    - `minserve parts`

    - to unblock a lesson: `minserve parts use block_pool reference`

    - to see pseudocode: `minserve parts hint block_pool 3`
    """
    if context.invoked_subcommand:
        return
    from minserve.learn.parts import SLOTS, parts_status
    from minserve.learn.workspace import Workspace

    parts_status()
    if json:
        found = []
        for slot in SLOTS.values():
            workspace = Workspace(slot.name)
            current = workspace.current()
            version = current.number if current else None
            about = {"name": slot.name, "lesson": slot.lesson, "is_green": current is not None}
            found.append(about | {"version": version, "engine_runs": workspace.use})
        print_json({"parts": found})


@parts.command()
def use(name: Name, which: Annotated[str, typer.Argument(help="`mine` or `reference`")]) -> None:
    """Have the engine run your part or the reference, until changed again."""
    from minserve.learn.parts import use

    use(name, which)


@parts.command()
def hint(
    name: Name,
    rung: Annotated[int, typer.Argument(help="1 to 5")] = 1,
    step: Annotated[str | None, typer.Option(help="Which step; by default the first.")] = None,
) -> None:
    """Help, one rung at a time: the rule, a drawing, pseudocode, a near miss, the reference."""
    from minserve.learn.parts import hint

    hint(name, rung, step)


@parts.command()
def restore(name: Name, number: Annotated[int, typer.Argument(help="Which version")]) -> None:
    """Make an earlier version of your part the current one again."""
    from minserve.learn.parts import restore

    restore(name, number)
