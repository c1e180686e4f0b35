"""Paged attention in plain torch (PagedAttention: Kwon et al. 2023): gather the blocks, attend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minserve.execution.executor import Row


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are gathered and attended together: decodes of like length, or one chunk.

    tokens: `[num_rows * num_queries]` int64, where the queries lie in the flat batch.
    block_tables: `[num_rows, max_blocks]` int64, padded with block 0; blocks that a sliding window
    has left behind are not in it.
    mask: `[num_rows, 1, num_queries, max_blocks * block_size]` bool, True where a query looks.
    """

    tokens: Tensor
    block_tables: Tensor
    mask: Tensor


class PagedAttention:
    """All decodes of like length in one call, so that 32 cost little more than 1; chunks singly.

    Exact up to rounding: a sum's order depends on the shapes, so the last bits differ between
    batches. See `minserve.models.attention.Attention` for the contract.
    """

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> list[Group]:
        """Group the rows of a step."""
        groups: dict[tuple[int, int], list[tuple[int, Row]]] = {}
        begin = 0
        for i, row in enumerate(rows):
            first = first_block(row, block_size, window)
            num_blocks = -(-row.num_context_tokens // block_size) - first
            # Decodes share a group if their blocks round up to the same power of two: padding
            # at most doubles the work. A chunk is a group by itself.
            decode = len(row.token_ids) == 1
            key = (0, (num_blocks - 1).bit_length()) if decode else (1, i)
            groups.setdefault(key, []).append((begin, row))
            begin += len(row.token_ids)
        return [_group(members, block_size, device, window) for members in groups.values()]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: list[Group]) -> Tensor:
        """See `Attention.attend`."""
        out = torch.empty_like(queries)
        for group in layout:
            num_rows = len(group.block_tables)
            q = queries[group.tokens].unflatten(0, (num_rows, -1)).transpose(1, 2)
            k, v = gather(keys, group.block_tables), gather(values, group.block_tables)
            attended = scaled_dot_product_attention(q, k, v, attn_mask=group.mask, enable_gqa=True)
            out[group.tokens] = attended.transpose(1, 2).flatten(0, 1)
        return out


def gather(cache: Tensor, block_tables: Tensor) -> Tensor:
    """Each row's keys or values as if they lay in one piece.

    cache `[num_blocks, block_size, num_kv_heads, head_dim]`, block_tables `[num_rows, n]` ->
    `[num_rows, num_kv_heads, n * block_size, head_dim]`.
    """
    # NOTE: index_select copies whole blocks; `cache[block_tables]` takes twice as long on a CPU.
    blocks = cache.index_select(0, block_tables.flatten())
    return blocks.view(len(block_tables), -1, *cache.shape[2:]).transpose(1, 2)


def first_block(row: Row, block_size: int, window: int | None) -> int:
    """Index in the row's table of the first block that any of its queries looks at."""
    return 0 if window is None else max(0, row.start - window + 1) // block_size


def _group(
    members: list[tuple[int, Row]], block_size: int, device: str, window: int | None
) -> Group:
    tokens = [begin + i for begin, row in members for i in range(len(row.token_ids))]
    num_queries = len(members[0][1].token_ids)
    firsts = [first_block(row, block_size, window) for _, row in members]
    tables = [
        row.block_table[first : -(-row.num_context_tokens // block_size)]
        for first, (_, row) in zip(firsts, members, strict=True)
    ]
    width = max(map(len, tables))
    tables = [(*table, *(0,) * (width - len(table))) for table in tables]
    starts = torch.tensor([row.start for _, row in members], device=device)
    positions = starts[:, None] + torch.arange(num_queries, device=device)
    # [num_rows, 1, 1, keys] against [num_rows, 1, num_queries, 1]
    keys = torch.tensor(firsts, device=device)[:, None] * block_size
    keys = (keys + torch.arange(width * block_size, device=device))[:, None, None]
    positions = positions[:, None, :, None]
    mask = keys <= positions
    if window is not None:
        mask &= keys > positions - window
    return Group(
        tokens=torch.tensor(tokens, device=device),
        block_tables=torch.tensor(tables, device=device),
        mask=mask,
    )
