"""The pictures of a load test: latencies on a tail scale, what happened when, what was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from minserve.loadtest.capacity import Evaluation
from minserve.loadtest.distributions import Distribution
from minserve.loadtest.measures import SHARES, Tally
from minserve.metrics import seconds
from minserve.pictures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    Picture,
    canvas,
    panels,
)

TAIL = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
CURVES = {
    "ttft": ("TTFT", BLUE, "-"),
    "uncorrected_ttft": ("TTFT, uncorrected", SKY, "--"),
    "e2e": ("end to end", VERMILION, "-"),
    "uncorrected_e2e": ("end to end, uncorrected", ORANGE, "--"),
}


def latency_curves(tally: Tally) -> Picture:
    """Share of requests within a latency; each step up the scale is a tenth of what is left."""
    figure, ax = canvas(9.0, 4.0)
    count = tally.values["ttft"].count
    for name, (label, colour, style) in CURVES.items():
        values = tally.values[name]
        if values.count:
            x, y = _tail(values)
            ax.plot(x, y, style, color=colour, label=label, drawstyle="steps-post")
    shares = [share for share in TAIL if share < 1 - 0.5 / max(count, 2)]
    ax.set_yticks([-math.log10(1 - share) for share in shares])
    ax.set_yticklabels([f"p{100 * share:g}" for share in shares])
    _log_if_wide(ax)
    ax.set_xlabel("latency from the intended time, seconds (dashed: from the sending)")
    ax.grid(True, alpha=0.3)
    if ax.lines:
        ax.legend(frameon=False, loc="upper left")
    at = {name: tally.values[name].percentile(0.99) for name in ("ttft", "uncorrected_ttft")}
    return Picture(
        figure,
        f"Latencies of {count:,} requests on a tail scale. 99 % have their first token within "
        f"{seconds(at['ttft'])} of their intended time, and within "
        f"{seconds(at['uncorrected_ttft'])} of being sent.",
    )


def _log_if_wide(ax: Axes) -> None:
    low, high = ax.dataLim.intervalx
    if low > 0 and high > 5 * low:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _tail(values: Distribution) -> tuple[np.ndarray, np.ndarray]:
    x, shares = values.curve()
    if len(x) > 2_000:  # every one of the last thousand, and a thousand of the rest
        keep = np.unique(np.r_[np.linspace(0, len(x) - 1, 1_000).astype(int), -1_000:0] % len(x))
        x, shares = x[keep], shares[keep]
    top = 1 - 0.5 / max(1, values.count)
    return np.maximum(x, 1e-6), -np.log10(1 - np.minimum(shares, top))


def bounds(tally: Tally) -> Picture:
    """Percentiles of the time to first token with their 95 % bounds, where enough samples exist."""
    figure, ax = canvas(9.0, 2.6)
    found = tally.measures().latencies["ttft"]
    missing = []
    for place, share in enumerate(SHARES):
        name = f"p{100 * share:g}"
        value = found.percentiles[name]
        if value is None:
            continue
        lower, upper = found.bounds[name]
        ax.plot([value], [place], "o", color=BLUE)
        ax.plot([lower or value, upper or value], [place, place], "-", color=BLUE, linewidth=3)
        if upper is None:
            missing.append(name)
            ax.annotate("  no upper bound: too few", (value, place), va="center", color=GREY)
    ax.set_yticks(range(len(SHARES)), [f"p{100 * share:g}" for share in SHARES])
    ax.set_ylim(-0.6, len(SHARES) - 0.4)
    ax.set_xlabel("time to first token, seconds, with 95 % bounds of each percentile")
    ax.grid(True, axis="x", alpha=0.3)
    said = f" {' and '.join(missing)} cannot be bounded from above." if missing else ""
    return Picture(figure, f"How sure the percentiles of {found.count:,} samples are.{said}")


def timeline(tally: Tally) -> Picture:
    """Arrivals and ends per second, requests in flight, and output tokens per second."""
    line = tally.timeline
    figure, axes = panels(3, 9.0, 5.2)
    times_s = np.arange(len(line.bins)) * line.width_s
    rate = {
        name: np.array([getattr(each, name) for each in line.bins]) / line.width_s
        for name in ("arrived", "ended", "failed", "tokens")
    }
    levels = line.in_flight()
    style = {"where": "post"}
    axes[0].step(times_s, rate["arrived"], color=BLUE, label="arrived", **style)
    axes[0].step(times_s, rate["ended"], "--", color=ORANGE, label="ended", **style)
    if rate["failed"].any():
        axes[0].step(times_s, rate["failed"], ":", color=VERMILION, label="failed", **style)
    axes[0].set_ylabel("requests/s")
    axes[0].legend(frameon=False, ncols=3)
    axes[1].step(times_s, levels, color=GREY, **style)
    axes[1].set_ylabel("in flight")
    axes[2].step(times_s, rate["tokens"], color=GREEN, **style)
    axes[2].set_ylabel("output tokens/s")
    axes[2].set_xlabel("seconds from the start")
    return Picture(
        figure,
        f"Requests and tokens over {times_s[-1] + line.width_s if len(times_s) else 0:,.0f} s; at "
        f"most {max(levels, default=0):,} requests were in flight at the end of a stretch of "
        f"{line.width_s:g} s. Arrivals per stretch vary {_dispersion(tally):.2g} times as much as "
        "Poisson's would.",
    )


def _dispersion(tally: Tally) -> float:
    """Variance over mean of the arrivals per bin, the last bin left out: 1 for Poisson."""
    counts = [each.arrived for each in tally.steady_bins()]
    return float(np.var(counts) / np.mean(counts)) if any(counts) else 0.0


def lengths(tally: Tally) -> Picture:
    """How long prompts and answers were, and how many came at a time, beside Poisson's."""
    figure = Figure(figsize=(9.0, 2.6), layout="constrained", dpi=110)
    *of_lengths, of_arrivals = figure.subplots(1, 3)
    middles = {}
    for ax, (name, counts), colour in zip(
        of_lengths, tally.lengths.items(), (BLUE, ORANGE), strict=True
    ):
        values = sorted(counts)
        ax.set_xlabel(f"{name} tokens")
        if values:
            bins = np.unique(np.geomspace(max(1, values[0]), values[-1] + 1, 30))
            weights = [counts[value] for value in values]
            ax.hist(np.maximum(values, 1), bins, weights=weights, color=colour)
            _log_if_wide(ax)
            total = np.cumsum(weights)
            middles[name] = values[int(np.searchsorted(total, total[-1] / 2))]
    of_lengths[0].set_ylabel("requests")
    _arrivals(of_arrivals, tally)
    for ax in (*of_lengths, of_arrivals):
        ax.spines[["top", "right"]].set_visible(False)
    said = " and ".join(f"{name}s of {middle:,} tokens" for name, middle in middles.items())
    return Picture(
        figure,
        f"Lengths of what was answered; half have {said or 'no length'} or less. Right: arrivals "
        "in stretches of equal length (bars) and what independent users would give (line).",
    )


def _arrivals(ax: Axes, tally: Tally) -> None:
    """How often so many arrived within one stretch; the line is Poisson's of the same mean."""
    counts = [each.arrived for each in tally.steady_bins()]
    ax.set_xlabel(f"arrivals in {tally.timeline.width_s:.3g} s")
    ax.set_ylabel("stretches")
    if not any(counts):
        return
    top, mean = max(counts), float(np.mean(counts))
    step = max(1, top // 20)
    edges = [n - 0.5 for n in range(0, top + step + 1, step)]
    ax.hist(counts, edges, color=GREEN)
    at = np.arange(top + 1)
    log_ways = np.array([math.lgamma(n + 1) for n in at])
    expected = len(counts) * step * np.exp(at * math.log(mean) - mean - log_ways)
    ax.plot(at, expected, color=BLACK, linewidth=1)


def hockey_stick(
    rows: Sequence[Mapping[str, float | None]],
    predicted: Sequence[tuple[float, float]],
    limit_per_s: float | None,
) -> Picture:
    """Latency over load: rows have `rate_per_s`, `ttft_p50_s` and `ttft_p99_s`.

    `predicted` is (rate, mean wait in seconds) of a single-server queue; `limit_per_s` is the
    highest rate that met the objectives.
    """
    figure, ax = canvas(9.0, 3.8)
    rates = [row["rate_per_s"] for row in rows]
    for name, colour, marker in (("ttft_p50_s", BLUE, "o"), ("ttft_p99_s", VERMILION, "s")):
        label = f"TTFT {name[5:8]}"
        ax.plot(rates, [row[name] for row in rows], marker + "-", color=colour, label=label)
    if predicted:
        ax.plot(*zip(*predicted, strict=True), "--", color=GREY, label="mean, M/G/1 prediction")
    if limit_per_s is not None:
        ax.axvline(limit_per_s, color=GREEN, linestyle=":")
        ax.annotate(f" {limit_per_s:.3g}/s", (limit_per_s, ax.get_ylim()[1]), va="top", color=GREEN)
    ax.set_yscale("log")
    ax.set_xlabel("offered requests per second")
    ax.set_ylabel("seconds")
    ax.grid(True, alpha=0.3)
    ax.legend(frameon=False)
    said = "none met the objectives" if limit_per_s is None else f"{limit_per_s:.3g}/s is the most"
    return Picture(
        figure, f"Time to first token at {len(rows)} rates: flat, then steep; {said} that does."
    )


def scaling(found: Sequence[Evaluation]) -> Picture:
    """Replicas that serve, and tokens that wait, over time: a row for each rule."""
    figure, axes = panels(len(found), 9.0, 0.6 + 0.95 * len(found))
    most_tokens = max((tokens for each in found for *_, tokens in each.history), default=0) or 1
    for ax, each in zip(axes, found, strict=True):
        times_s, replicas, tokens = zip(*each.history, strict=True)
        ax.step(times_s, replicas, color=BLUE, where="post")
        ax.set_ylim(0, 1.15 * max(rule.most_replicas for rule in found))
        ax.set_title(f"{each.name}: {each.attainment:.1%} good", loc="left", fontsize=9)
        ax.tick_params(axis="y", colors=BLUE)
        waiting = ax.twinx()
        waiting.fill_between(times_s, tokens, color=VERMILION, alpha=0.4, linewidth=0)
        waiting.set_ylim(0, 1.15 * most_tokens)
        waiting.tick_params(axis="y", colors=VERMILION)
        waiting.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds; line: replicas that serve; area: tokens that wait")
    said = ", ".join(f"{each.name} {each.attainment:.1%}" for each in found)
    return Picture(figure, f"Two waves of load under each rule. Good requests: {said}.")
