"""`minserve bench precision`: what int8 and bfloat16 cost in quality, and what they bring."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from minserve.cli.console import Model, out, print_json, size


def precision(
    model: Model = "nano",
    texts: Annotated[int, typer.Option(help="Northstar prompts to compare logits on.")] = 24,
    questions: Annotated[
        int | None, typer.Option(help="Northstar questions to answer; 240 for nano, else none.")
    ] = None,
) -> None:
    """Compare each cheaper precision with float32: logits, likeliest tokens, answers, time.

    Logits are compared at every place of the prompts. A right answer is what Northstar's checks
    accept; only northstar-nano was trained to give them.

    Examples:

    - `minserve bench precision`

    - `minserve bench precision --model smollm2 --texts 8`
    """
    from minserve.benchmarks.precision import compare
    from minserve.cli.machine import QUIET_SHARE, CpuUse, describe
    from minserve.errors import ConfigError
    from minserve.models.registry import NANO, resolve

    if texts < 1 or (questions is not None and questions < 0):
        raise ConfigError("nothing to compare", "give at least 1 text and 0 or more questions")
    if questions is None:
        questions = 240 if resolve(model).name == NANO else 0
    use, console = CpuUse(), out()
    with console.status("") as status:
        costs = list(compare(model, texts, questions, on_progress=lambda what: status.update(what)))
    others = use.others_share()
    console.print(_table(costs, f"{model}, beside float32"))
    if others is not None and others > QUIET_SHARE:
        console.print(
            f"[yellow]Others used {others:.0%} of the CPU meanwhile:[/yellow] times are no verdict."
        )
    print_json(
        {
            "machine": describe(),
            "model": model,
            "costs": [asdict(cost) for cost in costs],
            "others_cpu_share": others,
        }
    )


def _table(costs, title: str):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.padding = (0, 1, 0, 0)
    made.add_column("precision", no_wrap=True)
    for heading in (
        "weights",
        "KV of\na token",
        "ms a\ntoken",
        "a logit's error\nlargest, mean",
        "same\nlikeliest",
        "answers\nright",
        "same\nanswers",
    ):
        made.add_column(heading, justify="right", no_wrap=True)
    for cost in costs:
        asked = cost.num_questions
        made.add_row(
            cost.precision,
            size(cost.weight_bytes),
            size(cost.kv_bytes_per_token),
            f"{1000 * cost.token_s:.2f}",
            f"{cost.max_error:.3f}, {cost.mean_error:.4f}",
            f"{cost.same_likeliest / cost.num_places:.1%}",
            f"{cost.num_right}/{asked}" if asked else "-",
            f"{cost.num_same}/{asked}" if asked else "-",
        )
    return made
