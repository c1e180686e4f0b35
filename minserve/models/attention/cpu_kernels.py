"""Paged attention for CPUs, compiled by Numba: keys and values are read where they lie.

Softmax is made a piece of the context at a time and merged (online softmax: Milakov 2018;
FlashAttention, Dao 2022), so no matrix of scores is kept; all query heads of a group share each
read of their KV head (GQA, Ainslie 2023).

    decode   one query per row; the work is reading the cache: a piece's keys, block by block and
             each block front to back, all KV heads of it, and then its values. Pieces run side by
             side and are merged at the end (Flash-Decoding, Dao 2023).
    chunk    many queries per row; the work is arithmetic. KEY_TILE keys are copied to a transposed
             tile once for QUERY_TILE queries, so that the inner loops run over neighbouring floats.

The head's size and the group's are constants of the compiled code: the loops over them are laid out
in vector registers, which makes the kernels about twice as fast as with sizes as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from minserve.models import jit
from minserve.models.attention.cpu_products import PIECE_TOKENS, add_weighted, score
from minserve.models.attention.cpu_softmax import LOWEST, exp, weigh
from minserve.models.attention.cpu_values import as_float, scale_of
from minserve.models.micro_kernel import PANEL, multiply_panel

numba = jit.require()
prange = numba.prange

QUERY_TILE = 64
KEY_TILE = 64


class Kernels(NamedTuple):
    """Compiled for one model's heads and one kind of cache."""

    decode: Callable
    chunk: Callable


@cache
def kernels(head_dim: int, group: int, cached: str = "f4") -> Kernels:
    """Compile, or load what an earlier process compiled.

    head_dim: a multiple of 4. group: query heads per KV head. cached: the cache's element type in
    Numba's words: f4, i2 (bfloat16's bits) or i1 (`minserve.models.attention.cpu_values`).
    """
    cache_type = f"{cached}[:,:,:,::1]"
    with jit.announced("attention"):
        compiled_decode = jit.kernel(
            f"void(f4[:,:,::1], {cache_type}, {cache_type}, i4[:,::1], i4[:,::1], i4[::1], i4[::1],"
            "f4[:,:,::1])"
        )(_decode(head_dim, group, cached == "i1"))
        compiled_chunk = jit.kernel(
            f"void(f4[:,:,::1], {cache_type}, {cache_type}, i4[:,::1], i4[:,::1], i4[::1], i4,"
            "f4[:,:,::1])"
        )(_chunk(head_dim, group))
    return Kernels(compiled_decode, compiled_chunk)


def _decode(head_dim: int, group: int, is_int8: bool) -> Callable:
    scale, zero, lowest = np.float32(head_dim**-0.5), np.float32(0), np.float32(LOWEST)

    def decode(queries, keys, values, tables, pieces, shares, first_pieces, out):
        """Attend with one query for each row.

        pieces: `[num_pieces, 4]`: row, its token, first key, end of keys; a row's lie together,
        from first_pieces[i] to first_pieces[i + 1]. shares: each thread's range of pieces.
        """
        block_size, kv_heads, num_pieces = keys.shape[1], keys.shape[2], len(pieces)
        block_len = block_size * kv_heads * keys.shape[3]
        # From a key to the same token's value. Only ever to ask for memory, which may be any.
        apart = (values.ctypes.data - keys.ctypes.data) // keys.itemsize
        # What each piece found: the unnormalised sum, its largest score, the sum of weights.
        found = np.zeros((num_pieces, kv_heads, group, head_dim), np.float32)
        tops = np.empty((num_pieces, kv_heads, group), np.float32)
        totals = np.empty((num_pieces, kv_heads, group), np.float32)
        for thread in prange(len(shares) - 1):
            q = np.empty((kv_heads, group, head_dim), np.float32)
            weights = np.empty((kv_heads, group, PIECE_TOKENS), np.float32)
            flat = weights.reshape(-1)
            for piece in range(shares[thread], shares[thread + 1]):
                row, token, first_key, end_key = pieces[piece]
                num_keys = end_key - first_key
                for h in range(kv_heads):
                    for g in range(group):
                        for d in range(head_dim):
                            q[h, g, d] = queries[token, h * group + g, d] * scale
                # The first block of values comes after the last of keys, and then the next piece.
                table = tables[row]
                then = apart + table[first_key // block_size] * block_len
                mine = q.reshape(-1)
                _each_token(
                    mine, keys, table, first_key, end_key, then, weights, head_dim, group, False
                )
                if is_int8:
                    _scale(weights, keys, table, first_key, end_key, head_dim)
                for h in range(kv_heads):
                    for g in range(group):
                        at = (h * group + g) * PIECE_TOKENS
                        top, total = weigh(flat, at, 0, num_keys, lowest, PIECE_TOKENS)
                        tops[piece, h, g], totals[piece, h, g] = top, total
                if is_int8:
                    _scale(weights, values, table, first_key, end_key, head_dim)
                mine = found[piece].reshape(-1)
                next_row, _, next_key, _ = pieces[min(piece + 1, num_pieces - 1)]
                then = tables[next_row, next_key // block_size] * block_len - apart
                _each_token(
                    mine, values, table, first_key, end_key, then, weights, head_dim, group, True
                )

        for i in range(len(first_pieces) - 1):
            first, end = first_pieces[i], first_pieces[i + 1]
            token = pieces[first, 1]
            for h in range(kv_heads):
                for g in range(group):
                    top, total = lowest, zero
                    for piece in range(first, end):
                        top = max(top, tops[piece, h, g])
                    for piece in range(first, end):
                        total += totals[piece, h, g] * exp(tops[piece, h, g] - top)
                    for d in range(head_dim):
                        out[token, h * group + g, d] = 0
                    for piece in range(first, end):
                        weight = exp(tops[piece, h, g] - top) / total
                        for d in range(head_dim):
                            out[token, h * group + g, d] += weight * found[piece, h, g, d]

    return decode


@numba.njit(inline="always")
def _each_token(
    ours, cached, table, first_key, end_key, then, weights, head_dim, group, is_for_values
):
    """Let each KV head's queries or sums, `ours`, meet the keys or values of a piece, four tokens
    at a time: what is read of `ours` is read once for four. then: the place of the block that is
    read after these.
    """
    block_size, kv_heads, width = cached.shape[1], cached.shape[2], cached.shape[3]
    flat, flat_weights = cached.reshape(-1), weights.reshape(-1)
    size = kv_heads * width
    last_block = (end_key - 1) // block_size
    for b in range(first_key // block_size, last_block + 1):
        # The next block begins elsewhere: the CPU cannot foresee where.
        block, after = table[b] * block_size * size, then
        if b < last_block:
            after = table[b + 1] * block_size * size
        first_token = b * block_size
        t, end = max(first_key, first_token), min(end_key, first_token + block_size)
        while t < end:
            num = 4 if t + 4 <= end else 1
            for h in range(kv_heads):
                at = block + (t - first_token) * size + h * width
                coming = after + (t - first_token) * size + h * num * width
                i, j = h * group * head_dim, h * group * PIECE_TOKENS + t - first_key
                if is_for_values and num == 4:
                    add_weighted(
                        ours, i, flat, at, coming, size, flat_weights, j, head_dim, group, 4
                    )
                elif is_for_values:
                    add_weighted(
                        ours, i, flat, at, coming, size, flat_weights, j, head_dim, group, 1
                    )
                elif num == 4:
                    score(ours, i, flat, at, coming, size, flat_weights, j, head_dim, group, 4)
                else:
                    score(ours, i, flat, at, coming, size, flat_weights, j, head_dim, group, 1)
            t += num


@numba.njit
def _scale(weights, cached, table, first_key, end_key, head_dim):
    """Multiply what belongs to each token and head of a piece by its scale, in an int8 cache."""
    block_size = cached.shape[1]
    for t in range(first_key, end_key):
        for h in range(cached.shape[2]):
            by = scale_of(cached[table[t // block_size], t % block_size, h], head_dim)
            for g in range(weights.shape[1]):
                weights[h, g, t - first_key] *= by


def _chunk(head_dim: int, group: int) -> Callable:
    scale = np.float32(head_dim**-0.5)
    most_rows, value_panels = QUERY_TILE * group, -(-head_dim // PANEL)

    def chunk(queries, keys, values, tables, tiles, shares, window, out):
        """Attend with runs of queries.

        tiles: `[num_tiles, 5]`: row, first token, its position, number of queries, KV head.
        shares: each thread's range of tiles. window: as in `Attention.lay_out`; 0 means none.
        """
        block_size = keys.shape[1]
        for thread in prange(len(shares) - 1):
            # A row of these is a query of one head of the group.
            q = np.empty((most_rows, head_dim), np.float32)
            s = np.empty((most_rows, KEY_TILE), np.float32)
            flat = s.reshape(-1)
            acc = np.empty((most_rows, head_dim), np.float32)
            added = np.empty((most_rows, value_panels * PANEL), np.float32)
            top = np.empty(most_rows, np.float32)
            total = np.empty(most_rows, np.float32)
            shrink = np.empty(most_rows, np.float32)
            # Keys and values lie in panels: of keys, and of the values' dimensions.
            k = np.zeros((KEY_TILE // PANEL, head_dim, PANEL), np.float32)
            v = np.zeros((value_panels, KEY_TILE, PANEL), np.float32)
            ones = np.ones(max(KEY_TILE, value_panels * PANEL), np.float32)
            for tile in range(shares[thread], shares[thread + 1]):
                row, token, start, num_queries, h = tiles[tile]
                for i in range(num_queries):
                    for g in range(group):
                        r = i * group + g
                        top[r], total[r] = LOWEST, 0
                        for d in range(head_dim):
                            q[r, d] = queries[token + i, h * group + g, d] * scale
                            acc[r, d] = 0
                first_key = max(0, start + 1 - window) if window else 0
                for base in range(first_key, start + num_queries, KEY_TILE):
                    num_keys = min(KEY_TILE, start + num_queries - base)
                    for j in range(num_keys):
                        block = tables[row, (base + j) // block_size]
                        t = (base + j) % block_size
                        key_scale = scale_of(keys[block, t, h], head_dim)
                        value_scale = scale_of(values[block, t, h], head_dim)
                        for d in range(head_dim):
                            k[j // PANEL, d, j % PANEL] = as_float(keys[block, t, h, d]) * key_scale
                        for d in range(head_dim):
                            value = as_float(values[block, t, h, d]) * value_scale
                            v[d // PANEL, j, d % PANEL] = value
                    v[:, num_keys:] = 0  # a weight of 0 must not meet the NaN of another row
                    # Queries before these keys do not look at them, nor do later ones by a window.
                    first_row = max(0, base - start) * group
                    end_row = num_queries * group
                    if window:
                        end_row = min(end_row, (base + num_keys - 1 + window - start) * group)
                    for panel in range((num_keys + PANEL - 1) // PANEL):
                        multiply_panel(q, first_row, end_row, k, panel, ones, s)
                    for r in range(first_row, end_row):
                        # Of this tile, the query looks at keys `first` to `end` - 1.
                        end = min(start + r // group + 1 - base, num_keys)
                        first = max(0, start + r // group + 1 - window - base) if window else 0
                        new_top, summed = weigh(flat, r * KEY_TILE, first, end, top[r], KEY_TILE)
                        shrink[r] = exp(top[r] - new_top)
                        top[r], total[r] = new_top, total[r] * shrink[r] + summed
                    for panel in range(value_panels):
                        multiply_panel(s, first_row, end_row, v, panel, ones, added)
                    for r in range(first_row, end_row):
                        for d in range(head_dim):
                            acc[r, d] = acc[r, d] * shrink[r] + added[r, d]
                for i in range(num_queries):
                    for g in range(group):
                        r = i * group + g
                        for d in range(head_dim):
                            out[token + i, h * group + g, d] = acc[r, d] / total[r]

    return chunk
