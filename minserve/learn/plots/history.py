"""Time: who was in each batch, from event logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from matplotlib.patches import Patch

from minserve.events import Event, Finished, Preempted, StepEnded, StepStarted, Submitted
from minserve.pictures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    Picture,
    panels,
)

MAX_NAMED_ROWS = 40


def timeline(events: Iterable[Event], title: str = "") -> Picture:
    """Who was in each batch: one row per request, from an event log. See `timelines`."""
    return timelines({title: events})


def timelines(runs: Mapping[str, Iterable[Event]], title: str = "") -> Picture:
    """Event logs one below the other, on one time axis, so that runs can be compared.

    A row is a request, in order of arrival. A thin line means it waits; a hatched bar computes
    prompt tokens, a plain one decodes. A triangle marks a preemption, a cross a request that was
    cut short. If the clock stood still, the axis counts steps instead.
    """
    histories = {name: _History(list(events)) for name, events in runs.items()}
    most = max((len(h.rows) for h in histories.values()), default=1)
    height = min(0.9 + len(histories) * (0.5 + min(0.2 * most, 4.5)), 14.0)
    figure, axes = panels(len(histories), 9.5, height)
    for (name, history), ax in zip(histories.items(), axes, strict=True):
        _draw_history(ax, history)
        if name:
            ax.set_title(name, loc="left", fontsize=10)
    end = max((h.end for h in histories.values()), default=0.0)
    axes[-1].set_xlim(0, max(end, 1e-9) * 1.01)
    by_step = any(h.by_step for h in histories.values())
    axes[-1].set_xlabel("engine step" if by_step else "seconds")
    marks = [
        Patch(fc=SKY, ec=BLUE, hatch="////", label="computes its prompt"),
        Patch(fc=ORANGE, label="decodes"),
        axes[0].plot([], [], color=GREY, lw=1, label="waits")[0],
    ]
    if any(h.num_preempted for h in histories.values()):
        marks += axes[0].plot([], [], "v", color=VERMILION, label="preempted")
    if any(h.num_cut_short for h in histories.values()):
        marks += axes[0].plot([], [], "x", color=BLACK, label="cut short")
    figure.legend(handles=marks, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    if title:
        figure.suptitle(title)
    words = " ".join(h.in_words(name) for name, h in histories.items())
    return Picture(
        figure, f"Timeline of engine steps, one row per request, in order of arrival. {words}"
    )


@dataclass(slots=True)
class _Row:
    """What one request did: when it came and ended, and its bars (start, end, computes prompt)."""

    arrived: float
    ended: float | None = None
    bars: list[tuple[float, float, bool]] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    is_cut_short: bool = False


class _History:
    """An event log as rows to draw."""

    def __init__(self, events: list[Event]) -> None:
        times = {event.time_s for event in events}
        self.by_step = len(times) <= 1
        self.rows: dict[str, _Row] = {}
        self.num_steps = self.num_rows_run = self.num_preempted = self.num_cut_short = 0
        self.end = 0.0
        self._prompts: dict[str, int] = {}
        self._open: StepStarted | None = None
        for event in events:
            self._take(event)
        self.end = max([self.end, *(row.ended or 0.0 for row in self.rows.values())])

    def _now(self, event: Event) -> float:
        return float(self.num_steps) if self.by_step else event.time_s

    def _take(self, event: Event) -> None:
        now = self._now(event)
        if isinstance(event, Submitted):
            self.rows[event.request_id] = _Row(now)
            self._prompts[event.request_id] = event.num_prompt_tokens
        elif isinstance(event, StepStarted):
            self._open = event
        elif isinstance(event, StepEnded) and self._open is not None:
            self.num_steps += 1
            step, self._open = self._open, None
            self._add_bars(step, self._now(step) - self.by_step, self._now(event))
        elif isinstance(event, Preempted) and event.request_id in self.rows:
            self.num_preempted += 1
            self.rows[event.request_id].preempted.append(now)
        elif isinstance(event, Finished) and event.request_id in self.rows:
            row = self.rows[event.request_id]
            # A request ends while its last step is being taken in: before that step's own end.
            row.ended = now + (self.by_step and self._open is not None)
            row.is_cut_short = event.reason in ("cancelled", "error")
            self.num_cut_short += row.is_cut_short

    def _add_bars(self, step: StepStarted, start: float, end: float) -> None:
        self.end = max(self.end, end)
        self.num_rows_run += len(step.rows)
        for request_id, num_tokens, num_context in step.rows:
            row = self.rows.setdefault(request_id, _Row(start))
            is_prompt = num_tokens > 1 or num_context <= self._prompts.get(request_id, 0)
            last = row.bars[-1] if row.bars else None
            if last and last[1] >= start - 1e-9 and last[2] == is_prompt:
                row.bars[-1] = (last[0], end, is_prompt)
            else:
                row.bars.append((start, end, is_prompt))

    def in_words(self, name: str) -> str:
        mean = self.num_rows_run / self.num_steps if self.num_steps else 0.0
        span = f"{self.num_steps} steps" + ("" if self.by_step else f" in {self.end:.2f} s")
        more = f", {self.num_preempted} preemptions" if self.num_preempted else ""
        more += f", {self.num_cut_short} cut short" if self.num_cut_short else ""
        head = f"{name}: " if name else ""
        return f"{head}{len(self.rows)} requests, {span}, {mean:.1f} requests per step{more}."


def _draw_history(ax, history: _History) -> None:
    names = list(history.rows)
    for y, name in enumerate(names):
        row = history.rows[name]
        ended = history.end if row.ended is None else row.ended
        ax.plot([row.arrived, ended], [y, y], color=GREY, lw=0.8, zorder=1)
        for is_prompt, style in (
            (True, {"fc": SKY, "ec": BLUE, "hatch": "////", "lw": 0.4}),
            (False, {"fc": ORANGE, "ec": "none"}),
        ):
            spans = [(a, b - a) for a, b, prompt in row.bars if prompt == is_prompt]
            if spans:
                ax.broken_barh(spans, (y - 0.38, 0.76), zorder=2, **style)
        ax.plot(row.preempted, [y] * len(row.preempted), "v", color=VERMILION, ms=7, zorder=4)
        if row.is_cut_short:
            ax.plot([ended], [y], "x", color=BLACK, ms=7, mew=2, zorder=4)
    ax.set_ylim(len(names) - 0.4, -0.6)
    if len(names) <= MAX_NAMED_ROWS:
        ax.set_yticks(range(len(names)), names, fontsize=8)
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{len(names)} requests", fontsize=9)
