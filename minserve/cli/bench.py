"""`minserve bench`: the measurements behind every figure that the documentation quotes."""

from __future__ import annotations

import typer

from minserve.cli.bench_cache import cache
from minserve.cli.bench_engine import engine
from minserve.cli.bench_jobs import jobs
from minserve.cli.bench_loadgen import loadgen
from minserve.cli.bench_offline import offline
from minserve.cli.bench_precision import precision
from minserve.cli.bench_routing import routing
from minserve.cli.bench_serve import serve
from minserve.cli.bench_sidechannel import sidechannel
from minserve.cli.bench_soak import soak

bench = typer.Typer(
    name="bench",
    help="Measure this machine: each command prints a table, and JSON on its last line.",
    no_args_is_help=True,
)
bench.command()(loadgen)
bench.command()(offline)
bench.command()(engine)
bench.command()(precision)
bench.command()(jobs)
bench.command()(sidechannel)
bench.command()(cache)
bench.command()(routing)
bench.command()(serve)
bench.command()(soak)
