"""Batch-invariant mode: a token's logits are the same bits whatever else is in the batch.

Two things make the last bits of a sum depend on the batch: a matrix product of another height may
add in another order, and so may attention over another length. Here every function of single
tokens (norms, projections, rotation, MLP, vocabulary) runs on tiles of one fixed number of rows,
the last one padded with zeros, and attention folds fixed tiles in a fixed order
(`minserve.models.attention.invariant`). What may still vary is a token's place in its tile. A
library may treat places differently, so `make_invariant` tries the tiles on this machine, and takes
smaller ones until turning a tile's rows turns the result's rows and changes no bit. A tile of one
row has no places to differ in, so there always is an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minserve.errors import ConfigError
from minserve.execution.executor import Row
from minserve.models.attention.invariant import InvariantPagedAttention
from minserve.models.decoder import Decoder
from minserve.request import SamplingParams

TILE_ROWS = (32, 16, 8, 4, 1)
ITEMS_AT_ONCE = (8, 4, 2, 1)


class TiledCalls:
    """Calls a function of token rows in tiles of exactly `num_rows`, and joins the results."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __call__(self, function: Callable, *rows: Tensor):
        """`function(*rows)`; every tensor has one row per token."""
        num_tokens = len(rows[0])
        if not num_tokens:
            return function(*rows)
        padding = -num_tokens % self.num_rows
        whole = [torch.cat([r, r.new_zeros(padding, *r.shape[1:])]) if padding else r for r in rows]
        tiles = zip(*(r.split(self.num_rows) for r in whole), strict=True)
        results = [function(*tile) for tile in tiles]
        if isinstance(results[0], Tensor):
            return torch.cat(results)[:num_tokens]
        return tuple(torch.cat(part)[:num_tokens] for part in zip(*results, strict=True))


@torch.inference_mode()
def make_invariant(decoder: Decoder) -> None:
    """Switch `decoder` to batch-invariant mode, with the largest tiles that hold on this machine.

    Raises `ConfigError` if even the smallest fail: then this device's arithmetic is not
    repeatable at all.
    """
    decoder.by_tile = TiledCalls(_first(TILE_ROWS, lambda n: _rows_are_alike(decoder, n)))
    items = _first(ITEMS_AT_ONCE, lambda n: _items_are_alike(decoder, n))
    decoder.attention = InvariantPagedAttention(items)


def _first(sizes: Sequence[int], holds: Callable[[int], bool]) -> int:
    for size in sizes:
        if holds(size):
            return size
    raise ConfigError(
        "batch-invariant mode is not possible: the same sum gave different bits twice",
        "run without batch_invariant, or on the CPU",
    )


def _rows_are_alike(decoder: Decoder, num_rows: int) -> bool:
    """Whether the token functions give a row the same bits in every place of a tile."""
    c, layer = decoder.config, decoder.layers[0]
    like, random = decoder.embeddings, torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, c.hidden_size, generator=random).to(like)
    attended = torch.randn(num_rows, c.num_attention_heads, c.head_dim, generator=random).to(like)
    inputs = [x, attended]

    def results(x: Tensor, attended: Tensor) -> list[Tensor]:
        return [layer.project(x), layer.finish(x, attended), decoder.to_logits(x)]

    expected = results(*inputs)
    return all(
        torch.equal(turned.roll(-turn, 0), right)
        for turn in range(num_rows)
        for turned, right in zip(results(*(i.roll(turn, 0) for i in inputs)), expected, strict=True)
    )


def _items_are_alike(decoder: Decoder, num_items: int) -> bool:
    """Whether attention gives an item the same bits in every place among `num_items`."""
    c, like = decoder.config, decoder.embeddings
    random = torch.Generator().manual_seed(0)
    # One decode per item, of two blocks of 64 tokens: two KV tiles.
    shape = (2 * num_items, 64, c.num_kv_heads, c.head_dim)
    keys, values = torch.randn(2, *shape, generator=random).to(like)
    queries = torch.randn(num_items, c.num_attention_heads, c.head_dim, generator=random).to(like)
    rows = [
        Row("", (0,), 64 + i, (2 * i, 2 * i + 1), False, 0, SamplingParams())
        for i in range(num_items)
    ]
    attention = InvariantPagedAttention(num_items)
    [items] = attention.lay_out(rows, 64, str(like.device))
    expected = attention.attend(queries, keys, values, [items])
    return all(
        torch.equal(attention.attend(queries, keys, values, [items.turned(turn)]), expected)
        for turn in range(num_items)
    )
