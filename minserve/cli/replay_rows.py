"""One replay on one engine, and the table of several: what `replay` and `simulate` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minserve.cli.choices import ORDERINGS
from minserve.client import EngineClient, LocalClient
from minserve.clock import Clock, EventLoop, WallClock
from minserve.energy import EnergyMeter
from minserve.engine import Engine
from minserve.execution.executor import Executor
from minserve.metrics import Summary, seconds
from minserve.northstar.replay import Replay
from minserve.northstar.traffic import Arrival
from minserve.scheduling.batching import (
    BatchingPolicy,
)

PREFIX = {"on": (True,), "off": (False,), "both": (False, True)}


@dataclass(slots=True)
class Row:
    """One line of the table: a policy, and what came of it."""

    policy: str
    batch_size: int | None
    prefix: bool
    timing: Summary
    by_kind: dict[str, Summary] = field(default_factory=dict)
    quality: Summary | None = None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.batch_size}" if self.batch_size else self.policy

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "policy": self.policy,
            "batch_size": self.batch_size,
            "prefix_reuse": self.prefix,
            **self.timing.as_dict(),
            "by_kind": {kind: summary.as_dict() for kind, summary in self.by_kind.items()},
            "quality": self.quality.as_dict() if self.quality else None,
        }


def serve(
    arrivals: Sequence[Arrival],
    executor: Executor,
    clock: Clock,
    policy: BatchingPolicy,
    *,
    prefix: bool,
    ordering: str = "fifo",
    on_finished: Callable[[int], None] = lambda num_finished: None,
    wrap: Callable[[LocalClient], EngineClient] = lambda client: client,
) -> Replay:
    """Replay `arrivals` on a fresh engine: its blocks are empty and its prefix cache is cold.

    `clock` must start when this is called; `wrap` may put a client of its own before the engine's.
    Checks at the end that no block was lost.
    """
    engine = Engine(executor, policy, prefix_caching=prefix, ordering=ORDERINGS[ordering]())
    client = LocalClient(engine, EventLoop(clock))
    replay = Replay.of(arrivals)
    engine.log.listen(replay.note_step)
    meter = EnergyMeter()
    replay.run(wrap(client), client.run, on_finished)
    if isinstance(clock, WallClock):  # imagined computing takes no energy worth a figure
        replay.energy = meter.read()
    if engine.prefix_cache:
        replay.evicted_blocks = engine.prefix_cache.num_evicted_blocks
    engine.check_integrity()
    return replay


HEADINGS = (
    "prefix\nreuse",
    "answers\nqualified",
    "p50\nTTFT",
    "p95\nTTFT",
    "p95\nITL",
    "tokens\nper s",
    "deadline\nmet",
    "tokens\nreused",
    "blocks\npeak",
    "USD per\n1000 good",
)


def table(rows: Sequence[Row], title: str):
    """The one table: a line for each policy, with and without prefix reuse."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    made.add_column("policy", no_wrap=True)
    for heading in HEADINGS:
        made.add_column(heading, justify="right", no_wrap=True, min_width=5)
    for row in rows:
        t, q = row.timing, row.quality
        cost = q.cost_per_qualified_task if q else None
        right = "-"
        if q is not None and q.num_qualified is not None:
            right = f"{q.num_qualified} of {q.num_requests}"
        made.add_row(
            row.name,
            "on" if row.prefix else "off",
            right,
            seconds(t.ttft_p50_s),
            seconds(t.ttft_p95_s),
            seconds(t.itl_p95_s),
            "-" if t.tokens_per_s is None else f"{t.tokens_per_s:,.0f}",
            "-" if t.deadline_attainment is None else f"{t.deadline_attainment:.0%}",
            f"{t.prefix_tokens_reused:,}",
            f"{t.kv_blocks_peak:,}",
            "-" if cost is None else f"{1000 * cost:.4f}",
        )
    return made


def say_efficiency(row: Row) -> str:
    """What one machine does in an hour, and the energy of a right answer, in one line."""
    judged = row.quality or row.timing

    def each(value: float | None, what: str) -> str:
        return f"{value:,.0f} {what}" if value is not None else f"{what} not checked"

    done = each(judged.requests_per_hour, "requests")
    right = each(judged.qualified_per_hour, "qualified tasks")
    known, joules = judged.energy_source, judged.energy_per_qualified_task_j
    spent = f"{joules:.3g} J a qualified task ({known})" if joules is not None else known
    return (
        f"{row.name}, prefix reuse {'on' if row.prefix else 'off'}: {done} and {right} per "
        f"machine-hour. Energy: {spent}"
    )


def troubles(rows: Sequence[Row]) -> str:
    """What did not end well, in one line; empty if everything did."""
    parts = []
    for row in rows:
        for summary in filter(None, (row.timing, row.quality)):
            bad = {
                "errors": summary.num_errors,
                "rejected": summary.num_rejected,
                "cancelled": summary.num_cancelled,
                "unfinished": summary.num_unfinished,
            }
            found = ", ".join(f"{count} {what}" for what, count in bad.items() if count)
            if found:
                parts.append(f"{row.name}, prefix {'on' if row.prefix else 'off'}: {found}")
    return "; ".join(parts)


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Continuous against static at its best batch size, with and without prefix reuse."""
    found = []
    for row in rows:
        twins = [r for r in rows if r.policy == "static" and r.prefix == row.prefix]
        if row.policy != "continuous" or not twins:
            continue
        ours, theirs = row.timing, twins[0].timing
        ours_s, theirs_s = ours.ttft_p95_s, theirs.ttft_p95_s
        if ours.tokens_per_s and theirs.tokens_per_s and ours_s and theirs_s:
            found.append(
                {
                    "prefix_reuse": row.prefix,
                    "static_batch_size": twins[0].batch_size,
                    "tokens_per_s_ratio": ours.tokens_per_s / theirs.tokens_per_s,
                    "ttft_p95_ratio": ours_s / theirs_s,
                }
            )
    return found


def say_comparison(comparison: dict[str, Any]) -> str:
    """One line of words for one entry of `compare`."""
    return (
        f"Continuous against static {comparison['static_batch_size']} "
        f"(prefix reuse {'on' if comparison['prefix_reuse'] else 'off'}): "
        f"{comparison['tokens_per_s_ratio']:.2f} x the tokens per second, "
        f"{comparison['ttft_p95_ratio']:.2f} x the p95 TTFT"
    )
