"""Pictures, each with a description in words. Plain matplotlib: no notebook and no display needed.

Every function returns a `Picture`: the last value of a notebook cell shows it, `save` writes it.
Colours are Okabe and Ito's (2008), told apart with every kind of colour vision; wherever colour
says something, a hatch, a letter or a place says it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from minserve.events import Event, Finished, Preempted, StepEnded, StepStarted, Submitted
from minserve.pictures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PALETTE,
    SKY,
    VERMILION,
    Picture,
    canvas,
    panels,
)

MAX_NAMED_ROWS = 40


# -- blocks


def block_map(
    tables: Mapping[str, tuple[Sequence[int], int]],
    num_blocks: int,
    block_size: int,
    title: str = "",
) -> Picture:
    """Who holds which block, and how full each is.

    `tables` gives each owner's block table and how many tokens it holds. A shared block bears the
    letters of all its owners.
    """
    per_row = min(num_blocks, 16)
    num_rows = -(-num_blocks // per_row)
    figure, ax = canvas(9.0, 0.75 * num_rows + 1.0)
    # By name where that tells them apart, so that an owner keeps its colour from map to map.
    places = {name: sum(name.encode()) % len(PALETTE) for name in tables}
    if len(set(places.values())) < len(places):
        places = {name: i % len(PALETTE) for i, name in enumerate(tables)}
    colour = {name: PALETTE[place] for name, place in places.items()}
    owners: dict[int, list[str]] = {}
    filled: dict[int, int] = {}
    for name, (table, num_tokens) in tables.items():
        for index, block in enumerate(table):
            owners.setdefault(block, []).append(name)
            in_block = max(0, min(block_size, num_tokens - index * block_size))
            filled[block] = max(filled.get(block, 0), in_block)
    for block in range(num_blocks):
        x, y = block % per_row, num_rows - 1 - block // per_row
        holders = owners.get(block, [])
        ax.add_patch(Rectangle((x + 0.05, y + 0.1), 0.9, 0.8, fc="white", ec=GREY, lw=1))
        for i, name in enumerate(holders):
            height = 0.8 / len(holders)
            ax.add_patch(
                Rectangle(
                    (x + 0.05, y + 0.1 + i * height),
                    0.9 * filled[block] / block_size,
                    height,
                    fc=colour[name],
                    ec="none",
                )
            )
        label = "+".join(holders) or str(block)
        ax.text(
            x + 0.5,
            y + 0.5,
            label,
            ha="center",
            va="center",
            fontsize=10 if holders else 8,
            color=BLACK if holders else GREY,
            bbox={"fc": "white", "ec": "none", "pad": 1.2, "alpha": 0.85} if holders else None,
        )
    ax.set(xlim=(0, per_row), ylim=(0, num_rows), title=title)
    ax.set_axis_off()
    used = len(owners)
    held = sum(filled.values())
    shared = sum(len(names) > 1 for names in owners.values())
    each = "; ".join(f"{n} holds {len(t)} for {tokens} tokens" for n, (t, tokens) in tables.items())
    alt = (
        f"Block map: {used} of {num_blocks} blocks of {block_size} tokens are used, "
        f"{shared} of them shared; {held} of {used * block_size} slots in them are filled. {each}."
    )
    return Picture(figure, alt)


def waste_bars(runs: Mapping[str, tuple[float, float]], title: str = "") -> Picture:
    """Of the KV memory held, how much held tokens: `runs` gives (useful, held) per way."""
    figure, ax = canvas(9.0, 0.62 * len(runs) + 1.1)
    names = list(runs)[::-1]
    shares = [runs[name][0] / runs[name][1] if runs[name][1] else 0.0 for name in names]
    ax.barh(names, shares, color=BLUE, label="holds tokens")
    ax.barh(
        names,
        [1 - share for share in shares],
        left=shares,
        color=PALE,
        hatch="///",
        ec=GREY,
        lw=0.5,
        label="held, but empty",
    )
    for y, share in enumerate(shares):
        inside = share > 0.15
        ax.text(
            share / 2 if inside else share + 0.01,
            y,
            f"{share:.0%}",
            ha="center" if inside else "left",
            va="center",
            color="white" if inside else BLACK,
            fontweight="bold",
        )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    ax.set(xlim=(0, 1), xlabel="share of the KV memory that requests hold", title=title)
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    each = ", ".join(f"{n}: {s:.0%}" for n, s in zip(names[::-1], shares[::-1], strict=True))
    return Picture(figure, f"Share of held KV memory that holds tokens. {each}.")


def memory_over_steps(
    runs: Mapping[str, Sequence[tuple[int, int]]], pool_tokens: int, title: str = ""
) -> Picture:
    """Step by step, tokens resident (filled) against slots held (line), one panel per run."""
    figure, axes = panels(len(runs), 9.0, 1.7 * len(runs) + 0.7)
    words = []
    for (name, steps), ax, colour in zip(runs.items(), axes, PALETTE, strict=False):
        resident, held = [s[0] for s in steps], [s[1] for s in steps]
        x = range(1, len(steps) + 1)
        empty = {"facecolor": PALE, "edgecolor": GREY, "hatch": "///", "lw": 0.5}
        ax.fill_between(x, held, label="held, but empty", **empty)
        ax.fill_between(x, resident, color=colour, lw=0, label="holds tokens")
        ax.axhline(pool_tokens, color=BLACK, lw=1, ls="--")
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_ylim(0, pool_tokens * 1.4)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.legend(loc="upper right", fontsize=8, frameon=False, ncols=2)
        words.append(
            f"{name}: {len(steps)} steps, at most {max(held):,} slots held "
            f"and {max(resident):,} tokens in them"
        )
    axes[-1].set_xlabel("engine step")
    figure.supylabel("tokens", fontsize=10)
    if title:
        figure.suptitle(title)
    return Picture(
        figure,
        f"KV memory step by step; the dashed line is the pool, {pool_tokens:,} tokens. "
        f"{'; '.join(words)}.",
    )


def capacity_curve(
    curves: Mapping[str, int],
    free_bytes: int,
    context_tokens: int | None = None,
    title: str = "",
    max_context: int = 32_768,
) -> Picture:
    """How many requests fit, by resident tokens each; `curves` gives bytes per token by name.

    `context_tokens` marks one context length on every curve. Both axes are logarithmic.
    """
    figure, ax = canvas(9.0, 3.6)
    contexts = [2 ** (i / 4) for i in range(28, 4 * max_context.bit_length())]
    contexts = [c for c in contexts if c <= max_context]
    words = []
    styles = ("-", "--", "-.", ":")
    for i, (name, bytes_per_token) in enumerate(curves.items()):
        fits = [max(free_bytes / (bytes_per_token * c), 1e-3) for c in contexts]
        colour = PALETTE[i % len(PALETTE)]
        ax.plot(contexts, fits, color=colour, ls=styles[i % 4], lw=2, label=name)
        if context_tokens:
            count = free_bytes // (bytes_per_token * context_tokens)
            ax.plot([context_tokens], [max(count, 0.5)], "o", color=colour, ms=8)
            ax.annotate(
                f"{count:,}",
                (context_tokens, max(count, 0.5)),
                xytext=(8, 6),
                textcoords="offset points",
                color=BLACK,
                fontweight="bold",
            )
            words.append(f"{name}: {count:,}")
    ax.set(xscale="log", yscale="log", title=title)
    ax.set_ylim(bottom=0.5)
    ax.set(xlabel="resident tokens per request (prompt and output)", ylabel="requests that fit")
    plain = FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    ax.xaxis.set_major_formatter(plain)
    ax.yaxis.set_major_formatter(plain)
    ax.grid(alpha=0.3)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize=9)
    where = f" At {context_tokens:,} tokens each: {', '.join(words)}." if context_tokens else ""
    return Picture(
        figure,
        f"Requests that fit in {free_bytes / 1e9:g} GB, falling as each gets longer: "
        f"twice the tokens, half the requests.{where}",
    )


# -- time


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
    num_done: int = 0


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
            self._add_bars(self._now(self._open) - self.by_step, self._now(event))
        elif isinstance(event, Preempted) and event.request_id in self.rows:
            self.num_preempted += 1
            self.rows[event.request_id].preempted.append(now)
        elif isinstance(event, Finished) and event.request_id in self.rows:
            row = self.rows[event.request_id]
            # A request ends while its last step is being taken in: before that step's own end.
            row.ended = now + (self.by_step and self._open is not None)
            row.is_cut_short = event.reason in ("cancelled", "error")
            self.num_cut_short += row.is_cut_short

    def _add_bars(self, start: float, end: float) -> None:
        step, self._open = self._open, None
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


# -- prefixes


def reused_blocks(
    rows: Mapping[str, Sequence[bool]], block_size: int = 16, title: str = ""
) -> Picture:
    """One strip of blocks per prompt, from its first token on: which blocks were reused."""
    longest = max(map(len, rows.values()))
    figure, ax = canvas(9.0, 0.26 * len(rows) + 1.1)
    for y, blocks in enumerate(rows.values()):
        for x, is_reused in enumerate(blocks):
            look = {"fc": BLUE} if is_reused else {"fc": PALE, "ec": GREY, "hatch": "////"}
            ax.add_patch(Rectangle((x + 0.06, y + 0.12), 0.88, 0.76, lw=0.4, **look))
    ax.set(xlim=(0, longest), ylim=(len(rows), 0), title=title)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], list(rows), fontsize=8)
    ax.set_xlabel(f"block of {block_size} tokens, from the beginning of the prompt")
    marks = [
        Patch(fc=BLUE, label="reused"),
        Patch(fc=PALE, ec=GREY, hatch="////", label="computed"),
    ]
    figure.legend(handles=marks, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    each = ", ".join(f"{name}: {sum(blocks)} of {len(blocks)}" for name, blocks in rows.items())
    return Picture(figure, f"Blocks of each prompt that were reused. {each}.")


def guesses(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float], float]], title: str = ""
) -> Picture:
    """Histograms of times to first token, in ms: prompts that somebody had sent before, and others.

    `runs` gives (sent, not sent, the limit by which an attacker tells them apart) by name.
    """
    figure, axes = panels(len(runs), 9.0, 1.9 * len(runs) + 0.9)
    times = [time for sent, unsent, _ in runs.values() for time in (*sent, *unsent)]
    low, high = min(times), max(times)
    edges = [low + (high - low) * i / 40 for i in range(41)]
    words = []
    for (name, (sent, unsent, limit)), ax in zip(runs.items(), axes, strict=True):
        ax.hist(unsent, edges, color=ORANGE, alpha=0.75, hatch="////", ec="white", label="nobody")
        ax.hist(sent, edges, color=BLUE, alpha=0.75, label="the victim")
        ax.axvline(limit, color=BLACK, ls="--", lw=1.2, label="the attacker's limit")
        ax.set_title(name, loc="left", fontsize=10)
        ax.set_ylabel("probes")
        ax.legend(title="sent before by", title_fontsize=8, fontsize=8, frameon=False)
        words.append(
            f"{name}: prompts that the victim had sent took {min(sent):.0f} to {max(sent):.0f} ms, "
            f"others {min(unsent):.0f} to {max(unsent):.0f} ms"
        )
    axes[-1].set_xlabel("time to first token (ms)")
    if title:
        figure.suptitle(title)
    return Picture(figure, f"What an attacker sees. {'; '.join(words)}.")
