"""Paged attention whose bits do not depend on the batch: one fixed order of summing.

For each query, keys and values are read in tiles of KV_TILE positions (0-63, 64-127, ...), in
order, and folded together by online softmax (Milakov 2018; FlashAttention, Dao 2022):

    m' = max(m, max(s));  p = exp(s - m');  l' = l exp(m - m') + sum(p);  o' = o exp(m - m') + p V

In a tile beyond the query's position, or before its sliding window, s is -inf throughout, so p = 0,
exp(m - m') = 1, and m, l and o stay as they are, to the bit (m starts at the lowest finite number,
not at -inf, so that m - m' is always a number). Every tensor has one fixed shape, so no library
changes its order of summing: QUERY_TILE positions of one sequence form an item, a query's place in
its item is its position modulo QUERY_TILE, and `items_at_once` items are computed together. Which
of these an item comes to be is all that varies, and `minserve.models.invariant` checks that it does
not matter.

The same need in production: "Defeating nondeterminism in LLM inference" (He et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minserve.execution.executor import Row

QUERY_TILE = 8
KV_TILE = 64


@dataclass(frozen=True, slots=True)
class Items:
    """`items_at_once` items (I) of QUERY_TILE queries (Q); places without a query look at 0.

    source: `[I, Q]` int64, a query's place in the flat batch; target: the same, one past the end
    where there is no query. slots: `[num_tiles, I, KV_TILE]` int64, where keys and values lie.
    mask: `[num_tiles, I, 1, 1, Q, KV_TILE]`, 0 where a query looks and -inf where not.
    """

    source: Tensor
    target: Tensor
    slots: Tensor
    mask: Tensor

    def turned(self, turn: int) -> Items:
        """The same items, each `turn` places further: what they yield should not change."""
        return Items(
            self.source.roll(turn, 0),
            self.target.roll(turn, 0),
            self.slots.roll(turn, 1),
            self.mask.roll(turn, 1),
        )


class InvariantPagedAttention:
    """See the module's docstring. A few times slower than the reference."""

    def __init__(self, items_at_once: int = 8) -> None:
        self.items_at_once = items_at_once

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> list[Items]:
        """Cut the rows into items at multiples of QUERY_TILE positions."""
        num_tokens = sum(len(row.token_ids) for row in rows)
        items = []
        begin = 0
        for row in rows:
            end = row.num_context_tokens
            for first in range(row.start - row.start % QUERY_TILE, end, QUERY_TILE):
                inside = range(max(first, row.start), min(first + QUERY_TILE, end))
                tokens = {p - first: begin + p - row.start for p in inside}
                items.append((tokens, first, inside[-1], row.block_table))
            begin += len(row.token_ids)
        # Items of like length go together, so that few tiles are computed in vain.
        items.sort(key=lambda item: item[2])
        step = self.items_at_once
        return [
            _items(items[i : i + step], step, num_tokens, block_size, device, window)
            for i in range(0, len(items), step)
        ]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: list[Items]) -> Tensor:
        """See `Attention.attend`."""
        num_tokens, num_heads, head_dim = queries.shape
        num_kv_heads = keys.shape[2]
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        out = queries.new_empty(num_tokens + 1, num_heads, head_dim)  # the last takes the padding
        for items in layout:
            # [I, num_kv_heads, group * Q, head_dim]: one KV head's queries share a product.
            q = queries[items.source].unflatten(2, (num_kv_heads, -1))
            q = q.permute(0, 2, 3, 1, 4).float() * head_dim**-0.5
            attended = self.fold(q, keys, values, items)
            out[items.target] = attended.permute(0, 3, 1, 2, 4).flatten(2, 3).to(out.dtype)
        return out[:num_tokens]

    def fold(self, q: Tensor, keys: Tensor, values: Tensor, items: Items) -> Tensor:
        """Online softmax over the tiles; q is `[I, num_kv_heads, group, Q, head_dim]` float32."""
        shape = q.shape
        q = q.flatten(2, 3).contiguous()
        top = q.new_full((*q.shape[:3], 1), torch.finfo(q.dtype).min)
        total = torch.zeros_like(top)
        out = torch.zeros_like(q)
        for slots, mask in zip(items.slots, items.mask, strict=True):
            # [I, num_kv_heads, KV_TILE, head_dim]
            k = keys[slots].transpose(1, 2).float().contiguous()
            v = values[slots].transpose(1, 2).float().contiguous()
            scores = torch.matmul(q, k.transpose(-2, -1))
            scores = (scores.view(*shape[:4], KV_TILE) + mask).flatten(2, 3)
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            shrink = torch.exp(top - new_top)
            p = torch.exp(scores - new_top)
            total = total * shrink + p.sum(-1, keepdim=True)
            out = out * shrink + torch.matmul(p, v)
            top = new_top
        return (out / total).view(shape)


def _items(
    items: list,
    items_at_once: int,
    num_tokens: int,
    block_size: int,
    device: str,
    window: int | None,
) -> Items:
    num_tiles = items[-1][2] // KV_TILE + 1
    source, target, positions, slots = [], [], [], []
    for tokens, first, last, blocks in items:
        places = range(QUERY_TILE)
        source.append([tokens.get(i, 0) for i in places])
        target.append([tokens.get(i, num_tokens) for i in places])
        positions.append([first + i if i in tokens else 0 for i in places])
        there = [
            blocks[p // block_size] * block_size + p % block_size if p <= last else 0
            for p in range(num_tiles * KV_TILE)
        ]
        slots.append(there)
    for _ in range(items_at_once - len(items)):
        source.append([0] * QUERY_TILE)
        target.append([num_tokens] * QUERY_TILE)
        positions.append([0] * QUERY_TILE)
        slots.append([0] * (num_tiles * KV_TILE))

    tiles = torch.tensor(slots, device=device).view(items_at_once, num_tiles, KV_TILE)
    keys = torch.arange(num_tiles * KV_TILE, device=device)
    queries = torch.tensor(positions, device=device)[..., None]
    looks = keys <= queries  # [I, Q, tiles * KV_TILE]
    if window is not None:
        looks &= keys > queries - window
    mask = torch.zeros(looks.shape, device=device).masked_fill(~looks, -torch.inf)
    mask = mask.view(items_at_once, QUERY_TILE, num_tiles, KV_TILE).permute(2, 0, 1, 3)
    return Items(
        source=torch.tensor(source, device=device),
        target=torch.tensor(target, device=device),
        slots=tiles.transpose(0, 1).contiguous(),
        mask=mask[:, :, None, None].contiguous(),
    )
