"""`minserve bench offline`: tokens per second beside other engines, in one run."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from minserve.cli.console import (
    Dtype,
    KvCacheDtype,
    Model,
    Quantization,
    out,
    print_json,
    size,
)

MOST_REST_BYTES = 300_000_000


def offline(
    model: Model = "smollm2",
    against: Annotated[
        str, typer.Option(help="Peers, with commas: transformers, transformers-cb, vllm.")
    ] = "",
    peer_python: Annotated[
        list[str] | None,
        typer.Option(help="NAME=/path/to/python of a peer; transformers need none."),
    ] = None,
    workloads: Annotated[
        str, typer.Option(help="Which of: single; 16x128/64; 16x512/64; 64 mixed. With semicolons.")
    ] = "single;16x128/64;16x512/64;64 mixed",
    repeats: Annotated[int, typer.Option(help="Runs of each; the median counts.")] = 3,
    dtype: Dtype = "float32",
    kv_cache_dtype: KvCacheDtype = "auto",
    quantization: Quantization = "none",
    threads: Annotated[int | None, typer.Option(help="By default one for each core.")] = None,
    token_budget: Annotated[int, typer.Option(help="Our most tokens in a step.")] = 2048,
    max_running: Annotated[int, typer.Option(help="Most requests in a step.")] = 64,
    kv_tokens: Annotated[int, typer.Option(help="Tokens that our KV pool holds.")] = 32768,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
) -> None:
    """Send a whole workload at once, and time it to the last token.

    Prompts are random and share nothing; output lengths are forced; every engine has the same
    weights, precision and threads, in a process of its own, and they take turns; only what
    --quantization and --kv-cache-dtype say is ours alone. The roofline is measured in the same run.
    Which peers need which environment: docs/benchmarks.md.

    Examples:

    - `minserve bench offline --workloads "single;16x128/64"`

    - `minserve bench offline --against transformers,vllm --peer-python
      vllm=/opt/vllm/bin/python`

    - `minserve bench offline --model nano --repeats 1`: seconds, to see what it prints
    """
    from minserve.benchmarks.offline import measure
    from minserve.benchmarks.runner import PEERS
    from minserve.benchmarks.workloads import workload
    from minserve.cli.choices import choose
    from minserve.cli.machine import QUIET_SHARE, CpuUse, describe
    from minserve.errors import ConfigError
    from minserve.execution.precision import Precision, choose_dtype
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve
    from minserve.models.weights import weight_files

    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}", "use at least 1, and 3 for a figure to quote")
    precision = Precision(choose_dtype(dtype, "cpu"), quantization, kv_cache_dtype)
    folder = resolve(model)
    vocab_size = ModelConfig.from_folder(folder).vocab_size
    works = [workload(name.strip(), vocab_size, seed) for name in workloads.split(";")]
    settings = {
        "model": str(folder),
        "weights": [str(file) for file in weight_files(folder)],
        "dtype": precision.dtype,
        "kv_cache_dtype": precision.kv_cache,
        "quantization": precision.quantization,
        "threads": threads or os.cpu_count() or 1,
        "token_budget": token_budget,
        "max_running": max_running,
        "kv_tokens": kv_tokens,
    }
    names = choose("peer", against, tuple(PEERS)) if against else []
    cpu = CpuUse(children=True)
    console = out()
    with console.status("") as status:
        found, about, roofline = measure(
            settings,
            works,
            _pythons(names, peer_python or []),
            repeats,
            lambda what: status.update(what),
        )
    others = cpu.others_share()
    ours = {m.workload.name: m for m in found if m.engine == "minserve"}
    rows = [_row(m, ours[m.workload.name], roofline) for m in found]
    console.print(_table(rows, f"{model}, {precision}, {settings['threads']} threads"))
    console.print(_breakdown([row for row in rows if "step_times_s" in row]))
    floor_s, peak = roofline["sum_of_weights_s"], roofline["peak_flops"]
    console.print(
        f"Roofline of this run: copies {roofline['copy_bytes_per_s'] / 1e9:.1f} GB/s; float32 "
        + (f"multiply-adds in registers {peak / 1e9:.0f} GFLOP/s, " if peak else "")
        + f"torch's product of two matrices {roofline['matmul_flops'] / 1e9:.0f}; summing the "
        f"weights ({size(roofline['weight_bytes'])}) takes {1000 * floor_s:.1f} ms. To read "
        "weights once is the least that a single-stream token can take; who keeps fewer bytes, "
        "as 16-bit checkpoints let minserve, is measured by as much less."
    )
    memory = _memory(list(ours.values()))
    console.print(
        f"Memory: {size(memory['peak_rss_bytes'])} at most, of which imports "
        f"{size(memory['imports_bytes'])}, weights {size(memory['weight_bytes'])}, KV pool "
        f"{size(memory['kv_bytes'])}; {size(memory['rest_bytes'])} more "
        f"({'holds' if memory['rest_bytes'] <= MOST_REST_BYTES else 'missed'}: at most "
        f"{size(MOST_REST_BYTES)})."
    )
    if others is not None and others > QUIET_SHARE:
        console.print(
            f"[yellow]Others used {others:.0%} of the CPU meanwhile: no verdict.[/yellow] "
            "Stop them and run it again."
        )
    print_json(
        {
            "machine": describe(),
            "model": model,
            "settings": {k: v for k, v in settings.items() if k not in ("model", "weights")},
            "engines": about,
            "results": rows,
            "roofline": roofline,
            "memory": memory,
            "others_cpu_share": others,
        }
    )


def _pythons(names: list[str], given: list[str]) -> dict[str, str]:
    """The Python of each peer. Raises `ConfigError`."""
    import sys

    from minserve.errors import ConfigError

    pythons = {}
    for item in given:
        name, equals, path = item.partition("=")
        if not equals:
            raise ConfigError(f"--peer-python {item!r}", "give NAME=/path/to/python")
        pythons[name] = path
    for name in names:
        if name == "vllm" and name not in pythons:
            raise ConfigError(
                "vllm needs an environment of its own",
                "--peer-python vllm=/path/to/venv/bin/python; see docs/benchmarks.md",
            )
        pythons.setdefault(name, sys.executable)
    return {name: pythons[name] for name in names}


def _memory(ours) -> dict[str, int]:
    """Where our process's memory went at its peak, in bytes; `rest_bytes` is what nobody named."""
    last = ours[-1].results[-1]
    peak = max(each.peak_rss_bytes for each in ours)
    imports, weights, kv = last["rss_after_imports"], last["weight_bytes"], last["kv_bytes"]
    return {
        "peak_rss_bytes": peak,
        "imports_bytes": imports,
        "weight_bytes": weights,
        "kv_bytes": kv,
        "rest_bytes": max(0, peak - imports - weights - kv),
    }


def _row(measured, ours, roofline: dict[str, Any]) -> dict[str, Any]:
    last = measured.results[-1]
    row = {
        "workload": measured.workload.name,
        "engine": measured.engine,
        "median_s": measured.median_s,
        "times_s": measured.times_s,
        "tokens_per_s": measured.tokens_per_s,
        "ours_over_theirs": ours.tokens_per_s / measured.tokens_per_s,
        "peak_rss_bytes": measured.peak_rss_bytes,
        "same_tokens": measured.agreement(ours),
    }
    if measured.workload.name == "single":
        # Fewer bytes, as of int8 weights, are summed in less time.
        share = last.get("weight_bytes", roofline["weight_bytes"]) / roofline["weight_bytes"]
        step_s = measured.median_s / measured.workload.num_output_tokens
        row["token_over_weights_sum"] = step_s / (share * roofline["sum_of_weights_s"])
    return row | {k: last[k] for k in ("num_steps", "step_times_s") if k in last}


def _table(rows: list[dict[str, Any]], title: str):
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading in ("workload", "engine"):
        made.add_column(heading, no_wrap=True)
    for heading in ("seconds", "tokens/s", "minserve is", "peak memory", "same tokens", "of floor"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ratio = row["ours_over_theirs"]
        floor = row.get("token_over_weights_sum")
        made.add_row(
            row["workload"],
            row["engine"],
            f"{row['median_s']:.2f}",
            f"{row['tokens_per_s']:,.1f}",
            "-" if row["engine"] == "minserve" else f"{ratio:.2f} x",
            size(row["peak_rss_bytes"]),
            f"{row['same_tokens']:.0%}",
            f"{floor:.2f} x" if floor else "-",
        )
    return made


def _breakdown(rows: list[dict[str, Any]]):
    """Where the time of a step goes, in the last run of each workload."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "Where minserve's steps spend their time"
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.add_column("workload", no_wrap=True)
    for heading in ("steps", "ms a step", *rows[0]["step_times_s"]):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        spent, num_steps = row["step_times_s"], row["num_steps"]
        total_s = sum(spent.values())
        shares = (f"{part_s / total_s:.1%}" for part_s in spent.values())
        made.add_row(
            row["workload"], f"{num_steps:,}", f"{1000 * total_s / num_steps:.1f}", *shares
        )
    return made
