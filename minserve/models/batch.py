"""One step's tokens laid flat: rows of any length one behind the other, no padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from minserve.execution.executor import Row
from minserve.models.attention import Attention


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A flat batch, rows in the order given.

    token_ids, positions, slots: `[num_tokens]` int64. The keys and values of token i go to slot
    `slots[i]`, which is `block * block_size + offset`. ends: `[num_rows]` int64, one past the last
    token of each row. layouts: how the attention backend wants the rows, for each sliding window
    that a layer of the model has (None: no window).
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor
    layouts: Mapping[int | None, Any]

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
            layouts={w: attention.lay_out(rows, block_size, device, w) for w in set(windows)},
        )
