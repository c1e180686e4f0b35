"""The small operations between the projections, each compiled to one pass over its rows."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from minserve.models import jit
from minserve.models.attention.cpu_softmax import exp
from minserve.models.attention.cpu_values import write_head
from minserve.models.ops import TorchOps
from minserve.models.vectors import NUMBA_TYPES, bits

numba = jit.require()
prange = numba.prange

ROW_OPTIONS = {"fastmath": True, "error_model": "numpy"}
SERIAL_VALUES = 32_768
"""Fewer values than this are done before a second thread has woken."""


class CpuOps(TorchOps):
    """For float32 activations; the cache may be of any type of `cpu_values`. Results are those of
    `TorchOps` up to rounding.
    """

    def __init__(self, cached: torch.dtype) -> None:
        self._rms_norm, self._silu, self._rotate = _compiled(NUMBA_TYPES[cached])

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if x.dtype != torch.float32 or weight is None or x.dim() != 2:
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        _share(x.numel())
        self._rms_norm(x.contiguous().numpy(), weight.numpy(), eps, out.numpy())
        return out

    def silu_and_multiply(self, gate_up: Tensor) -> Tensor:
        if gate_up.dtype != torch.float32:
            return super().silu_and_multiply(gate_up)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        _share(out.numel())
        self._silu(gate_up.contiguous().numpy(), out.numpy())
        return out

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        num_tokens, num_heads, head_dim = qkv.shape
        out = torch.empty(num_tokens, num_heads - 2 * keys.shape[2], head_dim)
        _share(qkv.numel())
        arrays = [t.float().contiguous().numpy() for t in (qkv, cos, sin)]
        self._rotate(*arrays, slots.numpy(), bits(keys), bits(values), out.numpy())
        return out.to(qkv.dtype)


def _share(num_values: int) -> None:
    jit.use_threads(1 if num_values < SERIAL_VALUES else jit.max_threads())


@cache
def _compiled(cached: str):
    with jit.announced("operations"):
        cache_type = f"{cached}[:,:,:,::1]"
        return (
            jit.kernel("void(f4[:,::1], f4[::1], f4, f4[:,::1])")(_rms_norm),
            jit.kernel("void(f4[:,::1], f4[:,::1])")(_silu_and_multiply),
            jit.kernel(
                f"void(f4[:,:,::1], f4[:,::1], f4[:,::1], i8[::1], {cache_type}, {cache_type},"
                "f4[:,:,::1])"
            )(_rotate_and_store),
        )


def _rms_norm(x, weight, eps, out):
    for i in prange(len(x)):
        norm_row(x, i, weight, eps, out)


@numba.njit(**ROW_OPTIONS)
def norm_row(x, i, weight, eps, out):
    """Row i of `out`: row i of `x`, `[n, size]`, over its root mean square, times `weight`."""
    size = x.shape[1]
    squares = np.float32(0)
    for j in range(size):
        squares += x[i, j] * x[i, j]
    inverse = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
    for j in range(size):
        out[i, j] = x[i, j] * inverse * weight[j]


def _silu_and_multiply(gate_up, out):
    for i in prange(len(out)):
        silu_row(gate_up, i, out)


@numba.njit(**ROW_OPTIONS)
def silu_row(gate_up, i, out):
    """Row i of `out`, `[n, inner]`: silu of the first `inner` values of row i of `gate_up`, times
    the next.
    """
    size = out.shape[1]
    for j in range(size):
        gate = gate_up[i, j]
        small = exp(-abs(gate))  # so that nothing overflows
        gate *= (np.float32(1) if gate > 0 else small) / (np.float32(1) + small)
        out[i, j] = gate * gate_up[i, size + j]


def _rotate_and_store(qkv, cos, sin, slots, keys, values, out):
    for i in prange(len(qkv)):
        rotate_row(qkv, i, cos, sin, slots, keys, values, out)


@numba.njit(**ROW_OPTIONS)
def rotate_row(qkv, i, cos, sin, slots, keys, values, out):
    """Row i of `TorchOps.rotate_and_store`."""
    block_size, kv_heads, head_dim = keys.shape[1], keys.shape[2], qkv.shape[2]
    heads, half = out.shape[1], head_dim // 2
    block, t = slots[i] // block_size, slots[i] % block_size
    key = np.empty(head_dim, np.float32)
    for h in range(heads + kv_heads):
        to = out[i, h] if h < heads else key
        for d in range(half):
            a, b = qkv[i, h, d], qkv[i, h, half + d]
            to[d] = a * cos[i, d] + b * sin[i, d]
            to[half + d] = b * cos[i, half + d] + a * sin[i, half + d]
        if h >= heads:
            write_head(keys[block, t, h - heads], key)
    for h in range(kv_heads):
        write_head(values[block, t, h], qkv[i, heads + kv_heads + h])
