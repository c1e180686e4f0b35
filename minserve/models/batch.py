"""One step's tokens laid flat: rows of any length one behind the other, no padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch

from minserve.execution.executor import Row
from minserve.models.attention import Attention
from minserve.models.projection import Segment


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A flat batch, rows in the order given.

    token_ids, positions, slots: `[num_tokens]` int64. The keys and values of token i go to slot
    `slots[i]`, which is `block * block_size + offset`. ends: `[num_rows]` int64, one past the last
    token of each row. layouts: how the attention backend wants the rows, for each sliding window
    that a layer of the model has (None: no window). segments: the tokens of each adapter; where
    all rows have the same, its slice has no ends, and holds for any part of the batch as well.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor
    layouts: Mapping[int | None, Any]
    segments: tuple[Segment, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        block_size: int,
        attention: Attention,
        device: str = "cpu",
        windows: Iterable[int | None] = (None,),
    ) -> TokenBatch:
        """Lay out `rows`; each holds at least one token, and the blocks that it writes to.

        windows: the sliding window of each layer (`ModelConfig.windows`).
        """
        positions = [p for row in rows for p in range(row.start, row.num_context_tokens)]
        slots = [
            row.block_table[p // block_size] * block_size + p % block_size
            for row in rows
            for p in range(row.start, row.num_context_tokens)
        ]
        return cls(
            token_ids=torch.tensor([t for row in rows for t in row.token_ids], device=device),
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            ends=torch.tensor([*accumulate(len(row.token_ids) for row in rows)], device=device),
            segments=_segments(rows),
            layouts={w: attention.lay_out(rows, block_size, device, w) for w in set(windows)},
        )


def _segments(rows: Sequence[Row]) -> tuple[Segment, ...]:
    """Neighbouring rows of one adapter are one segment; rows without one are in none."""
    segments, begin = [], 0
    for adapter, group in groupby(rows, key=lambda row: row.adapter):
        end = begin + sum(len(row.token_ids) for row in group)
        if adapter:
            segments.append(Segment(adapter, slice(begin, end)))
        begin = end
    if len(segments) == 1 and segments[0].tokens == slice(0, begin):
        return (Segment(segments[0].adapter, slice(None)),)
    return tuple(segments)
