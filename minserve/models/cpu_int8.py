"""Products with int8 weights on a CPU.

For few tokens a kernel reads each weight once and multiplies it into all of them. For many the
weights are made floats again, a tile of outputs at a time, and oneDNN multiplies by them.

NOTE: torch has such a product, `_weight_int8pack_mm`. With float32 activations it took nine times
as long as float32 weights do (torch 2.13, one token, 3072 x 576: 1,130 us for 124).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from minserve.models import jit
from minserve.models.cpu import pack, packed_linear
from minserve.models.quantization import Int8Linear, dequantise

numba = jit.require()
prange = numba.prange

FEW_ROWS = 64
"""Up to here the kernel is the faster of the two."""
OUT_TILE = 32
SERIAL_PRODUCTS = 1 << 18
"""Fewer products than this are done before a second thread has woken."""
FLOAT_TILE_VALUES = 1 << 20
"""Weights that are floats at a time: 4 MB, which a CPU's cache may hold."""


class CpuInt8Linear(Int8Linear):
    """Compiles its kernel when it is made."""

    def __init__(self, scales: Tensor) -> None:
        super().__init__(scales)
        self._few = _compiled()
        self._many = packed_linear if pack(scales.new_zeros(1, 1)) else linear

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if len(x) > FEW_ROWS:
            step = max(1, FLOAT_TILE_VALUES // weight.shape[1])
            tiles = zip(weight.split(step), self.scales.split(step), strict=True)
            parts = [self._many(x, dequantise(*tile, x.dtype)) for tile in tiles]
            y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        else:
            out = torch.empty(len(x), len(weight))
            is_small = len(x) * weight.numel() < SERIAL_PRODUCTS
            jit.use_threads(1 if is_small else jit.max_threads())
            x_float = x.float().contiguous().numpy()
            self._few(x_float, weight.numpy(), self.scales.numpy(), out.numpy())
            y = out.to(x.dtype)
        return y if bias is None else y.add_(bias)


@cache
def _compiled():
    with jit.announced("int8 products"):
        return jit.kernel("void(f4[:,::1], i1[:,::1], f4[::1], f4[:,::1])")(_multiply)


def _multiply(x, weight, scales, out):
    """A tile of outputs for eight rows of `x` at a time, then four, then one: both stay in the
    cache, and the sums in registers.
    """
    num_rows, size = x.shape
    for tile in prange((len(weight) + OUT_TILE - 1) // OUT_TILE):
        first = tile * OUT_TILE
        end, m = min(first + OUT_TILE, len(weight)), 0
        while m + 8 <= num_rows:
            for n in range(first, end):
                a = b = c = d = e = f = g = h = np.float32(0)
                for k in range(size):
                    w = np.float32(weight[n, k])
                    a += w * x[m, k]
                    b += w * x[m + 1, k]
                    c += w * x[m + 2, k]
                    d += w * x[m + 3, k]
                    e += w * x[m + 4, k]
                    f += w * x[m + 5, k]
                    g += w * x[m + 6, k]
                    h += w * x[m + 7, k]
                for i, total in enumerate((a, b, c, d, e, f, g, h)):
                    out[m + i, n] = total * scales[n]
            m += 8
        while m + 4 <= num_rows:
            for n in range(first, end):
                a = b = c = d = np.float32(0)
                for k in range(size):
                    w = np.float32(weight[n, k])
                    a += w * x[m, k]
                    b += w * x[m + 1, k]
                    c += w * x[m + 2, k]
                    d += w * x[m + 3, k]
                for i, total in enumerate((a, b, c, d)):
                    out[m + i, n] = total * scales[n]
            m += 4
        while m < num_rows:
            for n in range(first, end):
                a = np.float32(0)
                for k in range(size):
                    a += np.float32(weight[n, k]) * x[m, k]
                out[m, n] = a * scales[n]
            m += 1
