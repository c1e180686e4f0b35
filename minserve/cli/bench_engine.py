"""`minserve bench engine`: what a cached prefix saves, and what planning and sampling cost."""

from __future__ import annotations

import random
import statistics
from typing import Annotated

import typer

from minserve.cli.console import Dtype, KvCacheDtype, Model, Quantization, out, print_json

MOST_OF_COLD = 0.1
MOST_BOOKKEEPING = {"greedy": 0.05, "sampled": 0.10}


def engine(
    model: Model = "smollm2",
    repeats: Annotated[int, typer.Option(help="Pairs of prompts; the median counts.")] = 20,
    shared: Annotated[int, typer.Option(help="Tokens that the two have in common.")] = 1024,
    batch: Annotated[int, typer.Option(help="Requests that decode together.")] = 32,
    steps: Annotated[int, typer.Option(help="Steps of those to time.")] = 64,
    dtype: Dtype = "float32",
    kv_cache_dtype: KvCacheDtype = "auto",
    quantization: Quantization = "none",
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
) -> None:
    """Time a prompt whose beginning is cached beside one that is cold, and take steps apart.

    Each pair has a beginning of its own and 32 tokens more each. The steps are those of a full
    batch in which everybody decodes: greedy, then sampled (temperature, top-k and top-p).

    Examples:

    - `minserve bench engine`

    - `minserve bench engine --model nano --repeats 3`: seconds, to see what it prints
    """
    from minserve.benchmarks.engine import SAMPLED, prefix_hit, step_shares
    from minserve.cli.machine import QUIET_SHARE, CpuUse, describe
    from minserve.errors import ConfigError
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.request import SamplingParams

    if min(repeats, shared, batch, steps) < 1:
        raise ConfigError("nothing to measure", "use 1 or more of each")
    num_blocks = max(2 * (shared // 16 + 4), batch * ((128 + steps + 32) // 16 + 2))
    executor = TorchExecutor(
        model,
        num_blocks=num_blocks,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
    )
    rng, use, console = random.Random(seed), CpuUse(), out()
    prefix_hit(executor, rng, shared)  # the first of all is not counted: kernels compile
    pairs = [prefix_hit(executor, rng, shared) for _ in range(repeats)]
    cold_s = statistics.median(pair.cold_s for pair in pairs)
    hit_s = statistics.median(pair.hit_s for pair in pairs)
    cached = sorted({pair.num_cached_tokens for pair in pairs})
    found = {
        name: step_shares(executor, rng, sampling, batch, steps)
        for name, sampling in (("greedy", SamplingParams()), ("sampled", SAMPLED))
    }
    others = use.others_share()
    console.print(
        f"First token of {shared:,} + 32 tokens, median of {repeats}: cold {1000 * cold_s:.1f} ms, "
        f"beginning cached {1000 * hit_s:.1f} ms, {hit_s / cold_s:.3f} of it "
        f"({_holds(hit_s / cold_s <= MOST_OF_COLD)}at most {MOST_OF_COLD:g}). "
        f"Not computed: {', '.join(f'{count:,}' for count in cached)} tokens."
    )
    for name, taken in found.items():
        parts = ", ".join(f"{part} {share:.1%}" for part, share in taken.shares.items())
        most = MOST_BOOKKEEPING[name]
        console.print(
            f"A step of {batch}, {name}: {1000 * taken.step_s:.1f} ms; {parts}. Scheduling and "
            f"sampling {taken.bookkeeping:.1%} "
            f"({_holds(taken.bookkeeping <= most)}at most {most:.0%})."
        )
    if others is not None and others > QUIET_SHARE:
        console.print(f"[yellow]Others used {others:.0%} of the CPU meanwhile.[/yellow] Repeat it.")
    print_json(
        {
            "machine": describe(),
            "model": model,
            "dtype": executor.dtype,
            "precision": str(executor.precision),
            "prefix_hit": {
                "num_shared_tokens": shared,
                "cold_s": cold_s,
                "hit_s": hit_s,
                "hit_over_cold": hit_s / cold_s,
                "num_cached_tokens": cached,
                "pairs_s": [(pair.cold_s, pair.hit_s) for pair in pairs],
            },
            "steps": {
                name: {
                    "batch": batch,
                    "num_steps": taken.num_steps,
                    "step_s": taken.step_s,
                    "shares": taken.shares,
                    "bookkeeping": taken.bookkeeping,
                }
                for name, taken in found.items()
            },
            "others_cpu_share": others,
        }
    )


def _holds(is_kept: bool) -> str:
    return "holds: " if is_kept else "missed: "
