"""`minserve bench sidechannel`: can another tenant tell from timing what you have sent?"""

from __future__ import annotations

from typing import Annotated

import typer

from minserve.cli.console import Model, out, print_json

VERDICTS = {
    "shared": "one cache for all tenants",
    "salted": "a salt for each tenant (the default)",
    "control": "salted; the prober is of the victim's tenant",
}


def sidechannel(
    model: Model = "nano",
    trials: Annotated[int, typer.Option(help="Probes of each case, half of them hits.")] = 400,
    tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256,
    blocks: Annotated[int, typer.Option(help="KV blocks of 16 tokens.")] = 4096,
    http: Annotated[
        bool, typer.Option("--http", help="Through `minserve serve`, with API keys.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of prompts and order.")] = 0,
) -> None:
    """Guess from the time to the first token whether a prompt had been sent by somebody else.

    Three cases: a cache shared by all tenants, one salted by tenant, and the same salted cache
    probed from within the victim's tenant, which must still be fast.

    Examples:

    - `minserve bench sidechannel`

    - `minserve bench sidechannel --trials 100 --tokens 512 --http`
    """
    import random
    from contextlib import nullcontext

    from minserve.benchmarks.sidechannel import (
        CASES,
        measure,
        random_prompts,
        send_in_process,
        send_over_http,
    )
    from minserve.cli.machine import CpuUse, describe
    from minserve.clock import WallClock
    from minserve.errors import ConfigError
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve

    if tokens < 17:
        raise ConfigError(f"--tokens {tokens}", "use 17 or more: only whole blocks are reused")
    rng, cpu, console = random.Random(seed), CpuUse(children=True), out()
    vocab_size = ModelConfig.from_folder(resolve(model)).vocab_size
    prompts = random_prompts(rng, vocab_size, tokens)
    executor = None if http else TorchExecutor(model, num_blocks=blocks)
    verdicts = []
    for case, (scope, _) in CASES.items():
        way = (
            nullcontext(send_in_process(executor, scope, WallClock()))
            if executor
            else send_over_http(model, blocks, scope)
        )
        with console.status(VERDICTS[case]), way as send:
            verdicts.append(measure(case, send, trials, prompts, rng))
    console.print(_table(verdicts, tokens))
    print_json(
        {
            "benchmark": "sidechannel",
            "model": str(model),
            "prompt_tokens": tokens,
            "over_http": http,
            "seed": seed,
            "machine": describe(),
            "others_cpu_share": cpu.others_share(),
            "cases": [verdict.as_dict() for verdict in verdicts],
        }
    )


def _table(verdicts, tokens: int):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=f"{tokens} random tokens, each prompt probed once", box=SIMPLE_HEAD)
    made.add_column("case")
    for name in ("guessed right", "95 % interval", "AUC", "TTFT if sent", "if not", "cached"):
        made.add_column(name, justify="right")
    for v in verdicts:
        made.add_row(
            VERDICTS[v.case],
            f"{v.accuracy:.1%}",
            f"{v.accuracy_low:.1%} to {v.accuracy_high:.1%}",
            f"{v.auc:.3f}",
            f"{v.ttft_sent_p50_s * 1000:.1f} ms",
            f"{v.ttft_unsent_p50_s * 1000:.1f} ms",
            f"{v.share_cached:.0%}",
        )
    return made
