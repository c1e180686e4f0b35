"""Blocks of memory: who holds which, what is wasted, how many requests fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from minserve.pictures import (
    BLACK,
    BLUE,
    GREY,
    PALE,
    PALETTE,
    Picture,
    canvas,
    panels,
)


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
