"""The options that describe traffic, shared by all commands that send or simulate it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from minserve.errors import ConfigError

TRAFFIC = "Traffic"
DatasetName = Annotated[
    str,
    typer.Option(
        "--dataset-name",
        help="random, shared-prefix, northstar, sharegpt, azure or mooncake.",
        rich_help_panel=TRAFFIC,
    ),
]
DatasetPath = Annotated[
    str | None,
    typer.Option(
        "--dataset-path",
        help="ShareGPT-style JSON, an Azure CSV or a Mooncake JSONL. Without it azure and "
        "mooncake draw lengths from the shipped tables.",
        rich_help_panel=TRAFFIC,
    ),
]
NumPrompts = Annotated[
    int, typer.Option("--num-prompts", help="Requests to send.", rich_help_panel=TRAFFIC)
]
RequestRate = Annotated[
    str,
    typer.Option(
        "--request-rate",
        help="Mean requests per second; inf sends all at once; trace keeps recorded times; "
        "5-50 ramps up from 5 to 50.",
        rich_help_panel=TRAFFIC,
    ),
]
Burstiness = Annotated[
    float,
    typer.Option(
        "--burstiness",
        help="Shape of the gaps: 1 is Poisson, below 1 bursts, above 1 more even; 0 is constant.",
        rich_help_panel=TRAFFIC,
    ),
]
InputLen = Annotated[
    int,
    typer.Option(
        "--random-input-len", "--input-len", help="Prompt tokens.", rich_help_panel=TRAFFIC
    ),
]
OutputLen = Annotated[
    int,
    typer.Option(
        "--random-output-len", "--output-len", help="Output tokens.", rich_help_panel=TRAFFIC
    ),
]
RangeRatio = Annotated[
    float,
    typer.Option(
        "--random-range-ratio",
        help="Lengths vary by this share, up and down.",
        rich_help_panel=TRAFFIC,
    ),
]
PrefixLen = Annotated[
    int,
    typer.Option(
        "--random-prefix-len",
        "--prefix-len",
        help="Tokens of the shared prefix.",
        rich_help_panel=TRAFFIC,
    ),
]
NumPrefixes = Annotated[
    int,
    typer.Option(
        "--num-prefixes", help="Different prefixes of shared-prefix.", rich_help_panel=TRAFFIC
    ),
]
Scale = Annotated[
    float,
    typer.Option("--scale", help="Lengths of traces and tables, times.", rich_help_panel=TRAFFIC),
]
Speed = Annotated[
    float, typer.Option("--speed", help="Pace of a trace, times.", rich_help_panel=TRAFFIC)
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-total-tokens",
        help="Cut requests to this many tokens, prompt and output.",
        rich_help_panel=TRAFFIC,
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos/--no-ignore-eos",
        help="Force output lengths, so that every run does the same work.",
        rich_help_panel=TRAFFIC,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the traffic.", rich_help_panel=TRAFFIC)]
MaxConcurrency = Annotated[
    int | None,
    typer.Option(
        "--max-concurrency",
        help="Most requests in flight; those held back count from their intended time.",
        rich_help_panel=TRAFFIC,
    ),
]
ClosedLoop = Annotated[
    bool,
    typer.Option(
        "--closed-loop",
        help="So many users as --max-concurrency, each waiting for its answer. The default "
        "where that is given and the rate is inf.",
        rich_help_panel=TRAFFIC,
    ),
]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", help="Objectives in ms: ttft:500 tpot:50 e2el:2000."),
]


def workload(
    dataset: str,
    path: str | None,
    num_prompts: int,
    rate: str,
    burstiness: float,
    seed: int,
    **lengths,
):
    """The `Workload` that the options above describe. Raises `ConfigError`."""
    from minserve.loadtest.workload import Workload

    if path is not None and path.endswith(".csv") and dataset == "random":
        dataset = "azure"
    elif path is not None and path.endswith(".jsonl") and dataset == "random":
        dataset = "mooncake"
    more: dict = {"arrivals": "constant" if burstiness == 0 else "gamma"}
    try:
        if rate == "trace":
            more = {"rate_per_s": None, "arrivals": "trace"}
        elif "-" in rate[1:]:
            low, high = rate.split("-")
            more = {"rate_per_s": float(low), "ramp_to_per_s": float(high), "arrivals": "ramp"}
        else:
            more["rate_per_s"] = float(rate)
    except ValueError:
        hint = "write 5, inf, trace, or 5-50 for a ramp"
        raise ConfigError(f"request rate {rate!r}", hint) from None
    found = Workload(
        dataset, path, num_prompts, burstiness=burstiness or 1.0, seed=seed, **more, **lengths
    )
    found.check()
    return found


def pace(rate_per_s: float | None, max_concurrency: int | None, closed: bool, timeout_s=None):
    """Open or closed loop. Raises `ConfigError`."""
    from minserve.loadtest.generator import Pace

    is_closed = closed or (max_concurrency is not None and rate_per_s == math.inf)
    return Pace(max_concurrency, is_closed, timeout_s)


def objectives(given: Sequence[str] | None, extra: Sequence[str] = ()):
    """`--goodput ttft:500 tpot:50`: the words behind the first reach the command as extras."""
    from minserve.loadtest.measures import Objectives

    return Objectives.parse([*(given or ()), *extra])
