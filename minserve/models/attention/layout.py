"""A step's rows as the tensors that a GPU kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minserve.execution.executor import Row


@dataclass(frozen=True, slots=True)
class PagedRows:
    """All tensors int32, on the device.

    block_tables: `[num_rows, max_blocks]`, padded with block 0. context_lens: `[num_rows]`, tokens
    in the cache once the step's own are written. query_starts, context_starts: `[num_rows + 1]`,
    running sums of each row's queries and of context_lens. max_queries, max_context: the largest
    of each, known here so that no kernel waits for the device. window: as `Attention.lay_out` has
    it.
    """

    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    context_starts: Tensor
    max_queries: int
    max_context: int
    window: int | None

    @classmethod
    def of(cls, rows: Sequence[Row], block_size: int, device: str, window: int | None) -> PagedRows:
        """Lay out `rows`, which is not empty."""
        contexts = [row.num_context_tokens for row in rows]
        queries = [len(row.token_ids) for row in rows]
        width = -(-max(contexts) // block_size)
        tables = torch.zeros(len(rows), width, dtype=torch.int32)
        for table, row in zip(tables, rows, strict=True):
            blocks = row.block_table[:width]
            table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        context_lens = torch.tensor(contexts, dtype=torch.int32)
        return cls(
            block_tables=tables.to(device),
            context_lens=context_lens.to(device),
            query_starts=_running_sum(torch.tensor(queries)).to(device),
            context_starts=_running_sum(context_lens).to(device),
            max_queries=max(queries),
            max_context=max(contexts),
            window=window,
        )

    def put(self, other: PagedRows) -> None:
        """Overwrite the first rows with those of `other`, of as many queries each, and let the
        rows behind them repeat its first row. For buffers that a CUDA graph reads.
        """
        num_rows, width = other.block_tables.shape
        self.block_tables[:num_rows, :width] = other.block_tables
        self.block_tables[num_rows:, :width] = other.block_tables[0]
        self.context_lens[:num_rows] = other.context_lens
        self.context_lens[num_rows:] = other.context_lens[0]
        torch.cumsum(self.context_lens, 0, dtype=torch.int32, out=self.context_starts[1:])


def _running_sum(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
