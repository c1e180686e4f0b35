"""`minserve capacity`: how much one replica bears, and how many replicas a traffic needs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, out
from minserve.errors import ConfigError


@opt.takes_traffic(
    "request_rate", "max_concurrency", "closed_loop", "speed", "ignore_eos",
    dataset_name="azure", num_prompts=1500, request_rate="1",
)  # fmt: skip
def capacity(
    context: typer.Context,
    asked: opt.Traffic,
    profile: Annotated[
        str | None, typer.Option(help="A named machine: nano, h100-llama-3.1-8b.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model calibrated on this machine.")] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(help="Requests per second to plan for; without it one replica is measured."),
    ] = None,
    peak: Annotated[
        float, typer.Option(help="Forecast peak, as a multiple of --request-rate.")
    ] = 1.0,
    goodput: opt.Goodput = None,
    target: Annotated[float, typer.Option(help="Share of requests that must be good.")] = 0.99,
    most: Annotated[int, typer.Option(help="Replicas at most.")] = 32,
    router: Annotated[
        str, typer.Option(help="least-loaded, prefix or cached-prefix.")
    ] = "least-loaded",
    max_running: Annotated[int, typer.Option(help="Most requests in a step.")] = 128,
    token_budget: Annotated[int, typer.Option(help="Most tokens in a step.")] = 2048,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="Try scaling rules on two waves of load too.")
    ] = False,
    wave_s: Annotated[float, typer.Option(help="Seconds of one such wave.")] = 300.0,
    load_s: Annotated[
        float | None, typer.Option(help="Seconds until a new replica serves; else the profile's.")
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="Folder for the picture.")] = Path("artifacts"),
    json: Json = False,
) -> None:
    """Find the highest rate that meets the objectives, or the replicas that a rate needs.

    On the simulator, at calibrated or named costs: each rate is served from an empty cache, doubled
    until it fails, then halved to within 5 %. Where --num-prompts are too few to tell whether a
    queue grows, up to 16 times as many are sent. The picture shows latency over load, and what the
    M/G/1 formula would have said. A forecast peak is planned for, because a new replica serves
    only when its model has loaded.

    Examples:

    - `minserve capacity --profile h100-llama-3.1-8b --goodput ttft:2000 tpot:100`

    - `minserve capacity --profile h100-llama-3.1-8b --request-rate 60 --peak 1.5 --autoscale`

    - `minserve capacity --model nano --scale 0.1 --goodput ttft:500`
    """
    from minserve.cli import choices
    from minserve.cli.live import stage
    from minserve.cli.picture import make_folder
    from minserve.cli.simulate import profile_of
    from minserve.loadtest.report import as_json_line
    from minserve.loadtest.sweep import capacity as highest
    from minserve.loadtest.sweep import with_enough
    from minserve.simulator.fleet import Setup
    from minserve.simulator.runs import run

    objectives = opt.objectives(goodput or ["ttft:2000", "tpot:100"], context.args)
    has_no_rate = request_rate is not None and request_rate <= 0
    if not 0 < target <= 1 or peak < 1 or has_no_rate:
        raise ConfigError(
            f"target {target}, peak {peak}, rate {request_rate}",
            "use a target up to 1, a peak of 1 or more, and a rate above 0",
        )
    if not 0 < wave_s < math.inf or (load_s is not None and load_s < 0):
        raise ConfigError(f"waves of {wave_s} s, {load_s} s to load", "use times above 0")
    if autoscale and request_rate is None:
        raise ConfigError("--autoscale without a rate", "say how high its waves go: --request-rate")
    machine = profile_of(profile or (None if model else "h100-llama-3.1-8b"), model)
    machine = replace(machine, load_s=machine.load_s if load_s is None else load_s)
    longest = asked.max_total_tokens or machine.max_model_len
    traffic = replace(asked, max_total_tokens=longest).workload()
    setup = Setup(
        machine,
        lambda: choices.make_policy("continuous", max_running, token_budget),
        router=router,
    )

    def serve(count: int):
        fleet = replace(setup, num_replicas=count)

        def at(rate_per_s: float, num_prompts: int):
            return run(fleet, traffic.at_rate(rate_per_s, num_prompts).calls(), objectives)

        return with_enough(at, traffic.num_prompts, target)

    make_folder(to)
    say = out().print
    say(f"{machine.name}: {machine.source}.")
    say(f"Objectives: {objectives}, for {target:.0%} of the requests.")
    report = {
        "profile": machine.name,
        "source": machine.source,
        "objectives": str(objectives),
        "target": target,
        "traffic": traffic.describe(),
    }
    if request_rate is None:
        with stage("bracketing the highest rate"):
            found = highest(serve(1), 1.0, target=target)
        report |= tell_rates(found, to / "capacity.png", say)
        best = report["best_per_s"]
        said = f"One replica bears {best:.3g} requests/s." if best else "No rate meets these."
        say(f"[bold]{said}[/bold]")
    else:
        report |= _replicas(serve, request_rate * peak, target, most, machine, say)
        if autoscale:
            report["scaling"] = _scaling(
                setup, traffic, objectives, request_rate * peak, wave_s, most, max_running, to, say
            )
    if json:
        print(as_json_line(report), flush=True)


def tell_rates(found, path: Path, say) -> dict:
    """Print all rates of a `Sweep`, and draw them to `path`; the same as plain values."""
    from minserve.loadtest.pictures import hockey_stick, seconds
    from minserve.loadtest.sweep import mg1_curve

    for row in found.rows():
        say(
            f"{row['rate_per_s']:>8.3g}/s  {row['attainment']:>7.1%} good  TTFT p50 "
            f"{seconds(row['ttft_p50_s'])}, p99 {seconds(row['ttft_p99_s'])}  {row['said']}"
        )
    too_much = [row["rate_per_s"] for row in found.rows() if not row["is_met"]]
    limit = min(too_much, default=found.cells[-1].rate_per_s)
    rows = [row for row in found.rows() if row["rate_per_s"] <= 1.2 * limit]
    lone = rows[0]["ttft_mean_s"] or 0.0
    curve = mg1_curve(limit, lone, 1.0, limit)
    say(f"Wrote {hockey_stick(rows, curve, found.best_per_s).save(path)}")
    return {"best_per_s": found.best_per_s, "cells": found.rows()}


def _replicas(serve, rate_per_s: float, target: float, most: int, machine, say) -> dict:
    from minserve.cli.live import stage
    from minserve.loadtest.capacity import fewest_replicas

    with stage(f"looking for the fewest replicas for {rate_per_s:.3g} requests/s"):
        plan = fewest_replicas(serve, rate_per_s, target=target, most=most)
    for count, cell in plan.cells:
        tried = f"{cell.attainment:.1%} of {cell.row()['num_requests']:,} good"
        say(f"{count:>4} replicas: {tried}, {cell.said}")
    if plan.num_replicas is None:
        say(f"[bold]{most} replicas are not enough for {rate_per_s:.3g} requests/s.[/bold]")
    else:
        say(
            f"[bold]{plan.num_replicas} replicas for {rate_per_s:.3g} requests/s.[/bold] One more "
            f"serves {machine.load_s:.0f} s after it is asked for: ask that long before a peak."
        )
    cells = [{"replicas": count} | cell.row() for count, cell in plan.cells]
    return {"replicas": plan.num_replicas, "rate_per_s": rate_per_s, "cells": cells}


def _scaling(
    setup, traffic, objectives, rate_per_s, wave_s, most, max_running, to: Path, say
) -> list:
    from minserve.cli.live import stage
    from minserve.loadtest.pictures import scaling
    from minserve.metrics import seconds
    from minserve.simulator.runs import compare_scaling

    with stage("trying scaling rules"):
        found = compare_scaling(
            setup,
            traffic,
            objectives,
            rate_per_s,
            wave_s=wave_s,
            most=most,
            max_running=max_running,
        )
    load_s = setup.profile.load_s
    say(
        f"Scaling over two waves of {wave_s:g} s up to {rate_per_s:g}/s, {load_s:.3g} s to load, on"
    )
    for each in found:
        say(
            f"  {each.name:<15} {each.attainment:>6.1%} good, TTFT p99 "
            f"{seconds(each.ttft_p99_s):>6}, {each.replica_hours:.2f} replica-hours, "
            f"at most {each.most_replicas}"
        )
    say(f"Wrote {scaling(found).save(to / 'scaling.png')}")
    return [each.as_dict() for each in found]
