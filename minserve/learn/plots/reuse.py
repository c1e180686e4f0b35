"""Reuse of answers: what a key lets meet, false hits by threshold, freshness and staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from minserve.pictures import (
    BLUE,
    GREEN,
    GREY,
    PALE,
    PALETTE,
    VERMILION,
    Picture,
    canvas,
    panels,
)

PLAIN: dict[str, Any] = {"lw": 0.4, "ec": GREY}
# How a look-up may end: colour, hatch and words.
OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "hit": ({"fc": BLUE}, "served from the cache, rightly"),
    "miss": ({"fc": GREEN, "hatch": ".."}, "computed afresh, as it must be"),
    "needless": ({"fc": PALE, "ec": GREY, "hatch": "////"}, "computed again for nothing"),
    "wrong": ({"fc": VERMILION, "hatch": "xx"}, "served a wrong answer"),
    "leak": ({"fc": VERMILION, "hatch": "**"}, "LEAK: served somebody else's answer"),
}


def key_outcomes(rows: Sequence[tuple[str, str]], title: str = "") -> Picture:
    """What happens to requests that differ from a cached one: (how it differs, outcome) each.

    An outcome is one of `OUTCOMES`.
    """
    figure, ax = canvas(9.0, 0.36 * len(rows) + 0.7)
    for y, (_, outcome) in enumerate(rows):
        look, words = OUTCOMES[outcome]
        ax.add_patch(Rectangle((0, y + 0.12), 0.5, 0.76, **PLAIN | look))
        weight = "bold" if outcome in ("wrong", "leak") else "normal"
        ax.text(0.6, y + 0.5, words, va="center", fontsize=9, weight=weight)
    ax.set(xlim=(0, 6), ylim=(len(rows), 0), xticks=[], title=title)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], [name for name, _ in rows], fontsize=9)
    ax.tick_params(length=0)
    ax.spines[["bottom", "left"]].set_visible(False)
    each = []
    for outcome, (_, words) in OUTCOMES.items():
        if names := [name for name, found in rows if found == outcome]:
            each.append(f"{words}: {', '.join(names)}")
    return Picture(figure, f"Requests after the one that is cached. {'; '.join(each)}.")


def false_hits(
    gates: Mapping[str, Sequence[tuple[float, float, float]]],
    chosen: float | None = None,
    title: str = "",
) -> Picture:
    """False hits against hits: `gates` gives (threshold, hit rate, false share of hits) by name.

    Each line runs from a lenient threshold (right) to a strict one (left); `chosen` is marked.
    """
    figure, ax = canvas(9.0, 3.6)
    markers, styles, words = "os^D", ("-", "--", "-.", ":"), []
    for i, (name, points) in enumerate(gates.items()):
        leasts, hits, false = zip(*points, strict=True)
        look = {"color": PALETTE[i % 7], "marker": markers[i % 4], "ls": styles[i % 4], "ms": 5}
        ax.plot(hits, false, lw=2, label=name, **look)
        place = (
            0 if chosen is None else min(range(len(leasts)), key=lambda p: abs(leasts[p] - chosen))
        )
        if chosen is not None:
            ax.plot(hits[place], false[place], "D", color=VERMILION, ms=11, zorder=3)
        words.append(
            f"{name}: at threshold {leasts[place]:g} {hits[place]:.0%} of the paraphrases are "
            f"served, and {false[place]:.0%} of what is served is wrong"
        )
    percent = FuncFormatter(lambda value, _: f"{value:.0%}")
    ax.xaxis.set_major_formatter(percent)
    ax.yaxis.set_major_formatter(percent)
    ax.set(ylim=(-0.03, 1), title=title, xlabel="paraphrases served (strict left, lenient right)")
    ax.set_ylabel("wrong share of all served")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=9)
    return Picture(figure, f"False hits by gate. {'; '.join(words)}.")


def freshness(runs: Mapping[str, Sequence[tuple[float, float, float]]], title: str = "") -> Picture:
    """What a longer time to live buys and costs: (seconds, hit rate, stale rate) by name."""
    figure, (above, below) = panels(2, 9.0, 4.2)
    markers, styles, words = "os^D", ("-", "--", "-.", ":"), []
    for i, (name, points) in enumerate(runs.items()):
        seconds, hits, stale = zip(*points, strict=True)
        look = {"color": PALETTE[i % 7], "marker": markers[i % 4], "ls": styles[i % 4], "lw": 2}
        above.plot(seconds, hits, label=name, **look)
        below.plot(seconds, stale, label=name, **look)
        words.append(
            f"{name}: {hits[0]:.0%} hits and {stale[0]:.1%} stale at {_time(seconds[0])}, "
            f"{hits[-1]:.0%} and {stale[-1]:.1%} at {_time(seconds[-1])}"
        )
    for ax, label in ((above, "hits"), (below, "stale answers")):
        ax.set(xscale="log", ylabel=f"{label}, of all")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        ax.grid(alpha=0.3)
    times = next(iter(runs.values()))
    below.set_xticks([s for s, _, _ in times], [_time(s) for s, _, _ in times])
    below.minorticks_off()
    below.set_xlabel("time to live")
    above.legend(frameon=False, fontsize=9)
    if title:
        figure.suptitle(title)
    return Picture(figure, f"Time to live: what it buys and costs. {'; '.join(words)}.")


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
