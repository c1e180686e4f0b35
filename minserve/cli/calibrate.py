"""`minserve calibrate`: fit the simulator's costs to a model on this machine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from minserve.cli.console import Json, Model, out, print_json
from minserve.errors import ConfigError

TERMS = {
    "per_token_s": "computed token",
    "per_row_s": "request in the step",
    "per_chunk_s": "request that computes more than one token",
    "per_chunk_token_s": "token of such a request, besides",
    "per_context_token_s": "pair of tokens of which one attends to the other",
    "per_read_token_s": "token of context",
}


def calibrate(
    model: Model = "nano",
    budget: Annotated[float, typer.Option(help="Seconds to measure for, about.")] = 30.0,
    max_running: Annotated[int, typer.Option(help="Most requests in a step.")] = 16,
    token_budget: Annotated[int, typer.Option(help="Most tokens in a step.")] = 512,
    blocks: Annotated[int, typer.Option(help="KV blocks of 16 tokens.")] = 2048,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    json: Json = False,
) -> None:
    """Time steps of the real engine, fit seven costs to them, and keep them for `simulate`.

    A step costs a fixed time, and so much per computed token, per request, per chunk of a prompt,
    per pair of tokens that attend to one another, and per token of context that is read. A third
    of the steps is held out: the errors printed are of those. Repeat on a quiet machine; kept
    under MINSERVE_HOME, one per model and machine.

    Examples:

    - `minserve calibrate`, then `minserve simulate --model nano --dataset-name northstar`

    - `minserve calibrate --model smollm2 --budget 60`
    """
    if budget <= 0 or max_running < 1 or token_budget <= max_running:
        raise ConfigError(
            f"budget {budget}, {max_running} requests, {token_budget} tokens",
            "measure for more than 0 s, with more tokens than requests in a step",
        )
    found, others = measured(model, budget, max_running, token_budget, blocks, dtype)
    path = found.save()
    fit, cost = found.fit, found.fit.cost
    say = out().print
    where = found.machine["cpu"]
    say(f"[bold]{found.fingerprint}[/bold] on {where}, loaded in {found.load_s:.1f} s")
    say(f"A step takes {cost.per_step_s * 1e3:.3g} ms, and in microseconds")
    for name, what in TERMS.items():
        say(f"  {getattr(cost, name) * 1e6:>9.3g}  for each {what}")
    say(
        f"Of {fit.num_steps:,} steps held out, the median is off by {fit.median_error:.1%}, their "
        f"total time by {fit.total_error:.1%}."
    )
    if others is not None and others > 0.05:
        say(f"Other programs used {others:.0%} of the CPU: calibrate again on a quiet machine.")
    say(f"Wrote {path}")
    if json:
        from dataclasses import asdict

        print_json(asdict(found) | {"other_cpu_share": others, "path": str(path)})


def measured(model, budget_s, max_running, token_budget, blocks, dtype="float32"):
    """A `Calibration` made now, and the share of CPU that others used meanwhile."""
    from minserve.cli import machine
    from minserve.cli.live import stage
    from minserve.execution.calibration import Calibration, fit, observe
    from minserve.execution.torch_executor import TorchExecutor

    began_s = time.perf_counter()
    executor = TorchExecutor(model, num_blocks=blocks, dtype=dtype)
    load_s = time.perf_counter() - began_s
    use = machine.CpuUse()
    with stage(f"timing steps of {model} for about {budget_s:.0f} s"):
        steps = observe(
            executor,
            max_running=max_running,
            token_budget=token_budget,
            vocab=executor.config.vocab_size,
            budget_s=budget_s,
        )
    return Calibration(
        str(model),
        executor.cache_namespace,
        machine.describe(),
        blocks,
        executor.block_size,
        executor.max_model_len,
        load_s,
        fit(steps),
    ), use.others_share()
