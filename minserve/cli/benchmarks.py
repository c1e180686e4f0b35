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

benchmarks = typer.Typer(
    name="bench",
    help="Measure this machine: each command prints a table, and JSON on its last line.",
    no_args_is_help=True,
)
benchmarks.command()(loadgen)
benchmarks.command()(offline)
benchmarks.command()(engine)
benchmarks.command()(precision)
benchmarks.command()(jobs)
benchmarks.command()(sidechannel)
benchmarks.command()(cache)
benchmarks.command()(routing)
benchmarks.command()(serve)
benchmarks.command()(soak)
