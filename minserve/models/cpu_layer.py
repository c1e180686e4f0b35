"""A layer before attention, and after it, each in one compiled call.

Of a few tokens, handing results from one operation to the next takes about as long as computing
them. Here threads go from a product to a norm to a product without coming back to Python. They do
the same operations in the same order, so no bit changes.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor

from minserve.models import jit
from minserve.models.batch import TokenBatch
from minserve.models.cpu_linear import PanelLinear, share
from minserve.models.cpu_ops import norm_row, rotate_row, silu_row
from minserve.models.decoder import Decoder, Layer
from minserve.models.micro_kernel import PANEL, multiply_panel
from minserve.models.projection import Projection
from minserve.models.vectors import NUMBA_TYPES, bits

numba = jit.require()
prange = numba.prange

ROWS = "f4[:,::1]"
ROWS_AT_ONCE = 256
"""Of more, what lies between two products does not fit the caches."""


class FusedLayers:
    """Does what `each_layer` does, without adapters, of a decoder that `can_fuse` approves of.

    Arrays are made once for all layers: of a token, asking torch for views would take a tenth.
    """

    def __init__(self, decoder: Decoder, cached: torch.dtype) -> None:
        self._starts = [
            _Start(layer, cached) if _can_start(layer) else None for layer in decoder.layers
        ]
        self._finishes = [_Finish(layer) for layer in decoder.layers]

    def __call__(
        self,
        decoder: Decoder,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: TokenBatch,
        kv_cache: Tensor,
    ) -> Tensor:
        """See `minserve.models.decoder.each_layer`; `x` is overwritten."""
        c = decoder.config
        queries = torch.empty(len(x), c.num_attention_heads, c.head_dim)
        out = torch.empty_like(x)
        x_array, queries_array, out_array = x.numpy(), queries.numpy(), out.numpy()
        rotary, caches = [t.numpy() for t in (cos, sin, batch.slots)], bits(kv_cache)
        steps = zip(decoder.layers, self._starts, self._finishes, kv_cache, caches, strict=True)
        for layer, start, finish, (keys, values), cache_arrays in steps:
            if start:
                decoder.by_tile(start, x_array, *rotary, *cache_arrays, queries_array)
                q = queries
            else:
                qkv = decoder.by_tile(layer.project, x)
                q = decoder.ops.rotate_and_store(qkv, cos, sin, batch.slots, keys, values)
            attended = decoder.attention.attend(q, keys, values, batch.layouts[layer.window])
            attended_array = attended.float().contiguous().numpy()
            decoder.by_tile(finish, x_array, attended_array, out_array)
            x, out, x_array, out_array = out, x, out_array, x_array
        return x


def can_fuse(decoder: Decoder) -> bool:
    """Whether the kernels know what all layers do after attention: float32 activations, and weights
    in panels of one type without biases.
    """
    return all(
        layer.mlp_norm.dtype == torch.float32 and _are_plain(layer.out, layer.gate_up, layer.down)
        for layer in decoder.layers
    )


def _can_start(layer: Layer) -> bool:
    """Whether they know what it does before attention: besides, no norm of queries and keys."""
    fills_panels = len(layer.qkv.weight) * PANEL == sum(layer.qkv.parts.values())
    return _are_plain(layer.qkv) and layer.qk_norm is None and fills_panels


def _are_plain(*projections: Projection) -> bool:
    are_panels = all(isinstance(p.multiply, PanelLinear) and p.bias is None for p in projections)
    return are_panels and len({p.weight.dtype for p in projections}) == 1


def _arrays(*projections: Projection) -> list[np.ndarray]:
    """Of each its weight and its scales."""
    multiply = [cast(PanelLinear, projection.multiply) for projection in projections]
    pairs = zip(projections, multiply, strict=True)
    return [array for p, by in pairs for array in (bits(p.weight), by.scales.numpy())]


class _Start:
    """`Layer.project` and `TorchOps.rotate_and_store`, on arrays."""

    def __init__(self, layer: Layer, cached: torch.dtype) -> None:
        self._num_weights = layer.qkv.weight.numel()
        self._norm, self._eps = layer.attention_norm.numpy(), layer.config.rms_norm_eps
        self._arrays = _arrays(layer.qkv)
        self._start = _compiled_start(NUMBA_TYPES[layer.qkv.weight.dtype], NUMBA_TYPES[cached])

    def __call__(self, x, cos, sin, slots, keys, values, queries) -> None:
        """Writes the rotated `queries`, `[n, num_heads, head_dim]`, and to the cache."""
        share(len(x) * self._num_weights)
        rotary = cos, sin, slots
        self._start(x, self._norm, self._eps, *self._arrays, *rotary, keys, values, queries)


class _Finish:
    """`Layer.finish`, on arrays."""

    def __init__(self, layer: Layer) -> None:
        projections = layer.out, layer.gate_up, layer.down
        self._num_weights = sum(projection.weight.numel() for projection in projections)
        self._norm, self._eps = layer.mlp_norm.numpy(), layer.config.rms_norm_eps
        self._arrays = _arrays(*projections)
        self._finish = _compiled_finish(NUMBA_TYPES[layer.out.weight.dtype])

    def __call__(self, x, attended, out) -> None:
        """Writes `out`, `[n, hidden]`."""
        num_rows = len(x)
        share(num_rows * self._num_weights)
        attended = attended.reshape(num_rows, -1)
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            self._finish(x[rows], attended[rows], self._norm, self._eps, *self._arrays, out[rows])


@cache
def _compiled_start(kind: str, cached: str):
    cache_ = f"{cached}[:,:,:,::1]"
    with jit.announced("layers"):
        return jit.kernel(
            f"void({ROWS}, f4[::1], f4, {kind}[:,:,::1], f4[::1], {ROWS}, {ROWS}, i8[::1],"
            f"{cache_}, {cache_}, f4[:,:,::1])"
        )(_start)


@cache
def _compiled_finish(kind: str):
    weight = f"{kind}[:,:,::1], f4[::1]"
    with jit.announced("layers"):
        return jit.kernel(
            f"void({ROWS}, {ROWS}, f4[::1], f4, {weight}, {weight}, {weight}, {ROWS})"
        )(_finish)


def _start(x, norm, eps, weight, scales, cos, sin, slots, keys, values, out):
    num_rows, head_dim = len(x), out.shape[2]
    normed = np.empty(x.shape, np.float32)
    qkv = np.empty((num_rows, len(scales)), np.float32)
    by_head = qkv.reshape(num_rows, len(scales) // head_dim, head_dim)
    for i in prange(num_rows):
        norm_row(x, i, norm, eps, normed)
    for panel in prange(len(weight)):
        multiply_panel(normed, 0, num_rows, weight, panel, scales, qkv)
    for i in prange(num_rows):
        rotate_row(by_head, i, cos, sin, slots, keys, values, out)


def _finish(
    x, attended, norm, eps, out_w, out_scales, gate_up_w, gate_up_scales, down_w, down_scales, out
):
    num_rows, size = x.shape
    added = np.empty((num_rows, len(out_scales)), np.float32)
    normed = np.empty((num_rows, size), np.float32)
    gate_up = np.empty((num_rows, len(gate_up_scales)), np.float32)
    active = np.empty((num_rows, down_w.shape[1]), np.float32)
    for panel in prange(len(out_w)):
        multiply_panel(attended, 0, num_rows, out_w, panel, out_scales, added)
    for i in prange(num_rows):
        for j in range(size):
            out[i, j] = x[i, j] + added[i, j]
        norm_row(out, i, norm, eps, normed)
    for panel in prange(len(gate_up_w)):
        multiply_panel(normed, 0, num_rows, gate_up_w, panel, gate_up_scales, gate_up)
    for i in prange(num_rows):
        silu_row(gate_up, i, active)
    for panel in prange(len(down_w)):
        multiply_panel(active, 0, num_rows, down_w, panel, down_scales, added)
    for i in prange(num_rows):
        for j in range(size):
            out[i, j] += added[i, j]
