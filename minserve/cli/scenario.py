"""`minserve scenario`: one question, one experiment, a picture, and whether the property holds."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError


def scenario(
    name: Annotated[
        str,
        typer.Argument(
            help="cold, prefix, mixed, classes, cancel-storm, long-prompt, eviction, two-tenants, "
            "offline, server, single-stream, multi-stream, interactive, or all."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Run it on this real model; without, on the simulator.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the traffic.")] = 0,
    to: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("artifacts"),
    json: Json = False,
) -> None:
    """Run an experiment that shows one property; exit code 1 if the property does not hold.

    Everything but the one thing in question is equal between its runs: model, engine, machine,
    precision and traffic. Every run starts with an empty cache. On the simulator the costs are the
    round figures of `simulate`; on a real model, times are this machine's.

    Examples:

    - `minserve scenario prefix`: what a shared prefix saves, and what not

    - `minserve scenario long-prompt --model nano`

    - `minserve scenario all --json`
    """
    from minserve.cli.live import stage
    from minserve.cli.picture import make_folder
    from minserve.scenarios import SCENARIOS

    names = list(SCENARIOS) if name == "all" else [name]
    if not set(names) <= set(SCENARIOS):
        raise ConfigError(f"scenario {name!r}", f"use {', '.join(SCENARIOS)}, or all")
    make_folder(to)
    bench = _simulated(seed) if model is None else _real(model, seed)
    say, found = out().print, {}
    for each in names:
        chosen = SCENARIOS[each]
        with stage(f"running {each}"):
            outcome = chosen.run(bench)
        found[each] = outcome.as_dict() | {"question": chosen.question, "expected": chosen.expected}
        show(each, chosen.question, chosen.expected, outcome, to / f"scenario-{each}.png")
    where = model or "the simulator"
    conditions = bench.conditions | {"seed": seed}
    say("; ".join(f"{key}: {value}" for key, value in ({"ran on": where} | conditions).items()))
    holds = all(each["holds"] for each in found.values())
    if json:
        from minserve.cli.machine import describe

        about = {"ran_on": where, "conditions": conditions, "machine": describe()}
        print_json({"holds": holds, **about, "scenarios": found})
    if not holds:
        raise typer.Exit(1)


def show(name: str, question: str, expected: str, outcome, path: Path) -> None:
    """Question, expectation and result in words, and the picture at `path`."""
    say = out().print
    say(f"[bold]{name}[/bold]: {question}")
    say(f"  expected: {expected}")
    mark = "[bold green]holds[/bold green]" if outcome.holds else "[bold red]FAILS[/bold red]"
    say(f"  {mark}: {outcome.said}.")
    say(f"  wrote {picture(outcome, question).save(path)}")


def picture(outcome, title: str):
    """Bars: one group for each figure, one bar for each case."""
    from minserve.pictures import PALETTE, Picture, canvas

    figure, ax = canvas(9.0, 1.2 + 0.45 * sum(len(cases) for cases in outcome.bars.values()))
    place, labels = 0.0, []
    hatches = ("", "//", "..", "xx")
    for group, (name, cases) in enumerate(outcome.bars.items()):
        for number, (case, value) in enumerate(cases.items()):
            ax.barh(
                place, value, color=PALETTE[number % len(PALETTE)], hatch=hatches[number % 4],
                edgecolor="white",
            )  # fmt: skip
            ax.annotate(f" {value:.3g}", (value, place), va="center")
            labels.append((place, f"{name}: {case}"))
            place -= 1
        place -= 0.6 * (group + 1 < len(outcome.bars))
    ax.set_yticks([at for at, _ in labels], [label for _, label in labels])
    ax.set_xlabel(outcome.unit)
    ax.margins(x=0.15)
    figure.suptitle(fill(title, 90), x=0.01, ha="left")
    return Picture(
        figure, f"{title} {'It holds' if outcome.holds else 'It fails'}: {outcome.said}."
    )


def _simulated(seed: int):
    from minserve.clock import VirtualClock
    from minserve.execution.simulated import SimulatedExecutor
    from minserve.scenarios import Bench

    about = {"model": "none: its tokens are made up, and its steps take round figures"}
    return Bench(
        lambda blocks: SimulatedExecutor(blocks or 2048), VirtualClock, 0.02, seed=seed, about=about
    )


def _real(model: str, seed: int):
    """A bench on a loaded model, warm; its unit is the median time of a small request."""
    from dataclasses import replace
    from statistics import median

    import torch

    import minserve
    from minserve.cli import machine
    from minserve.clock import WallClock
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.scenarios import Bench
    from minserve.scenarios.lab import ask, at_times

    made: dict[int, TorchExecutor] = {}

    def executor(blocks: int) -> TorchExecutor:
        if blocks not in made:
            made[blocks] = TorchExecutor(model, num_blocks=blocks or 1024)
        return made[blocks]

    config = executor(0).config
    longest = min(1500, executor(0).max_model_len - 8)
    bench = Bench(
        executor, WallClock, 0.05, config.vocab_size, seed, max_prompt=longest, is_real=True
    )
    rng, times = bench.rng("warm-up"), []
    for number, length in enumerate((8, 400, *(64,) * 5)):  # kernels are compiled on first use
        sample = ask(bench.tokens(rng, length), 8)
        run = bench.serve(at_times([(0.0, sample)]))
        if number >= 2:
            times.append(run.records[0].ended_s or 0.0)
    about = {
        "model": f"{model}, warm",
        "precision": executor(0).dtype,
        "cpu": machine.describe()["cpu"],
        "torch": torch.__version__,
        "minserve": minserve.__version__,
    }
    return replace(bench, unit_s=median(times), about=about)
