"""The picture of a replay: who waited, who was in each batch, and when, one panel per policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minserve.errors import ConfigError
from minserve.events import Event, EventLog, Finished, StepEnded, StepStarted
from minserve.northstar.replay import Replay

# Okabe and Ito's palette (2008): told apart with every common kind of colour vision.
COLOURS = {"policy": "#56B4E9", "account": "#009E73", "chat": "#E69F00", "report": "#D55E00"}
NAMES = {
    "policy": "policy question",
    "account": "account question",
    "chat": "chat turn",
    "report": "document report",
}
WAITING, PREFILL = "#D9D9D9", "#333333"

Span = tuple[float, float]
"""(start, duration) in seconds."""


@dataclass(slots=True)
class Lane:
    """One request's line."""

    kind: str
    arrival_s: float
    prefill: list[Span] = field(default_factory=list)
    decode: list[Span] = field(default_factory=list)
    end_s: float = 0.0
    last_step: int = -1

    @property
    def start_s(self) -> float:
        """When it first ran; its end if it never did."""
        spans = self.prefill + self.decode
        return min((start for start, _ in spans), default=self.end_s)


def lanes(replay: Replay) -> list[Lane]:
    """A lane per request in order of arrival, with the spans of the steps that it was part of."""
    by_id = {a.id: Lane(a.kind, a.arrival_s) for a in replay.arrivals}
    started: StepStarted | None = None
    for event in replay.events:
        if isinstance(event, StepStarted):
            started = event
        elif isinstance(event, StepEnded) and started is not None:
            for request_id, num_tokens, _ in started.rows:
                lane = by_id.get(request_id)
                if lane is not None:
                    spans = lane.prefill if num_tokens > 1 else lane.decode
                    if spans and lane.last_step == started.step - 1:  # one bar, not hundreds
                        start_s, _ = spans.pop()
                    else:
                        start_s = started.time_s
                    spans.append((start_s, event.time_s - start_s))
                    lane.last_step = started.step
        elif isinstance(event, Finished) and event.request_id in by_id:
            by_id[event.request_id].end_s = event.time_s
    return list(by_id.values())


def make_folder(folder: Path) -> None:
    """Create `folder`, before any work whose result could not be kept. Raises `ConfigError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write into {folder}: {error.strerror}", "give another folder with --out"
        ) from None


def draw_timelines(folder: Path, replays: Mapping[str, Replay]) -> list[str]:
    """Write `timeline.png` and an event log for each replay into `folder`; returns the paths."""
    written = [folder / "timeline.png"]
    figure(replays).savefig(written[0], dpi=160)
    for name, replay in replays.items():
        written.append(folder / f"events-{name.replace(' ', '-')}.jsonl")
        _log(replay.events).save(written[-1])
    return [str(path) for path in written]


def _log(events: Sequence[Event]) -> EventLog:
    log = EventLog()
    log.events.extend(events)
    return log


def figure(replays: Mapping[str, Replay]):
    """A matplotlib figure: a panel per replay over one common time axis, a line per request."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    drawn = Figure(figsize=(10.25, 0.9 + 3.0 * len(replays)), layout="constrained")
    panels = drawn.subplots(len(replays), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, replay) in zip(panels, replays.items(), strict=True):
        everyone = lanes(replay)
        for line, lane in enumerate(everyone):
            wait_s = max(0.0, lane.start_s - lane.arrival_s)
            axes.broken_barh([(lane.arrival_s, wait_s)], (line + 0.3, 0.4), color=WAITING, lw=0)
            colour = COLOURS.get(lane.kind, "#0072B2")
            axes.broken_barh(lane.decode, (line + 0.08, 0.84), color=colour, lw=0)
            axes.broken_barh(lane.prefill, (line + 0.08, 0.84), color=PREFILL, lw=0)
        summary = replay.summarise()
        axes.set_title(_title(name), loc="left", fontsize=12, fontweight="bold", pad=7)
        if summary.tokens_per_s and summary.ttft_p95_s is not None:
            axes.set_title(
                f"{summary.tokens_per_s:,.0f} tokens/s      "
                f"95 % of first tokens within {summary.ttft_p95_s:.1f} s",
                loc="right",
                fontsize=10.5,
                color="#444444",
                pad=7,
            )
        axes.set_ylim(len(everyone), 0)
        axes.set_ylabel("requests, in order of arrival", fontsize=9, color="#444444")
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.margins(x=0.005)
        axes.grid(axis="x", color="#EEEEEE", lw=0.8)
        axes.set_axisbelow(True)
    panels[-1].set_xlabel("seconds", fontsize=10)
    kinds = dict.fromkeys(a.kind for replay in replays.values() for a in replay.arrivals)
    handles = [Patch(color=WAITING, label="waiting"), Patch(color=PREFILL, label="reading prompt")]
    handles += [Patch(color=c, label=NAMES[k]) for k, c in COLOURS.items() if k in kinds]
    drawn.legend(
        handles=handles,
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=9.5,
        handlelength=1.1,
        columnspacing=1.4,
    )
    return drawn


def _title(name: str) -> str:
    """`static 16` in words."""
    policy, _, size = name.partition(" ")
    return f"{policy.capitalize()} batching" + (f", {size} at a time" if size else "")
