"""`minserve arena`: a policy of yours against four others, on traffic that none has seen."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError


def arena(
    policy: Annotated[
        str | None,
        typer.Option(help="Your batching policy, as module:Class; made without arguments."),
    ] = None,
    ordering: Annotated[
        str | None, typer.Option(help="Your ordering, as module:Class; made without arguments.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests of each run.")] = 300,
    load: Annotated[
        float, typer.Option(help="Arrivals, as a multiple of what can just be served.")
    ] = 3.0,
    seed: opt.Seed = 2718,
    pools: Annotated[
        bool, typer.Option("--pools", help="Ask of hardware instead: prefill in a pool of its own?")
    ] = False,
    to: Annotated[Path, typer.Option("--out", help="Folder for the picture.")] = Path("artifacts"),
    json: Json = False,
) -> None:
    """Serve held-out Northstar traffic under each policy, on the virtual clock, and rank them.

    Ranked by deadlines met; beside them the tail, the smoothness, the throughput, and how far one
    tenant's service fell behind another's while both had work waiting. Exit code 1 if a policy
    loses a request, or the four do not what they are for. The traffic comes in bursts, its seed is
    none of the lessons'.

    Examples:

    - `minserve arena`

    - `minserve arena --policy mypolicy:MyBatching --load 1.3`

    - `minserve arena --pools`: disaggregated prefill and decode against chunked prefill
    """
    from minserve.cli.live import stage
    from minserve.cli.picture import make_folder
    from minserve.cli.scenario import show
    from minserve.scenarios.arena import EXPECTED, QUESTION, Entrant, compete, field, verdict

    if requests < 1 or not 0 < load < 100:
        raise ConfigError(
            f"{requests} requests at load {load}", "use 1 or more, and a load above 0"
        )
    make_folder(to)
    if pools:
        return _pools(requests, seed, to, json)
    entrants = list(field())
    if policy or ordering:
        plain = entrants[0]
        entrants.append(
            Entrant(
                "yours",
                _named(policy) if policy else plain.policy,
                _named(ordering) if ordering else plain.ordering,
            )
        )
    with stage(f"serving {requests} requests {len(entrants)} times"):
        traffic, profile = _traffic(requests, load, seed)
        scores = compete(entrants, lambda: traffic, profile)
    say = out().print
    say(_table(scores, f"Northstar traffic at {load:g} x saturation, seed {seed}"))
    say("Virtual clock, costs of northstar-nano's size, prefix cache on and cold in each run.")
    outcome = verdict(scores, requests)
    show("arena", QUESTION, EXPECTED, outcome, to / "arena.png")
    if json:
        made = [score.as_dict() for score in scores]
        print_json({"load": load, "seed": seed, "holds": outcome.holds, "scores": made})
    if not outcome.holds:
        raise typer.Exit(1)


def _traffic(requests: int, load: float, seed: int):
    from minserve.cli.simulate import encoder
    from minserve.northstar.traffic import at_rate, make_traffic
    from minserve.scenarios.arena import field
    from minserve.simulator.fleet import Setup
    from minserve.simulator.profile import NANO
    from minserve.simulator.runs import run

    made = make_traffic("timing", requests, encoder(), rate_per_s=1.0, seed=seed)
    setup = Setup(NANO, field()[0].policy)
    at_once = run(setup, _calls(at_rate(made, 1.0, 1e6))).measures()
    rate_per_s = load * (at_once.requests_per_s or 1.0)
    return _calls(at_rate(made, 1.0, rate_per_s)), NANO


def _calls(arrivals) -> list:
    from minserve.loadtest.datasets import Call, sample_of

    return [Call(arrival.id, arrival.arrival_s, sample_of(arrival)) for arrival in arrivals]


def _named(path: str):
    """The class that `module:Class` names. Raises `ConfigError`."""
    module, _, name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path!r} cannot be loaded: {error}", "write module:Class") from None
    finally:
        sys.path.pop(0)


def _table(scores, title: str):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.metrics import seconds

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for heading in ("deadlines met", "TTFT p95", "ITL p99", "tokens/s", "service gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    for score in scores:
        table.add_row(
            score.name,
            f"{score.deadlines_met:.1%}",
            seconds(score.ttft_p95_s),
            seconds(score.itl_p99_s),
            f"{score.tokens_per_s:,.0f}",
            f"{score.service_gap:.1%}",
        )
    return table


def _pools(requests: int, seed: int, to: Path, json: bool) -> None:
    from minserve.cli.live import stage
    from minserve.cli.scenario import show
    from minserve.loadtest.workload import Workload
    from minserve.metrics import seconds
    from minserve.scenarios.arena import POOLS_EXPECTED, POOLS_QUESTION, pools, pools_verdict
    from minserve.simulator.profile import H100_LLAMA_8B

    traffic = Workload("azure", num_prompts=requests, rate_per_s=24.0, seed=seed)
    with stage(f"serving {requests} requests twice"):
        found = pools(traffic.calls, H100_LLAMA_8B)
    say = out().print
    say(f"Four engines, {H100_LLAMA_8B.name} ({H100_LLAMA_8B.source}); 24 requests/s of Azure's")
    say("lengths. All alike with chunked prefill, or one for prefill and three for decoding:")
    names = ("ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "e2e.p50")
    for name, m in found.items():
        say(f"  {name:<16}" + "".join(f"  {at} {seconds(m[at])}" for at in names))
    outcome = pools_verdict(found)
    show("pools", POOLS_QUESTION, POOLS_EXPECTED, outcome, to / "pools.png")
    if json:
        figures = {name: {at: m[at] for at in names} for name, m in found.items()}
        profile = H100_LLAMA_8B.name
        print_json({"holds": outcome.holds, "profile": profile, "figures": figures})
    if not outcome.holds:
        raise typer.Exit(1)
