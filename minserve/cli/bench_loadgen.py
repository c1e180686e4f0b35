"""`minserve bench loadgen`: is the load generator itself fast enough to be believed?"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from typing import Annotated

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError

MAX_P99_S = 0.010


def loadgen(
    rate: Annotated[float, typer.Option(help="Requests per second, Poisson.")] = 500.0,
    duration: Annotated[float, typer.Option(help="Seconds.")] = 10.0,
    output_len: Annotated[int, typer.Option(help="Chunks of each answer.")] = 8,
    json: Json = False,
) -> None:
    """Send to a server that answers at once, in a process of its own, and time the sending.

    Holds if 99 % of the requests leave within 10 ms of their intended time; exit code 1 if not.
    Whatever is late here would be late in every load test too.

    Examples:

    - `minserve bench loadgen`

    - `minserve bench loadgen --rate 1000 --duration 5`
    """
    from minserve.loadtest import arrivals, datasets
    from minserve.loadtest.generator import Target, send_over_http
    from minserve.loadtest.measures import Tally
    from minserve.metrics import seconds

    if rate <= 0 or duration <= 0 or output_len < 1:
        raise ConfigError(f"{rate}/s for {duration} s", "use values above 0")
    samples = datasets.random_tokens(random.Random(0), 128, output_len)
    times = arrivals.poisson(rate, random.Random(1))
    calls = list(datasets.calls(times, samples, max(1, int(rate * duration))))
    tally = Tally()
    program = [sys.executable, "-m", "minserve.loadtest.mock_server"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # it is a pipe
            url = server.stdout.readline().strip()
            asyncio.run(send_over_http(calls, Target(url, "mock"), tally.add))
        finally:
            server.kill()
    m = tally.measures()
    delay = m.latencies["dispatch_delay"]
    late_s = delay["p99"]
    holds = m.num_ok == len(calls) and late_s is not None and late_s < MAX_P99_S
    say = out().print
    say(
        f"{m.num_ok:,} of {len(calls):,} answered, {m.requests_per_s:,.0f}/s; sent late by "
        f"{seconds(delay['p50'])} (p50), {seconds(late_s)} (p99), {seconds(delay['max'])} at "
        "most."
    )
    say(f"{'Holds' if holds else 'FAILS'}: p99 dispatch delay below {seconds(MAX_P99_S)}.")
    if json:
        print_json({"holds": holds, "rate_per_s": rate, "measures": m.as_dict()})
    if not holds:
        raise typer.Exit(1)
