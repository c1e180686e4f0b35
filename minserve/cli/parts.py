"""`minserve parts`: what the learner has built, and whose part the engine runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.cli.server_url import DEFAULT_URL, Key, ServerReader, Url
from minserve.errors import DataNotFound

Name = Annotated[str, typer.Argument(help="The part, as `minserve parts` lists it.")]

parts = typer.Typer(invoke_without_command=True)


@parts.callback()
def show(
    context: typer.Context,
    json: Json = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Which of them a server's last requests went through."),
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Show which parts of the engine you have built, and whose the engine runs.

    Examples:

    - `minserve parts`

    - to unblock a lesson: `minserve parts use block_pool reference`

    - to see pseudocode: `minserve parts hint block_pool 3`

    - beside a running `minserve serve --parts`: `minserve parts --trace`
    """
    if context.invoked_subcommand:
        return
    if trace:
        told = _of_server(url, key)
        return print_json(told) if json else _draw(told)
    from minserve.learn.parts import parts_status
    from minserve.learn.progress import standings
    from minserve.learn.workspace import Workspace

    parts_status()
    if json:
        print_json(
            {
                "parts": [
                    {
                        "name": part.name,
                        "lesson": part.lesson,
                        "is_green": part.is_built,
                        "is_checked": part.is_checked,
                        "is_installed": part.is_installed,
                        "version": part.version,
                        "engine_runs": Workspace(part.name).use,
                    }
                    for part in standings()
                ]
            }
        )


def _of_server(url: str, key: str | None) -> dict[str, Any]:
    try:
        return ServerReader(url, key).get("/v1/parts")
    except DataNotFound as error:
        if "there is no /v1/parts" in str(error):
            error.hint = "only `minserve serve --parts` runs yours: start that one"
        raise


def _draw(told: dict[str, Any], most: int = 12) -> None:
    """Whose part runs in each place, and of the last requests how often each was called."""
    from rich.table import Table

    console = out()
    mine = {p["name"]: p["version"] for p in told["parts"] if p["runs"] == "yours"}
    for part in told["parts"]:
        if part["name"] not in mine:
            console.print(f"{part['name']}: {part['why']}, so the reference runs", soft_wrap=True)
    if told["at_start"]:
        console.print(f"Yours, before any request: {', '.join(told['at_start'])}", soft_wrap=True)
    requests = told["requests"][-most:]
    table = Table("your part", title="calls by request, the newest to the right", show_lines=False)
    for request in requests:
        table.add_column(request["id"][-6:], justify="right")
    table.add_row("came as no.", *(str(request["arrived"] or "-") for request in requests))
    table.add_row("served as no.", *(str(request["served"] or "-") for request in requests))
    for name, version in mine.items():
        calls = [request["parts"].get(name) for request in requests]
        if name not in told["at_start"]:
            table.add_row(f"{name}, version {version}", *(str(n or "-") for n in calls))
    table.add_row("ended", *(request["state"] for request in requests))
    console.print(table)


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
