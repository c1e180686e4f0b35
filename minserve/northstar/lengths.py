"""Prompt and output lengths as real traffic has them: bootstrapped from quantile tables.

The tables in data/traces are derived from public traces, named and licensed there. One lognormal
fits such traces poorly, and a long prompt says something about its answer's length; so a pair is
drawn: a prompt length from its quantiles, then an output length from the quantiles of that tenth
of the requests whose prompts are about as long.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from minserve.errors import DataNotFound
from minserve.northstar.paths import data_dir

AZURE, MOONCAKE = "azure_conv", "mooncake_conversation"


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Quantiles in tokens, of prompts and, per band of prompt lengths, of outputs."""

    prompt_grid: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_grid: tuple[float, ...]
    output_tokens: tuple[tuple[float, ...], ...]

    @classmethod
    def load(cls, name: str) -> LengthTable:
        """The table `name` of data/traces: `azure_conv` or `mooncake_conversation`."""
        return _load(name)

    def draw(self, rng: random.Random) -> tuple[float, float]:
        """One (prompt tokens, output tokens), not rounded, in the trace's own scale."""
        share = rng.random()
        band = self.output_tokens[int(share * len(self.output_tokens))]
        return (
            interpolate(self.prompt_grid, self.prompt_tokens, share),
            interpolate(self.output_grid, band, rng.random()),
        )


def interpolate(grid: tuple[float, ...], values: tuple[float, ...], share: float) -> float:
    """The quantile at `share` (0 to 1), linear between the points of `grid`."""
    right = max(1, bisect_left(grid, share))
    low, high = grid[right - 1], grid[right]
    part = (share - low) / (high - low)
    return values[right - 1] + (values[right] - values[right - 1]) * part


@lru_cache
def _load(name: str) -> LengthTable:
    file = data_dir("traces") / f"{name}.json"
    if not file.is_file():
        raise DataNotFound(
            f"there is no length table {name!r} in {file.parent}", f"use {AZURE} or {MOONCAKE}"
        )
    table = json.loads(file.read_text(encoding="utf-8"))
    return LengthTable(
        tuple(table["prompt_grid"]),
        tuple(table["prompt_tokens"]),
        tuple(table["output_grid"]),
        tuple(map(tuple, table["output_tokens_by_prompt_band"])),
    )
