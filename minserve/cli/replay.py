"""`minserve replay`: the same traffic through the real engine under several policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, KvCacheDtype, Model, out, print_json
from minserve.errors import ConfigError

TIMING, QUALITY = 400, 96
DEMO_TIMING, DEMO_QUALITY = 96, 32


def replay(
    model: Model = "nano",
    demo: Annotated[bool, typer.Option("--demo", help="Small enough for two minutes.")] = False,
    requests: Annotated[
        int | None, typer.Option(help="Requests of the timing set; half as many for quality.")
    ] = None,
    policies: opt.Policies = "static,dynamic,continuous",
    prefix: opt.Prefix = "both",
    which: Annotated[
        str, typer.Option("--set", help="timing, quality, or both: see above.")
    ] = "both",
    load: opt.Load = 2.0,
    rate: Annotated[
        float | None, typer.Option(help="Arrivals per second instead; comparable between runs.")
    ] = None,
    ordering: opt.OrderingName = "fifo",
    max_running: opt.MaxRunning = 16,
    batch_size: opt.BatchSize = None,
    blocks: Annotated[int, typer.Option(help="KV blocks of 16 tokens, the same for all.")] = 2048,
    exact: Annotated[
        bool, typer.Option("--exact", help="Batch-invariant kernels: slower, bits never differ.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    kv_cache_dtype: KvCacheDtype = "auto",
    reuse: Annotated[
        int, typer.Option(help="Questions for caches and cascade, asked in turn; 0 is none.")
    ] = 0,
    cascade_to: Annotated[
        str, typer.Option(help="Second model of the cascade, such as smollm2; else none is run.")
    ] = "",
    embedder: Annotated[
        str, typer.Option(help="Of the semantic cache: default, minilm, a folder or hub id.")
    ] = "default",
    report_jobs: Annotated[
        int, typer.Option(help="Also with document reports as jobs, so many at once; 0 is not.")
    ] = 0,
    price: Annotated[
        float, typer.Option(help="Stated price of this machine, USD per hour.")
    ] = 0.10,
    seed: Annotated[int, typer.Option(help="Of the traffic.")] = 0,
    to: Annotated[Path, typer.Option("--out", help="Folder for picture and events.")] = Path(
        "artifacts"
    ),
    json: Json = False,
) -> None:
    """Serve the same Northstar traffic under each policy, and compare in one table.

    Timing comes from the timing set (output lengths forced, so that every policy does the same
    work), arriving in bursts; quality and cost from the quality set (natural stops, answers
    checked), all sent at once. Static batching is shown at its best batch size. The model is
    warmed first; each run begins with an empty prefix cache. A picture shows who was in each batch.
    With --report-jobs the timing set runs twice more: its document reports in the engine's queue,
    and as durable jobs.

    Examples:

    - `minserve replay --demo`

    - `minserve replay --requests 200 --policies static,continuous --prefix on --set timing --json`

    - `minserve replay --requests 32 --reuse 100 --cascade-to smollm2`: caches and a cascade too

    - `minserve replay --requests 200 --policies continuous --report-jobs 1`: what asynchronous
    reports do for everybody else

    - `minserve replay --exact --requests 32`: tokens are the same bits under every policy
    """
    from minserve.cli import choices, replay_reports, replay_reuse, replay_rows
    from minserve.cli.picture import make_folder
    from minserve.cli.replay_runs import Plan, Runs, Setup
    from minserve.cli.stages import Stages

    names = choices.choose("policy", policies, choices.POLICIES)
    if prefix not in replay_rows.PREFIX:
        raise ConfigError(f"prefix is {prefix!r}", "use on, off or both")
    if which not in ("timing", "quality", "both"):
        raise ConfigError(f"set is {which!r}", "use timing, quality or both")
    if ordering not in choices.ORDERINGS:
        raise ConfigError(f"ordering {ordering!r}", f"use {', '.join(choices.ORDERINGS)}")
    if requests is not None and requests < 1:
        raise ConfigError(f"{requests} requests", "ask for at least 1")
    if report_jobs < 0:
        raise ConfigError(f"{report_jobs} report jobs", "use 0 or more")
    sizes = choices.sizes_up_to(max_running, batch_size)
    make_folder(to)
    if not 0 < load < 100 or (rate is not None and rate <= 0):
        raise ConfigError(f"load {load}, rate {rate}", "use positive values")
    with Stages() as stages:
        stages.begin("loading the model", None)
        setup = Setup(
            model, blocks, dtype, kv_cache_dtype, exact, ordering, max_running, seed, price
        )
        runs, prefixes = Runs(setup, stages), replay_rows.PREFIX[prefix]
        num_timing = requests or (DEMO_TIMING if demo else TIMING)
        num_quality = max(1, requests // 2) if requests else (DEMO_QUALITY if demo else QUALITY)
        sizes = sizes[-2:] if demo else sizes
        plan = Plan(names, prefixes, which, num_timing, num_quality, sizes, load, rate)
        report, rows = runs.everything(plan, demo)
        if report_jobs:
            report["asynchronous_reports"] = runs.with_report_jobs(report_jobs, prefixes[-1])
        if reuse:
            report["reuse"] = replay_reuse.measure(
                runs.executor,
                model,
                cascade_to,
                embedder,
                reuse,
                seed,
                lambda name: stages.begin(f"reuse: {name}", None),
            )
        stages.begin("drawing", None)
        report["pictures"] = runs.draw(to, rows)
    _print(report, rows)
    if report_jobs:
        out().print(replay_reports.table(report["asynchronous_reports"]))
    if reuse:
        out().print(replay_reuse.table(report["reuse"]))
    if json:
        print_json(report)


def _print(report: dict[str, Any], rows: Sequence) -> None:
    from minserve.cli import machine, replay_rows

    say = out().print
    model, about, how = report["model"], report["machine"], report["conditions"]
    title = f"Northstar traffic, {how['timing_requests']} + {how['quality_requests']} requests"
    say(replay_rows.table(rows, title))
    say(
        f"{model['name']}, {model['precision']}, {model['kernels']} kernels; {about['cpu']}, "
        f"{about['threads']} threads; torch {about['torch']}, Python {about['python']}, "
        f"minserve {about['minserve']}."
    )
    say(
        f"{how['warm']} (loaded in {how['model_load_s']:.2f} s). Open loop, in bursts, "
        f"{how['rate_per_s']:.1f} requests/s; at most {how['max_running']} requests in a step; "
        f"{how['kv_blocks']:,} KV blocks of {how['block_size']} tokens."
    )
    if how["timing_requests"]:
        say("Times: timing set (output lengths forced). ", end="")
    if how["quality_requests"]:
        say(
            "Quality and cost: quality set, sent at once, "
            f"at a stated {how['price_usd_per_hour']:.2f} USD per hour."
        )
    else:
        say("Quality was not checked: add --set both.")
    say(f"{replay_rows.say_efficiency(rows[-1])}.")
    if tried := report["static_batch_sizes_tried"]:
        sizes = ", ".join(f"{t['batch_size']}: {t['tokens_per_s']:,.0f}" for t in tried)
        say(f"Static batch sizes tried, and their tokens/s: {sizes}.")
    differ = report["requests_with_other_tokens"]
    if report["tokens_identical"]:
        say("Output tokens are identical in all runs.")
    else:
        counts = ", ".join(f"{n} of the {which} set" for which, n in differ.items() if n)
        say(
            f"Requests whose tokens differ between runs: {counts}. Fast kernels round differently "
            "in other batches; --exact does not."
        )
    for comparison in report["comparison"]:
        say(f"[bold]{replay_rows.say_comparison(comparison)}.[/bold]")
    if trouble := replay_rows.troubles(rows):
        say(f"[bold]Not all went well:[/bold] {trouble}.")
    share = how["other_cpu_share"]
    if share is not None and share > machine.QUIET_SHARE:
        say(
            f"Other programs used up to {share:.0%} of the CPU: take no verdict from these times, "
            "repeat on a quiet machine."
        )
    for path in report["pictures"]:
        say(f"Wrote {path}")
