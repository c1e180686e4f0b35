"""`minserve bench soak`: everything that clients do, for minutes on end."""

from __future__ import annotations

from typing import Annotated

import typer

from minserve.cli.console import Model, out, print_json


def soak(
    model: Model = "nano",
    minutes: Annotated[float, typer.Option(help="How long.")] = 20.0,
    users: Annotated[int, typer.Option(help="Who act at the same time.")] = 16,
    seed: Annotated[int, typer.Option(help="Of what they do.")] = 0,
) -> None:
    """Ask, leave, dawdle and send nonsense, and see whether the server ends as it began.

    Holds, or exit code 1: all KV blocks are free or cached, nothing runs, waits or hangs, every
    answer has a status that it may have, and memory grew by at most 2 % in the second half.

    Examples:

    - `minserve bench soak --minutes 20`

    - `minserve bench soak --minutes 0.5`
    """
    from minserve.benchmarks.soak import soak as run
    from minserve.cli.machine import describe
    from minserve.errors import ConfigError

    if not 0 < minutes <= 1440 or not 1 <= users <= 1000:
        raise ConfigError(f"{minutes:g} minutes, {users} users", "use more than 0, at most 1440")
    with out().status(f"soaking for {minutes:g} minutes"):
        report = run(model, minutes, users, seed)
    memory, ended = report["memory"], report["at_the_end"]
    out().print(
        f"{'Holds' if report['holds'] else 'FAILS'}: {report['num_deeds']:,} deeds, "
        f"{report['hung']} hung, {len(report['unexpected'])} unexpected; at the end "
        f"{ended['running']} run, {ended['waiting']} wait, {ended['blocks']['used']} blocks are "
        f"used; memory {memory['rss_last_bytes'] / 1e6:,.0f} MB, "
        f"{memory['slope_bytes_per_minute'] / 1e3:+,.0f} kB a minute."
    )
    print_json({"benchmark": "soak", "model": str(model), "machine": describe(), **report})
    if not report["holds"]:
        raise typer.Exit(1)
