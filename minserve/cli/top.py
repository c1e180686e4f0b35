"""`minserve top`: what a server is doing, live in the terminal."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, print_json
from minserve.cli.server_url import DEFAULT_URL, Key, ServerReader, Url
from minserve.errors import ConfigError
from minserve.scheduling.overload import Rung

# Told apart without colour too: full, half and dotted cells.
CELLS = (("used", "█", "blue"), ("cached", "▒", "cyan"), ("free", "·", "bright_black"))
SPARKS = "▁▂▃▄▅▆▇█"
MAP_ROWS = 6


def top(
    url: Url = DEFAULT_URL,
    key: Key = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Look once and print.")] = False,
    as_json: Json = False,
) -> None:
    """Show a running server live: requests, KV blocks, rates and the overload rung.

    Examples:

    - `minserve top`

    - `minserve top --url http://127.0.0.1:8080 --key $KEY`

    - `minserve top --once --json`
    """
    if not 0.05 <= interval <= 60:
        raise ConfigError(f"--interval {interval:g}", "use 0.05 to 60 seconds")
    reader = ServerReader(url, key)
    if as_json:
        return print_json(reader.get("/live"))
    from rich.console import Console
    from rich.live import Live

    history: deque[float] = deque(maxlen=60)

    def look(console: Console):
        picture = reader.get("/live")
        history.append(picture["rates"]["output_tokens_per_s"])
        return screen(picture, list(history), min(console.width, 100))

    console = Console(highlight=False)
    if once or not console.is_terminal:
        return console.print(look(console))
    with Live(look(console), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(look(console), refresh=True)


def screen(picture: dict[str, Any], history: list[float], width: int):
    """The picture as one rich renderable, `width` columns wide."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    rates, blocks, load = picture["rates"], picture["blocks"], picture["load"]
    inner = width - 4
    step_s = rates["step_s"]
    now = Text()
    for label, value in (
        ("running", f"{picture['running']}"),
        ("waiting", f"{picture['waiting']}"),
        ("tokens out/s", f"{rates['output_tokens_per_s']:,.0f}"),
        ("computed/s", f"{rates['computed_tokens_per_s']:,.0f}"),
        ("step", "-" if step_s is None else f"{step_s * 1000:.0f} ms"),
        ("busy", f"{rates['busy']:.0%}"),
    ):
        now.append(value, "bold").append(f" {label}   ", "bright_black")
    parts = [now, Text(), block_map(blocks, inner), Text()]
    parts += [Text("tokens out per second  ", "bright_black") + Text(spark(history), "blue")]
    if queued := load.get("queued_tokens"):
        waits = ", ".join(f"{kind} {count:,}" for kind, count in queued.items())
        parts.append(Text("tokens that wait       ", "bright_black") + Text(waits))
    parts.append(Text("overload ladder        ", "bright_black") + ladder(load["rung"]))
    if reuse := picture.get("reuse"):
        told = [
            f"{kind} {n['answered']:,} of {n['asked']:,}" for kind, n in reuse["caches"].items()
        ]
        told += [f"stale {reuse['stale_hits']:,}"] if reuse["stale_hits"] else []
        for model, outcomes in reuse["cascade"].items():
            told.append(f"{model} " + " ".join(f"{n:,} {what}" for what, n in outcomes.items()))
        parts.append(Text("caches and cascade     ", "bright_black") + Text(", ".join(told)))
    return Panel(
        Group(*parts), title=f"minserve  {picture['model']}", title_align="left", width=width
    )


def block_map(blocks: dict[str, int], width: int):
    """The KV blocks in order of state, a cell for one or more of them, and their counts."""
    from rich.text import Text

    per_cell = max(1, -(-blocks["total"] // (width * MAP_ROWS)))
    num_cells = -(-blocks["total"] // per_cell)
    used = -(-blocks["used"] // per_cell)
    cached = min(num_cells, -(-(blocks["used"] + blocks["cached"]) // per_cell))
    cells = [CELLS[0]] * used + [CELLS[1]] * (cached - used) + [CELLS[2]] * (num_cells - cached)
    text = Text()
    for start in range(0, num_cells, width):
        for _, sign, style in cells[start : start + width]:
            text.append(sign, style)
        text.append("\n")
    for name, sign, style in CELLS:
        text.append(f"{sign} ", style).append(f"{blocks[name]:,} {name}   ")
    scale = f"a cell is {per_cell} blocks" if per_cell > 1 else "a cell is a block"
    return text.append(f"({scale} of {blocks['block_size']} tokens)", "bright_black")


def spark(values: list[float]) -> str:
    """A line of bars, the highest value at full height."""
    most = max(values, default=0.0) or 1.0
    return "".join(SPARKS[round(value / most * (len(SPARKS) - 1))] for value in values)


def ladder(rung: int):
    """The ladder up to `rung`, and what it is called."""
    from rich.text import Text

    style = "green" if rung == 0 else "bold yellow" if rung < Rung.REJECT_LOW else "bold red"
    bars = "■" * (rung + 1) + "□" * (len(Rung) - 1 - rung)
    return Text(f"{bars} {Rung(rung).label}", style)
