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
from minserve.models.cpu_linear import PanelLinear, share
from minserve.models.cpu_ops import norm_row, rotate_row, silu_row
from minserve.models.decoder import Layer
from minserve.models.micro_kernel import PANEL, multiply_panel
from minserve.models.projection import Projection
from minserve.models.vectors import NUMBA_TYPES, bits

numba = jit.require()
prange = numba.prange

ROWS = "f4[:,::1]"
ROWS_AT_ONCE = 512
"""More rows only take more memory for what lies between two products."""


def fuse(layer: Layer, cached: torch.dtype) -> None:
    """Let compiled calls do what they can of `layer`, for a cache of `cached`.

    They know float32 activations and weights in panels of one type, without biases. Adapters, and
    norms of queries and keys, need the parts.
    """
    if layer.mlp_norm.dtype != torch.float32:
        return
    fills_panels = len(layer.qkv.weight) * PANEL == sum(layer.qkv.parts.values())
    if _are_plain(layer.qkv) and layer.qk_norm is None and fills_panels:
        layer.fused_start = FusedStart(layer, cached)
    if _are_plain(layer.out, layer.gate_up, layer.down):
        layer.fused_finish = FusedFinish(layer)


def _are_plain(*projections: Projection) -> bool:
    are_panels = all(isinstance(p.multiply, PanelLinear) and p.bias is None for p in projections)
    return are_panels and len({p.weight.dtype for p in projections}) == 1


def _arrays(*projections: Projection) -> list[np.ndarray]:
    """Of each its weight and its scales."""
    multiply = [cast(PanelLinear, projection.multiply) for projection in projections]
    pairs = zip(projections, multiply, strict=True)
    return [array for p, by in pairs for array in (bits(p.weight), by.scales.numpy())]


class FusedStart:
    """`Layer.project` and `TorchOps.rotate_and_store`, without adapters."""

    def __init__(self, layer: Layer, cached: torch.dtype) -> None:
        self._num_weights = layer.qkv.weight.numel()
        self._head_dim, self._num_heads = layer.config.head_dim, layer.config.num_attention_heads
        self._norm, self._eps = layer.attention_norm.numpy(), layer.config.rms_norm_eps
        self._arrays = _arrays(layer.qkv)
        self._start = _compiled_start(NUMBA_TYPES[layer.qkv.weight.dtype], NUMBA_TYPES[cached])

    def __call__(
        self, keys: Tensor, values: Tensor, x: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        """The rotated queries of `x`, `[n, num_heads, head_dim]`."""
        num_rows = x.shape[0]
        out = torch.empty(num_rows, self._num_heads, self._head_dim)
        share(num_rows * self._num_weights)
        rows = [t.numpy() for t in (cos, sin, slots)]
        cache_ = bits(keys), bits(values)
        self._start(x.numpy(), self._norm, self._eps, *self._arrays, *rows, *cache_, out.numpy())
        return out


class FusedFinish:
    """`Layer.finish`, without adapters."""

    def __init__(self, layer: Layer) -> None:
        projections = layer.out, layer.gate_up, layer.down
        self._num_weights = sum(projection.weight.numel() for projection in projections)
        self._norm, self._eps = layer.mlp_norm.numpy(), layer.config.rms_norm_eps
        self._arrays = _arrays(*projections)
        self._finish = _compiled_finish(NUMBA_TYPES[layer.out.weight.dtype])

    def __call__(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer.finish`."""
        out = torch.empty_like(x)
        share(x.shape[0] * self._num_weights)
        rows = x.numpy(), attended.flatten(1).numpy(), out.numpy()
        for first in range(0, x.shape[0], ROWS_AT_ONCE):
            inputs, found, results = (array[first : first + ROWS_AT_ONCE] for array in rows)
            self._finish(inputs, found, self._norm, self._eps, *self._arrays, results)
        return out


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
