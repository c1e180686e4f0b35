"""Paged attention as one Triton kernel, for cards that FlashAttention does not serve.

A program takes a few queries of one row and one KV head, with all query heads that read it, so that
the row's keys and values pass once for the whole group. Over the row's positions it folds tiles by
online softmax (Milakov 2018; FlashAttention, Dao 2022), reading each through the block table.

Tested through Triton's interpreter on a CPU (`TRITON_INTERPRET=1`); never yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from minserve.execution.executor import Row
from minserve.models.attention.layout import PagedRows

HEADS_TIMES_QUERIES = 64
KV_TILE = 64
NO_WINDOW = 1 << 30
LOWEST = tl.constexpr(-1e38)  # finite, so that the difference of two is a number


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows cut into tiles of `num_queries`: of which row each is, and its first query there."""

    rows: PagedRows
    row: Tensor  # [num_tiles] int32
    first: Tensor  # [num_tiles] int32
    num_queries: int


class TritonAttention:
    """`group` is how many query heads read one KV head."""

    def __init__(self, group: int) -> None:
        self.group = group

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> Tiles:
        """See `Attention.lay_out`. Decodes alone go in tiles of one query."""
        paged = PagedRows.of(rows, block_size, device, window)
        size = 1 if paged.max_queries == 1 else max(1, HEADS_TIMES_QUERIES // self.group)
        tiles = [(i, q) for i, row in enumerate(rows) for q in range(0, len(row.token_ids), size)]
        row, first = torch.tensor(tiles, dtype=torch.int32, device=device).T.contiguous()
        return Tiles(paged, row, first, size)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: Tiles) -> Tensor:
        """See `Attention.attend`."""
        num_tokens, num_heads, head_dim = queries.shape
        _, block_size, num_kv_heads, _ = keys.shape
        rows, group = layout.rows, num_heads // num_kv_heads
        queries = queries.contiguous()
        out = torch.empty_like(queries)
        _attend[(len(layout.row), num_kv_heads)](
            out,
            queries,
            keys,
            values,
            rows.block_tables,
            rows.context_lens,
            rows.query_starts,
            layout.row,
            layout.first,
            head_dim**-0.5,
            rows.window or NO_WINDOW,
            *queries.stride()[:2],
            *keys.stride()[:3],
            rows.block_tables.stride(0),
            group=group,
            num_queries_at_once=layout.num_queries,
            block_size=block_size,
            head_dim=head_dim,
            query_tile=max(16, triton.next_power_of_2(layout.num_queries * group)),
            kv_tile=KV_TILE,
            dim_tile=max(16, triton.next_power_of_2(head_dim)),
        )
        return out


@triton.jit
def _attend(
    out,
    queries,
    keys,
    values,
    block_tables,
    context_lens,
    query_starts,
    tile_rows,
    tile_firsts,
    scale,
    window,
    token_stride,
    head_stride,
    block_stride,
    slot_stride,
    kv_head_stride,
    table_stride,
    group: tl.constexpr,
    num_queries_at_once: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    query_tile: tl.constexpr,
    kv_tile: tl.constexpr,
    dim_tile: tl.constexpr,
):
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row, first = tl.load(tile_rows + tile), tl.load(tile_firsts + tile)
    begin = tl.load(query_starts + row)
    num_queries = tl.load(query_starts + row + 1) - begin
    context_len = tl.load(context_lens + row)

    # Line i of the tile is query i // group, head i % group of those that share the KV head.
    lines = tl.arange(0, query_tile)
    query = first + lines // group
    is_query = (lines < num_queries_at_once * group) & (query < num_queries)
    position = context_len - num_queries + query
    head = kv_head * group + lines % group
    dims = tl.arange(0, dim_tile)
    is_dim = dims < head_dim
    where = (begin + query).to(tl.int64)[:, None] * token_stride + head[:, None] * head_stride
    where += dims[None, :]
    is_there = is_query[:, None] & is_dim[None, :]
    q = tl.load(queries + where, mask=is_there, other=0.0)

    top = tl.full([query_tile], LOWEST, tl.float32)
    total = tl.zeros([query_tile], tl.float32)
    found = tl.zeros([query_tile, dim_tile], tl.float32)
    first_position = context_len - num_queries + first
    end = tl.minimum(context_len, first_position + num_queries_at_once)
    oldest = tl.maximum(first_position - window + 1, 0)
    for start in range(oldest // kv_tile * kv_tile, end, kv_tile):
        spots = start + tl.arange(0, kv_tile)
        is_spot = spots < end
        table = block_tables + row * table_stride + spots // block_size
        block = tl.load(table, mask=is_spot, other=0).to(tl.int64)
        spot = block * block_stride + spots % block_size * slot_stride + kv_head * kv_head_stride
        is_kv = is_spot[:, None] & is_dim[None, :]
        k = tl.load(keys + spot[:, None] + dims[None, :], mask=is_kv, other=0.0)
        v = tl.load(values + spot[:, None] + dims[None, :], mask=is_kv, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        looks = (spots[None, :] <= position[:, None]) & is_spot[None, :]
        looks &= spots[None, :] > position[:, None] - window
        scores = tl.where(looks, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(scores - new_top[:, None])
        total = total * shrink + tl.sum(p, 1)
        found = found * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    found = found / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out + where, found.to(out.dtype.element_ty), mask=is_there)
