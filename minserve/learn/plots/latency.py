"""Latency against throughput, and the roofline that both stand under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter

from minserve.pictures import (
    BLACK,
    BLUE,
    GREY,
    PALETTE,
    VERMILION,
    Picture,
    canvas,
)


def latency_curve(
    runs: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str = "requests offered per second",
    ylabel: str = "p95 time to first token (s)",
    title: str = "",
) -> Picture:
    """Lines over a load: `runs` gives (load, figure) pairs by name; the figure axis is
    logarithmic, because a saturated queue grows without bound.
    """
    figure, ax = canvas(9.0, 3.4)
    markers, styles = "os^Dv", ("-", "--", "-.", ":")
    words = []
    for i, (name, points) in enumerate(runs.items()):
        x, y = zip(*points, strict=True)
        ax.plot(
            x, y, color=PALETTE[i % 7], marker=markers[i % 5], ls=styles[i % 4], lw=2, label=name
        )
        words.append(f"{name}: {y[0]:.2g} at {x[0]:g}, {y[-1]:.2g} at {x[-1]:g}")
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title, yscale="log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=9)
    return Picture(figure, f"{ylabel} over {xlabel}. {'; '.join(words)}.")


def tradeoff(
    points: Sequence[tuple[int, float, float]], chosen: int | None = None, title: str = ""
) -> Picture:
    """Throughput against latency: `points` are (batch size, tokens per second, gap in ms).

    `chosen` is the batch size to mark. The throughput axis is logarithmic.
    """
    figure, ax = canvas(9.0, 3.6)
    sizes, rates, gaps = zip(*points, strict=True)
    ax.plot(rates, gaps, color=BLUE, marker="o", lw=2)
    for size, rate, gap in points:
        ax.annotate(f"{size}", (rate, gap), (-7, 7), textcoords="offset points", ha="right")
    words = [f"with {sizes[i]}, {rates[i]:,.0f} tokens/s and {gaps[i]:.0f} ms" for i in (0, -1)]
    if chosen is not None:
        _, rate, gap = points[sizes.index(chosen)]
        ax.plot([rate], [gap], "D", color=VERMILION, ms=12, zorder=3)
        ax.axhline(gap, color=VERMILION, lw=1, ls=":")
        ax.axvline(rate, color=VERMILION, lw=1, ls=":")
        words.insert(1, f"with {chosen} (marked), {rate:,.0f} tokens/s and {gap:.0f} ms")
    ax.set(xscale="log", ylim=(0, max(gaps) * 1.15), title=title)
    ax.set(xlabel="tokens per second, of all together", ylabel="gap between one's tokens (ms)")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.grid(alpha=0.3)
    return Picture(
        figure,
        f"Each point is a number of people in the batch; further right more tokens per second in "
        f"all, further up a longer wait for each token: {'; '.join(words)}.",
    )


def roofline(
    points: Mapping[str, tuple[float, float]],
    peak_flops: float,
    bytes_per_s: float,
    title: str = "",
) -> Picture:
    """The roofline of a machine, and work under it: `points` gives (operations, bytes) by name.

    The roof is the most operations per second that memory (the slope) or arithmetic (the flat
    part) allows, by operations per byte (Williams et al., 2009). Both axes are logarithmic.
    """
    figure, ax = canvas(9.0, 4.2)
    ridge = peak_flops / bytes_per_s
    intensities = {name: flops / moved for name, (flops, moved) in points.items()}
    left = min([*intensities.values(), ridge]) / 3
    right = max([*intensities.values(), ridge]) * 4
    ax.plot([left, ridge], [left * bytes_per_s, peak_flops], color=BLACK, lw=2)
    ax.plot([ridge, right], [peak_flops, peak_flops], color=BLACK, lw=2)
    ax.axvline(ridge, color=GREY, lw=1, ls="--")
    ax.text(ridge / 1.1, left * bytes_per_s, f"ridge: {ridge:.0f}", color=GREY, ha="right")
    markers = "os^DvPX*"
    for i, (name, intensity) in enumerate(intensities.items()):
        attainable = min(peak_flops, intensity * bytes_per_s)
        label = f"{name}: {intensity:,.1f}"
        style = {"color": PALETTE[i % 7], "marker": markers[i % 8], "ms": 9, "mec": BLACK}
        ax.plot([intensity], [attainable], ls="none", label=label, zorder=3, **style)
    ax.set(xscale="log", yscale="log", xlim=(left, right), title=title)
    ax.set(xlabel="operations per byte moved", ylabel="operations per second, at most")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    words = "; ".join(
        f"{name}: {value:,.1f}, {'memory' if value < ridge else 'compute'}"
        for name, value in intensities.items()
    )
    return Picture(
        figure,
        f"Roofline: below {ridge:.0f} operations per byte memory is the limit, above it "
        f"arithmetic. Operations per byte, and what limits: {words}.",
    )
