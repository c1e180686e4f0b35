"""`minserve replay`: the same traffic through the real engine under several policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, KvCacheDtype, Model, out, print_json
from minserve.errors import ConfigError

TIMING, QUALITY = 400, 96
DEMO_TIMING, DEMO_QUALITY = 96, 32
DEMO_BUDGET_S = 50.0
"""What the runs of a demo may take together; on a slow machine it serves fewer requests."""
FEWEST = 16


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
    with _Bar() as bar:
        bar.stage("loading the model", None)
        precision = dtype, kv_cache_dtype
        run = _Run(model, blocks, precision, exact, ordering, seed, price, max_running, bar)
        num_timing = requests or (DEMO_TIMING if demo else TIMING)
        num_quality = max(1, requests // 2) if requests else (DEMO_QUALITY if demo else QUALITY)
        sizes = sizes[-2:] if demo else sizes
        report, rows = run.everything(
            names,
            replay_rows.PREFIX[prefix],
            which,
            num_timing,
            num_quality,
            sizes,
            load,
            rate,
            demo,
        )
        if report_jobs:
            report["asynchronous_reports"] = run.with_report_jobs(
                report_jobs, replay_rows.PREFIX[prefix]
            )
        if reuse:
            report["reuse"] = replay_reuse.measure(
                run.executor,
                model,
                cascade_to,
                embedder,
                reuse,
                seed,
                lambda name: bar.stage(f"reuse: {name}", None),
            )
        bar.stage("drawing", None)
        report["pictures"] = run.draw(to, rows)
    _print(report, rows)
    if report_jobs:
        out().print(replay_reports.table(report["asynchronous_reports"]))
    if reuse:
        out().print(replay_reuse.table(report["reuse"]))
    if json:
        print_json(report)


class _Run:
    """A loaded model, and what has been served on it."""

    def __init__(
        self, model, blocks, precision, exact, ordering, seed, price, max_running, bar
    ) -> None:
        began_s = time.perf_counter()
        from minserve.execution.torch_executor import TorchExecutor

        imported_s = time.perf_counter()
        self.executor = TorchExecutor(
            model,
            num_blocks=blocks,
            dtype=precision[0],
            kv_cache_dtype=precision[1],
            batch_invariant=exact,
        )
        self.load_s = time.perf_counter() - imported_s
        self.import_s = imported_s - began_s
        self.model, self.ordering, self.seed, self.price = model, ordering, seed, price
        self.max_running, self.bar = max_running, bar
        self.replays: dict[tuple[str, int | None, bool, str], Any] = {}
        self.others: list[float] = []

    def everything(
        self, names, prefixes, which, num_timing, num_quality, sizes, load, rate, demo
    ) -> tuple[dict[str, Any], list]:
        """All runs; the report as plain values, and the rows of the table."""
        from minserve.cli import choices, machine, replay_rows

        warm_s, capacity = self._warm_up(num_timing, prefixes[-1])
        if demo:
            num_runs = len(sizes) - 1 + len(names) * len(prefixes)
            expected_s = warm_s * num_runs * (1.5 + 0.5 * num_quality / num_timing)
            fits = DEMO_BUDGET_S / expected_s
            if fits < 1:  # a slow or busy machine
                num_timing = max(FEWEST, int(num_timing * fits))
                num_quality = max(FEWEST, int(num_quality * fits))
        rate_per_s = rate or load * capacity
        timing = self.timing = self._traffic("timing", num_timing, rate_per_s)
        quality = self._traffic("quality", num_quality, rate_per_s)
        main = quality if which == "quality" else timing
        rows, search = [], []
        best = max(sizes)
        for on in reversed(prefixes):  # the search, on the first of them, serves the rest
            if "static" in names and not rows:
                found = [self._row("static", n, on, main) for n in sizes]
                search = [
                    {"batch_size": r.batch_size, "tokens_per_s": r.timing.tokens_per_s}
                    for r in found
                ]
                rows.append(max(found, key=lambda row: row.timing.tokens_per_s or 0.0))
                best = rows[0].batch_size
            for name in names:
                size = None if name == "continuous" else best
                if not any(r.policy == name and r.prefix == on for r in rows):
                    rows.append(self._row(name, size, on, main))
        if which != "timing":
            at_once = self._traffic("quality", num_quality, 1e6)
            for row in rows:
                row.quality = self._quality(row, at_once)
        rows.sort(key=lambda row: (row.prefix, choices.POLICIES.index(row.policy)))
        differ = self._differing()
        report = {
            "model": self._about_model(),
            "machine": machine.describe() | self._about_torch(),
            "conditions": {
                "warm": "Model warm, prefix cache cold at the start of each run",
                "model_load_s": self.load_s,
                "torch_import_s": self.import_s,
                "kv_blocks": self.executor.num_blocks,
                "block_size": self.executor.block_size,
                "max_running": self.max_running,
                "ordering": self.ordering,
                "arrivals": "open loop, in bursts",
                "rate_per_s": rate_per_s,
                "seed": self.seed,
                "timing_requests": 0 if which == "quality" else num_timing,
                "quality_requests": 0 if which == "timing" else num_quality,
                "price_usd_per_hour": self.price,
                "energy": rows[-1].timing.energy_source,
                "other_cpu_share": max(self.others) if self.others else None,
            },
            "static_batch_sizes_tried": search,
            "rows": [row.as_dict() for row in rows],
            "comparison": replay_rows.compare(rows),
            "requests_with_other_tokens": differ,
            "tokens_identical": not any(differ.values()),
        }
        return report, rows

    def with_report_jobs(self, at_once: int, prefixes) -> dict[str, Any]:
        """The timing set under continuous batching, its reports in the queue and as jobs."""
        from minserve.cli import replay_reports

        def serve(label: str, arrivals, wrap):
            return self._serve(label, arrivals, "continuous", None, prefixes[-1], wrap)

        return replay_reports.measure(self.timing, serve, at_once)

    def _warm_up(self, num_requests: int, prefix: bool) -> tuple[float, float]:
        """Seconds and requests per second of one untimed run, everything sent at once."""
        from minserve.northstar.traffic import at_rate

        few = self._traffic("timing", min(num_requests, FEWEST), 1.0)
        self._serve("warming up", at_rate(few, 1.0, 1e6), "continuous", None, prefix)
        all_at_once = self._traffic("timing", num_requests, 1e6)
        replay = self._serve("finding the capacity", all_at_once, "continuous", None, prefix)
        summary = replay.summarise()
        if not summary.requests_per_s:
            errors = sorted({r.error for r in replay.requests if r.error})
            raise ConfigError(
                f"no request could be served: {errors[0] if errors else 'no reason given'}",
                "give --blocks more, or use a model with a longer context",
            )
        return summary.duration_s, summary.requests_per_s

    def _traffic(self, which: str, count: int, rate_per_s: float):
        from minserve.northstar.traffic import make_traffic

        def encode(text: str) -> list[int]:
            return self.executor.tokenizer.encode(text, add_special_tokens=False)

        limit = min(2048, self.executor.max_model_len)
        return make_traffic(
            which, count, encode, rate_per_s=rate_per_s, seed=self.seed, max_total_tokens=limit
        )

    def _serve(
        self, label: str, arrivals, name: str, size: int | None, prefix: bool, wrap=lambda c: c
    ):
        from minserve.cli import choices, replay_rows
        from minserve.cli.machine import CpuUse
        from minserve.clock import WallClock

        step = self.bar.stage(label, len(arrivals))
        policy = choices.make_policy(name, size or self.max_running)
        use = CpuUse()
        replay = replay_rows.serve(
            arrivals,
            self.executor,
            WallClock(),
            policy,
            prefix=prefix,
            ordering=self.ordering,
            on_finished=step,
            wrap=wrap,
        )
        if (share := use.others_share()) is not None:
            self.others.append(share)
        return replay

    def _row(self, name: str, size: int | None, prefix: bool, arrivals):
        from minserve.cli import replay_rows

        label = f"{name}{f' {size}' if size else ''}, prefix reuse {'on' if prefix else 'off'}"
        replay = self._serve(label, arrivals, name, size, prefix)
        self.replays[name, size, prefix, "timing"] = replay
        summary = replay.summarise(self.price)
        return replay_rows.Row(name, size, prefix, summary, replay.summarise_by_kind())

    def _quality(self, row, arrivals):
        label = f"quality: {row.name}, prefix reuse {'on' if row.prefix else 'off'}"
        replay = self._serve(label, arrivals, row.policy, row.batch_size, row.prefix)
        self.replays[row.policy, row.batch_size, row.prefix, "quality"] = replay
        qualified = replay.qualified(self.executor.tokenizer.decode)
        return replay.summarise(self.price, qualified)

    def _differing(self) -> dict[str, int]:
        """For each set, how many requests got other tokens in some run than in the first."""
        differing: dict[str, set[str]] = {}
        first: dict[str, dict[str, tuple[int, ...]]] = {}
        for (*_, which), replay in self.replays.items():
            tokens = replay.tokens()
            before = first.setdefault(which, tokens)
            other = {key for key in before if before[key] != tokens.get(key)}
            differing.setdefault(which, set()).update(other)
        return {which: len(ids) for which, ids in differing.items()}

    def _about_model(self) -> dict[str, Any]:
        executor = self.executor
        return {
            "name": str(self.model),
            "fingerprint": executor.cache_namespace,
            "precision": executor.dtype,
            "kv_cache": executor.kv_cache_dtype,
            "kernels": "batch-invariant" if executor.batch_invariant else "fast",
            "parameters": executor.config.num_parameters,
        }

    def _about_torch(self) -> dict[str, Any]:
        import torch

        return {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": self.executor.device,
        }

    def draw(self, folder: Path, rows: Sequence) -> list[str]:
        """The timeline of static and continuous batching, and their event logs."""
        from minserve.cli.picture import draw_timelines

        shown = {}
        for row in rows:
            replay = self.replays[row.policy, row.batch_size, row.prefix, "timing"]
            if row.policy in ("static", "continuous") or len(rows) == 1:
                shown[row.name] = replay  # rows end with prefix reuse on, where that was run
        return draw_timelines(folder, shown)


class _Bar:
    """Progress on standard error: a line that says what runs now, and how far it is."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        self._all = self._bar.add_task("in all", total=None)
        self._task = None

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def stage(self, label: str, total: int | None) -> Callable[[int], None]:
        """Begin a stage; call the result with how many are done."""
        if not self._bar.console.is_terminal:
            self._bar.console.print(f"... {label}", highlight=False)
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._bar.advance(self._all)
        task = self._task = self._bar.add_task(label, total=total)
        return lambda done: self._bar.update(task, completed=done)


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
