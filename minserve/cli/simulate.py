"""`minserve simulate`: the same traffic and scheduler on a virtual clock, at any size."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError


def simulate(
    requests: Annotated[int, typer.Option(help="Requests of the timing set.")] = 1000,
    policies: Annotated[
        str, typer.Option(help="Which of static, dynamic, continuous, with commas.")
    ] = "static,dynamic,continuous",
    prefix: Annotated[str, typer.Option(help="Prefix reuse: on, off or both.")] = "on",
    ordering: Annotated[str, typer.Option(help="fifo, deadline, priority or fair.")] = "fifo",
    blocks: Annotated[int, typer.Option(help="KV blocks in the pool.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    max_running: Annotated[
        int, typer.Option(help="Most requests in a step, and in a static batch.")
    ] = 16,
    batch_size: Annotated[
        int | None, typer.Option(help="Static and dynamic batch size; else the best is found.")
    ] = None,
    token_budget: Annotated[
        int, typer.Option(help="Most tokens that a step of continuous batching computes.")
    ] = 512,
    load: Annotated[
        float, typer.Option(help="Arrivals, as a multiple of what continuous batching can serve.")
    ] = 0.9,
    rate: Annotated[float | None, typer.Option(help="Arrivals per second instead.")] = None,
    step_ms: Annotated[float, typer.Option(help="Fixed cost of a step, milliseconds.")] = 2.0,
    token_us: Annotated[float, typer.Option(help="Cost of each computed token, us.")] = 40.0,
    row_us: Annotated[float, typer.Option(help="Cost of each request in a step, us.")] = 50.0,
    context_us: Annotated[float, typer.Option(help="Cost of each token attended to, us.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of the traffic.")] = 0,
    json: Json = False,
) -> None:
    """Replay Northstar traffic on a simulated executor, several times faster than real time.

    The scheduler, the policies and the traffic are the real ones; only the duration of a step comes
    from a cost model instead of a computation. The result is the same on every machine. The costs
    are round figures, not calibrated to yours: compare policies with it, do not forecast.

    Examples:

    - `minserve simulate --requests 2000`

    - `minserve simulate --ordering deadline --load 1.2 --policies continuous`

    - `minserve simulate --blocks 256 --prefix both`: what a small pool does
    """
    from minserve.cli import bench
    from minserve.clock import VirtualClock
    from minserve.execution.simulated import CostModel, SimulatedExecutor
    from minserve.northstar.traffic import at_rate, make_traffic

    names = bench.choose("policy", policies, bench.POLICIES)
    if prefix not in bench.PREFIX:
        raise ConfigError(f"prefix is {prefix!r}", "use on, off or both")
    if ordering not in bench.ORDERINGS:
        raise ConfigError(f"ordering {ordering!r}", f"use {', '.join(bench.ORDERINGS)}")
    if min(step_ms, token_us, row_us, context_us) < 0 or step_ms + token_us + row_us <= 0:
        raise ConfigError("a step must cost some time", "use costs of 0 or more, not all 0")
    if not 0 < load < 1000 or (rate is not None and rate <= 0):
        raise ConfigError(f"load {load}, rate {rate}", "use positive values")
    static_sizes = bench.sizes_up_to(max_running, batch_size)
    began_s = time.perf_counter()
    cost = CostModel(step_ms / 1e3, token_us / 1e6, row_us / 1e6, context_us / 1e6)
    traffic = make_traffic(
        "timing", requests, _encoder(), rate_per_s=1.0, seed=seed, max_total_tokens=2048
    )

    def run(arrivals, name: str, size: int | None, on: bool):
        return bench.serve(
            arrivals,
            SimulatedExecutor(blocks, block_size, cost=cost),
            VirtualClock(),
            bench.make_policy(name, size or max_running, token_budget),
            prefix=on,
            ordering=ordering,
        )

    if rate is None:
        on = bench.PREFIX[prefix][-1]
        at_once = run(at_rate(traffic, 1.0, 1e6), "continuous", None, on).summarise()
        if not at_once.requests_per_s:
            raise ConfigError("no request fits", "give --blocks more")
        rate = load * at_once.requests_per_s
    arrivals = at_rate(traffic, 1.0, rate)
    rows = []
    for on in bench.PREFIX[prefix]:
        best = batch_size
        for name in names:
            sizes = [None] if name == "continuous" else [best] if best else static_sizes
            tried = []
            for size in sizes:
                replay = run(arrivals, name, size, on)
                kinds = replay.summarise_by_kind()
                tried.append(bench.Row(name, size, on, replay.summarise(), kinds))
            rows.append(max(tried, key=lambda row: row.timing.tokens_per_s or 0.0))
            best = rows[-1].batch_size or best
    took_s = time.perf_counter() - began_s
    simulated_s = sum(row.timing.duration_s for row in rows)
    report = {
        "settings": {
            "requests": requests,
            "rate_per_s": rate,
            "ordering": ordering,
            "kv_blocks": blocks,
            "block_size": block_size,
            "token_budget": token_budget,
            "max_running": max_running,
            "seed": seed,
            "cost_model": {
                "step_ms": step_ms,
                "token_us": token_us,
                "row_us": row_us,
                "context_us": context_us,
            },
            "clock": "virtual",
            "warm": "prefix cache cold at the start of each run",
        },
        "rows": [row.as_dict() for row in rows],
        "comparison": bench.compare(rows),
    }
    say = out().print
    say(bench.table(rows, f"Simulated: {requests:,} requests at {rate:.1f}/s, {blocks:,} blocks"))
    say(
        f"Virtual clock, order {ordering}, seed {seed}; {simulated_s:,.0f} s of the runs shown "
        f"took {took_s:.1f} s. Costs are stated, not measured; answers are not computed."
    )
    for comparison in report["comparison"]:
        say(f"{bench.say_comparison(comparison)}.")
    if trouble := bench.troubles(rows):
        say(f"[bold]Not all went well:[/bold] {trouble}.")
    if json:
        print_json(report)


def _encoder():
    from minserve.models.registry import resolve
    from minserve.models.tokenizer import Tokenizer

    return Tokenizer(resolve("nano")).encode
