"""Paged attention on a CPU: which work there is in a step, and how threads share it.

The arithmetic is in `minserve.models.attention.cpu_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minserve.execution.executor import Row
from minserve.models import jit
from minserve.models.attention.cpu_kernels import PIECE_TOKENS, QUERY_TILE, kernels
from minserve.models.vectors import NUMBA_TYPES, bits

SERIAL_KEYS = 256
"""So many keys of decodes, in a whole step, are read before a second thread has woken."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The work of a step, int32 arrays; the kernels say what is in a piece and in a tile.

    tables: `[num_rows, max_blocks]`. Both lists of work come with each thread's share of it.
    """

    tables: np.ndarray
    pieces: np.ndarray
    piece_shares: np.ndarray
    first_pieces: np.ndarray
    tiles: np.ndarray
    tile_shares: np.ndarray
    window: int


class CpuPagedAttention:
    """The fast backend for float32 and bfloat16 on a CPU; see `Attention` for the contract.

    Compiles its kernels for the model's heads when it is made. Sums are made in an order that
    depends on a row alone, so what else is in the batch changes nothing.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, cached: torch.dtype):
        self.num_kv_heads = num_kv_heads
        self.kernels = kernels(head_dim, num_heads // num_kv_heads, NUMBA_TYPES[cached])

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> Layout:
        """Cut decodes into pieces and chunks into tiles, and share them out by their cost."""
        width = max(len(row.block_table) for row in rows)
        tables = np.zeros((len(rows), width), np.int32)
        pieces, first_pieces, tiles, tile_costs = [], [0], [], []
        token = 0
        for i, row in enumerate(rows):
            tables[i, : len(row.block_table)] = row.block_table
            num_queries, end = len(row.token_ids), row.num_context_tokens
            first_key = max(0, row.start + 1 - window) if window else 0
            if num_queries == 1:
                # Cut at multiples of the piece, wherever a window begins.
                cuts = range(first_key - first_key % PIECE_TOKENS, end, PIECE_TOKENS)
                for cut in cuts:
                    piece = (i, token, max(cut, first_key), min(cut + PIECE_TOKENS, end))
                    pieces.append(piece)
                first_pieces.append(len(pieces))
            else:
                for q in range(0, num_queries, QUERY_TILE):
                    size = min(QUERY_TILE, num_queries - q)
                    cost = size * (row.start + q + size - first_key)
                    for head in range(self.num_kv_heads):
                        tiles.append((i, token + q, row.start + q, size, head))
                        tile_costs.append(cost)
            token += num_queries
        num_threads, num_keys = jit.max_threads(), [end - first for _, _, first, end in pieces]
        return Layout(
            tables,
            np.array(pieces, np.int32).reshape(-1, 4),
            _shares(num_keys, num_threads if sum(num_keys) > SERIAL_KEYS else 1),
            np.array(first_pieces, np.int32),
            np.array(tiles, np.int32).reshape(-1, 5),
            _shares(tile_costs, num_threads),
            window or 0,
        )

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
        """See `Attention.attend`."""
        out = torch.empty(queries.shape)
        q, k, v, o = queries.float().contiguous().numpy(), bits(keys), bits(values), out.numpy()
        if len(layout.pieces):
            _use_threads_for(layout.piece_shares)
            pieces = layout.pieces, layout.piece_shares, layout.first_pieces
            self.kernels.decode(q, k, v, layout.tables, *pieces, o)
        if len(layout.tiles):
            _use_threads_for(layout.tile_shares)
            tiles = layout.tiles, layout.tile_shares, layout.window
            self.kernels.chunk(q, k, v, layout.tables, *tiles, o)
        return out.to(queries.dtype)


def _use_threads_for(shares: np.ndarray) -> None:
    # For one share any number will do, and changing it takes as long as little work.
    if len(shares) > 2:
        jit.use_threads(len(shares) - 1)


def _shares(costs: Sequence[int], num_threads: int) -> np.ndarray:
    """Where each thread's share of a list begins, and the end: about the same cost for each."""
    sums = np.cumsum([0, *costs])
    return np.searchsorted(sums, sums[-1] * np.linspace(0, 1, num_threads + 1)).astype(np.int32)
