"""The options that every command which serves has: `serve`, `gateway`, `cluster up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
Keys = Annotated[Path | None, typer.Option(help="File of API keys; see `minserve keys`.")]
DemoKeys = Annotated[
    bool, typer.Option("--demo-keys", help="Take the demo keys of Northstar's users too.")
]
ResponseCache = Annotated[
    str,
    typer.Option(
        help="Answer the same greedy request of the same caller again, for a few minutes: "
        "memory, sqlite:PATH, redis://HOST:PORT, or off."
    ),
]
Jobs = Annotated[
    str | None,
    typer.Option(help="Store of durable jobs: sqlite:///jobs.db; then run `minserve worker`."),
]
RequestTimeout = Annotated[float, typer.Option(help="Seconds a request may take.")]
DrainTimeout = Annotated[
    float, typer.Option(help="Seconds that open requests get once asked to stop.")
]
LogFormat = Annotated[str, typer.Option(help="text or json, on standard error.")]
