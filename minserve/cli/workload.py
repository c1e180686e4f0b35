"""The options that describe traffic, shared by all commands that send or simulate it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

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
# -- how it is served

Policies = Annotated[str, typer.Option(help="Which of static, dynamic, continuous, with commas.")]
Prefix = Annotated[str, typer.Option(help="Prefix reuse: on, off or both.")]
OrderingName = Annotated[str, typer.Option(help="fifo, deadline, priority, fair or shortest.")]
MaxRunning = Annotated[int, typer.Option(help="Most requests in a step, and in a static batch.")]
BatchSize = Annotated[
    int | None, typer.Option(help="Static and dynamic batch size; else the best is found.")
]
Load = Annotated[
    float, typer.Option(help="Arrivals, as a multiple of what continuous batching can serve.")
]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", help="Objectives in ms: ttft:500 tpot:50 e2el:2000."),
]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the options above say, with the defaults that most commands have."""

    dataset_name: DatasetName = "random"
    dataset_path: DatasetPath = None
    num_prompts: NumPrompts = 1000
    request_rate: RequestRate = "inf"
    burstiness: Burstiness = 1.0
    max_concurrency: MaxConcurrency = None
    closed_loop: ClosedLoop = False
    input_len: InputLen = 1024
    output_len: OutputLen = 128
    range_ratio: RangeRatio = 0.0
    prefix_len: PrefixLen = 0
    num_prefixes: NumPrefixes = 8
    scale: Scale = 1.0
    speed: Speed = 1.0
    max_total_tokens: MaxTokens = None
    ignore_eos: IgnoreEos = True
    seed: Seed = 0

    def workload(self):
        """The `Workload` that is described. Raises `ConfigError`."""
        from minserve.loadtest.workload import Workload

        dataset, path, rate = self.dataset_name, self.dataset_path, self.request_rate
        if path is not None and dataset == "random":
            kinds = {".csv": "azure", ".jsonl": "mooncake", ".json": "sharegpt"}
            if Path(path).suffix not in kinds:
                hint = "say with --dataset-name: sharegpt, azure or mooncake"
                raise ConfigError(f"the format of {path} is not known by its name", hint)
            dataset = kinds[Path(path).suffix]
        more: dict[str, Any] = {"arrivals": "constant" if self.burstiness == 0 else "gamma"}
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
        alike = {f.name: getattr(self, f.name) for f in fields(Workload) if hasattr(self, f.name)}
        alike["burstiness"] = self.burstiness or 1.0
        found = Workload(dataset, path, **alike, **more)
        found.check()
        return found

    def pace(self, rate_per_s: float | None, timeout_s: float | None = None):
        """Open or closed loop. Raises `ConfigError`."""
        from minserve.loadtest.generator import Pace

        is_all_at_once = rate_per_s == math.inf and self.max_concurrency is not None
        return Pace(self.max_concurrency, self.closed_loop or is_all_at_once, timeout_s)


def takes_traffic(*left_out: str, **defaults: Any) -> Callable[[Callable], Callable]:
    """Give a command the options of `Traffic`, but those `left_out`, for its `Traffic` parameter.

    `defaults` replaces those of `Traffic`. To typer the command has one long signature.
    """
    options = [
        option.replace(default=defaults.get(name, option.default))
        for name, option in inspect.signature(Traffic, eval_str=True).parameters.items()
        if name not in left_out
    ]

    def wrap(command: Callable) -> Callable:
        signature = inspect.signature(command, eval_str=True)
        flat: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            flat += options if parameter.annotation is Traffic else [parameter]
        (asked,) = (name for name, p in signature.parameters.items() if p.annotation is Traffic)

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            traffic = {option.name: given.pop(option.name) for option in options}
            return command(**given, **{asked: Traffic(**(defaults | traffic))})

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in flat]
        vars(run)["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return wrap


def objectives(given: Sequence[str] | None, extra: Sequence[str] = ()):
    """`--goodput ttft:500 tpot:50`: the words behind the first reach the command as extras."""
    from minserve.loadtest.measures import Objectives

    return Objectives.parse([*(given or ()), *extra])
