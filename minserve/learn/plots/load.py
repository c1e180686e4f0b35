"""Load: who was kept waiting, how a queue grows, and how a job survives its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minserve.loadtest.pictures import hockey_stick
from minserve.pictures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    PURPLE,
    VERMILION,
    Picture,
    canvas,
    panels,
)

__all__ = ["hockey_stick", "kept_waiting", "queue_curve", "redelivery", "rungs"]


def kept_waiting(
    runs: Mapping[str, Sequence[tuple[float, float]]], until_s: float, title: str = ""
) -> Picture:
    """A dot per request, from below one another: when it was meant to go, how long it then took.

    `runs` gives (intended time, latency) pairs in seconds by name; what lies behind `until_s` is
    left out.
    """
    figure, axes = panels(len(runs), 9.0, 1.7 * len(runs) + 0.8)
    top = max(latency for pairs in runs.values() for _, latency in pairs) * 1.08
    words = []
    for i, ((name, pairs), ax) in enumerate(zip(runs.items(), axes, strict=True)):
        shown = [pair for pair in pairs if pair[0] <= until_s]
        ax.plot(*zip(*shown, strict=True), "os^D"[i % 4], ms=3, color=PALETTE[i % 7])
        ax.set(ylim=(-0.05 * top, top), xlim=(0, until_s))
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_ylabel("latency (s)")
        ax.grid(alpha=0.3)
        slow = sum(latency > top / 10 for _, latency in shown)
        words.append(f"{name}: {slow} of {len(shown)} took more than {top / 10:.2g} s")
    axes[-1].set_xlabel("when the request was meant to go (s)")
    if title:
        figure.suptitle(title)
    return Picture(figure, f"Latency of each request by its time. {'; '.join(words)}.")


def queue_curve(load: float = 0.8, variability: float = 1.0, service_s: float = 0.1) -> Picture:
    """The mean wait in a queue before one server (M/G/1) over its load, and where `load` stands.

    `variability` is the squared coefficient of variation of the service times: 0 if all are equal.
    """
    figure, ax = canvas(9.0, 3.4)
    loads = np.linspace(0.01, 0.98, 200)

    def wait_s(at: Any, spread: float) -> Any:
        return at / (1 - at) * service_s * (1 + spread) / 2

    ax.plot(loads, wait_s(loads, 0.0), color=GREY, ls="--", label="all take the same (0)")
    label = f"lengths differ ({variability:g})"
    ax.plot(loads, wait_s(loads, variability), color=BLUE, lw=2, label=label)
    here_s = wait_s(load, variability)
    ax.plot([load], [here_s], "D", color=VERMILION, ms=11, zorder=3)
    ax.plot([load, load, 0], [0, here_s, here_s], color=VERMILION, lw=1, ls=":")
    ax.axhline(service_s, color=GREEN, lw=1, ls="-.", label="the service itself")
    ax.set(xlim=(0, 1), ylim=(0, max(1.5, 1.3 * here_s)))
    ax.set(xlabel="load: share of the time in which the server is busy", ylabel="mean wait (s)")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return Picture(
        figure,
        f"At a load of {load:.0%} a request of {service_s:g} s waits {here_s:.2f} s on average, "
        f"{here_s / service_s:.1f} times its own service; with equal lengths it would wait "
        f"{wait_s(load, 0.0):.2f} s. At {(1 + load) / 2:.0%} it would wait "
        f"{wait_s((1 + load) / 2, variability):.2f} s.",
    )


def rungs(runs: Mapping[str, Sequence[tuple[float, int]]], until_s: float) -> Picture:
    """Where an overload ladder stood: `runs` gives (time, rung from then on) by name."""
    names = ("normal", "no extras", "shorter", "as jobs", "reject low", "reserve")
    figure, ax = canvas(9.0, 2.8)
    words = []
    for i, (name, steps) in enumerate(runs.items()):
        times, levels = zip(*steps, strict=True)
        style = {"color": PALETTE[i % 7], "ls": ("-", "--", "-.")[i % 3], "lw": 2}
        ax.step([*times, until_s], [*levels, levels[-1]], where="post", label=name, **style)
        words.append(f"{name}: at most rung {max(levels)} ({names[max(levels)]})")
    ax.set_yticks(range(6), [f"{n} {name}" for n, name in enumerate(names)], fontsize=8)
    ax.set(ylim=(-0.3, 5.3), xlim=(0, until_s), xlabel="seconds")
    ax.grid(alpha=0.3)
    if len(runs) > 1:
        ax.legend(frameon=False, fontsize=9)
    return Picture(figure, f"Rungs of the overload ladder over time. {'; '.join(words)}.")


_LOOKS = {
    "accepted": ("o", GREY),
    "claimed": (">", BLUE),
    "killed": ("X", VERMILION),
    "checkpoint": ("v", ORANGE),
    "committed": ("s", GREEN),
    "zombie refused": ("D", PURPLE),
}


def redelivery(lives: Sequence[Mapping[str, Any]], title: str = "") -> Picture:
    """A line for each life of a job, with a mark for whatever happened to it.

    A life has `stage` (where its worker died), `events` as (time in seconds, name), `attempts` and
    `state`; `minserve.cli.demo.life` makes them.
    """
    figure, ax = canvas(9.0, 0.42 * len(lives) + 1.5)
    for row, told in enumerate(lives):
        times = [time_s for time_s, _ in told["events"]]
        ax.plot([times[0], times[-1]], [row, row], color=GREY, lw=1, zorder=1)
        for time_s, name in told["events"]:
            marker, colour = _LOOKS[name]
            ax.scatter(time_s, row, marker=marker, color=colour, ec=BLACK, lw=0.5, s=80, zorder=2)
    for name, (marker, colour) in _LOOKS.items():
        ax.scatter([], [], marker=marker, color=colour, ec=BLACK, lw=0.5, s=60, label=name)
    ax.set_yticks(range(len(lives)), [f"dies {told['stage']}" for told in lives], fontsize=8)
    ax.set(ylim=(len(lives) - 0.5, -0.5), title=title)
    ax.set_xlabel("seconds on the store's clock")
    figure.legend(loc="outside lower center", ncols=len(_LOOKS), fontsize=8, frameon=False)
    words = "; ".join(
        f"dies {told['stage']}: {told['state']} after {told['attempts']} attempt"
        f"{'s' if told['attempts'] != 1 else ''}"
        for told in lives
    )
    return Picture(figure, f"Lives of a job whose first worker dies at different moments. {words}.")
