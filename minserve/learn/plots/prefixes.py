"""Prefixes: which blocks were reused, and what an attacker can tell from the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch, Rectangle

from minserve.pictures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    Picture,
    canvas,
    panels,
)

REUSED: dict[str, Any] = {"fc": BLUE}
COMPUTED: dict[str, Any] = {"fc": PALE, "ec": GREY, "hatch": "////"}


def reused_blocks(
    rows: Mapping[str, Sequence[bool]], block_size: int = 16, title: str = ""
) -> Picture:
    """One strip of blocks per prompt, from its first token on: which blocks were reused."""
    longest = max(map(len, rows.values()))
    figure, ax = canvas(9.0, 0.26 * len(rows) + 1.1)
    for y, blocks in enumerate(rows.values()):
        for x, is_reused in enumerate(blocks):
            look = REUSED if is_reused else COMPUTED
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
