"""The runs of `minserve replay`: the same traffic on one loaded model, a policy at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minserve.cli import choices, machine, replay_reports, replay_rows
from minserve.cli.picture import draw_timelines
from minserve.cli.replay_rows import Row
from minserve.cli.stages import Stages
from minserve.client import EngineClient, LocalClient
from minserve.clock import WallClock
from minserve.errors import ConfigError
from minserve.metrics import Summary
from minserve.northstar.replay import Replay
from minserve.northstar.traffic import Arrival, at_rate, make_traffic

DEMO_BUDGET_S = 50.0
"""What the runs of a demo may take together; on a slow machine it serves fewer requests."""
FEWEST = 16
AT_ONCE_PER_S = 1e6
MAX_TOTAL_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same in all runs."""

    model: str
    num_blocks: int
    dtype: str
    kv_cache_dtype: str
    is_exact: bool
    ordering: str
    max_running: int
    seed: int
    price: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Which runs: each policy with each of `prefixes`, on the `which` sets of traffic."""

    policies: Sequence[str]
    prefixes: Sequence[bool]
    which: str
    num_timing: int
    num_quality: int
    static_sizes: Sequence[int]
    load: float
    rate_per_s: float | None

    def within(self, budget_s: float, warm_s: float) -> Plan:
        """With fewer requests, where one run takes `warm_s` and all would take too long."""
        num_runs = len(self.static_sizes) - 1 + len(self.policies) * len(self.prefixes)
        expected_s = warm_s * num_runs * (1.5 + 0.5 * self.num_quality / self.num_timing)
        fits = budget_s / expected_s
        if fits >= 1:
            return self
        fewer_timing, fewer_quality = int(self.num_timing * fits), int(self.num_quality * fits)
        return replace(
            self,
            num_timing=max(FEWEST, fewer_timing),
            num_quality=max(FEWEST, fewer_quality),
        )


class Runs:
    """A loaded model, and what has been served on it."""

    def __init__(self, setup: Setup, stages: Stages) -> None:
        began_s = time.perf_counter()
        from minserve.execution.torch_executor import TorchExecutor

        imported_s = time.perf_counter()
        self.executor = TorchExecutor(
            setup.model,
            num_blocks=setup.num_blocks,
            dtype=setup.dtype,
            kv_cache_dtype=setup.kv_cache_dtype,
            batch_invariant=setup.is_exact,
        )
        self.load_s = time.perf_counter() - imported_s
        self.import_s = imported_s - began_s
        self.setup, self.stages = setup, stages
        self.replays: dict[tuple[str, int | None, bool, str], Replay] = {}
        self.others: list[float] = []
        self.timing: Sequence[Arrival] = ()

    def everything(self, plan: Plan, is_demo: bool) -> tuple[dict[str, Any], list[Row]]:
        """All runs; the report as plain values, and the rows of the table."""
        warm_s, capacity = self._warm_up(plan.num_timing, plan.prefixes[-1])
        if is_demo:
            plan = plan.within(DEMO_BUDGET_S, warm_s)
        rate_per_s = plan.rate_per_s or plan.load * capacity
        self.timing = self._traffic("timing", plan.num_timing, rate_per_s)
        quality = self._traffic("quality", plan.num_quality, rate_per_s)
        rows, tried = self._rows(plan, quality if plan.which == "quality" else self.timing)
        if plan.which != "timing":
            at_once = self._traffic("quality", plan.num_quality, AT_ONCE_PER_S)
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
                "max_running": self.setup.max_running,
                "ordering": self.setup.ordering,
                "arrivals": "open loop, in bursts",
                "rate_per_s": rate_per_s,
                "seed": self.setup.seed,
                "timing_requests": 0 if plan.which == "quality" else plan.num_timing,
                "quality_requests": 0 if plan.which == "timing" else plan.num_quality,
                "price_usd_per_hour": self.setup.price,
                "energy": rows[-1].timing.energy_source,
                "other_cpu_share": max(self.others) if self.others else None,
            },
            "static_batch_sizes_tried": [
                {"batch_size": row.batch_size, "tokens_per_s": row.timing.tokens_per_s}
                for row in tried
            ],
            "rows": [row.as_dict() for row in rows],
            "comparison": replay_rows.compare(rows),
            "requests_with_other_tokens": differ,
            "tokens_identical": not any(differ.values()),
        }
        return report, rows

    def with_report_jobs(self, at_once: int, prefix: bool) -> dict[str, Any]:
        """The timing set under continuous batching, its reports in the queue and as jobs."""

        def serve(
            label: str,
            arrivals: Sequence[Arrival],
            wrap: Callable[[LocalClient], EngineClient],
        ) -> Replay:
            return self._serve(label, arrivals, "continuous", None, prefix, wrap)

        return replay_reports.measure(self.timing, serve, at_once)

    def draw(self, folder: Path, rows: Sequence[Row]) -> list[str]:
        """The timeline of static and continuous batching, and their event logs."""
        shown = {}
        for row in rows:
            replay = self.replays[row.policy, row.batch_size, row.prefix, "timing"]
            if row.policy in ("static", "continuous") or len(rows) == 1:
                shown[row.name] = replay  # rows end with prefix reuse on, where that was run
        return draw_timelines(folder, shown)

    def _rows(self, plan: Plan, arrivals: Sequence[Arrival]) -> tuple[list[Row], list[Row]]:
        """A row for each policy with each prefix, and those of all static batch sizes tried."""
        rows: list[Row] = []
        tried: list[Row] = []
        best: int | None = max(plan.static_sizes)
        for on in reversed(plan.prefixes):  # the search, on the first of them, serves the rest
            if "static" in plan.policies and not rows:
                tried = [self._row("static", size, on, arrivals) for size in plan.static_sizes]
                rows.append(max(tried, key=lambda row: row.timing.tokens_per_s or 0.0))
                best = rows[0].batch_size
            for name in plan.policies:
                size = None if name == "continuous" else best
                if not any(row.policy == name and row.prefix == on for row in rows):
                    rows.append(self._row(name, size, on, arrivals))
        return rows, tried

    def _warm_up(self, num_requests: int, prefix: bool) -> tuple[float, float]:
        """Seconds and requests per second of one untimed run, everything sent at once."""
        few = at_rate(self._traffic("timing", min(num_requests, FEWEST), 1.0), 1.0, AT_ONCE_PER_S)
        self._serve("warming up", few, "continuous", None, prefix)
        all_at_once = self._traffic("timing", num_requests, AT_ONCE_PER_S)
        replay = self._serve("finding the capacity", all_at_once, "continuous", None, prefix)
        summary = replay.summarise()
        if not summary.requests_per_s:
            errors = sorted({r.error for r in replay.requests if r.error})
            raise ConfigError(
                f"no request could be served: {errors[0] if errors else 'no reason given'}",
                "give --blocks more, or use a model with a longer context",
            )
        return summary.duration_s, summary.requests_per_s

    def _traffic(self, which: str, count: int, rate_per_s: float) -> list[Arrival]:
        def encode(text: str) -> list[int]:
            return self.executor.tokenizer.encode(text, add_special_tokens=False)

        limit, seed = min(MAX_TOTAL_TOKENS, self.executor.max_model_len), self.setup.seed
        return make_traffic(
            which, count, encode, rate_per_s=rate_per_s, seed=seed, max_total_tokens=limit
        )

    def _serve(
        self,
        label: str,
        arrivals: Sequence[Arrival],
        policy: str,
        size: int | None,
        prefix: bool,
        wrap: Callable[[LocalClient], EngineClient] = lambda client: client,
    ) -> Replay:
        step, use = self.stages.begin(label, len(arrivals)), machine.CpuUse()
        replay = replay_rows.serve(
            arrivals,
            self.executor,
            WallClock(),
            choices.make_policy(policy, size or self.setup.max_running),
            prefix=prefix,
            ordering=self.setup.ordering,
            on_finished=step,
            wrap=wrap,
        )
        if (share := use.others_share()) is not None:
            self.others.append(share)
        return replay

    def _row(self, name: str, size: int | None, prefix: bool, arrivals: Sequence[Arrival]) -> Row:
        label = f"{name}{f' {size}' if size else ''}, prefix reuse {'on' if prefix else 'off'}"
        replay = self._serve(label, arrivals, name, size, prefix)
        self.replays[name, size, prefix, "timing"] = replay
        summary = replay.summarise(self.setup.price)
        return Row(name, size, prefix, summary, replay.summarise_by_kind())

    def _quality(self, row: Row, arrivals: Sequence[Arrival]) -> Summary:
        label = f"quality: {row.name}, prefix reuse {'on' if row.prefix else 'off'}"
        replay = self._serve(label, arrivals, row.policy, row.batch_size, row.prefix)
        self.replays[row.policy, row.batch_size, row.prefix, "quality"] = replay
        qualified = replay.qualified(self.executor.tokenizer.decode)
        return replay.summarise(self.setup.price, qualified)

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
            "name": self.setup.model,
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
