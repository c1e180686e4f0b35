"""What follows attention in a layer, in one compiled call.

Of a few tokens, handing results from one operation to the next takes about as long as computing
them. Here threads go from a product to a norm to a product without coming back to Python.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from minserve.models import jit
from minserve.models.cpu_linear import NUMBA_TYPES, SERIAL_PRODUCTS, PanelLinear, bits
from minserve.models.cpu_ops import norm_row, silu_row
from minserve.models.decoder import Layer
from minserve.models.micro_kernel import multiply_panel

numba = jit.require()
prange = numba.prange


class FusedFinish:
    """As `Layer.finish` without adapters, up to no bit: the same operations in the same order."""

    def __init__(self, layer: Layer) -> None:
        projections = (layer.out, layer.gate_up, layer.down)
        weights = [projection.weight for projection in projections]
        self._num_weights = sum(weight.numel() for weight in weights)
        self._eps = layer.config.rms_norm_eps
        self._norm = layer.mlp_norm.numpy()
        self._arrays = [
            array for p in projections for array in (bits(p.weight), p.multiply.scales.numpy())
        ]
        self._finish = _compiled(NUMBA_TYPES[weights[0].dtype])

    def __call__(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer.finish`; float32."""
        out = torch.empty_like(x)
        is_small = len(x) * self._num_weights < SERIAL_PRODUCTS
        jit.use_threads(1 if is_small else jit.max_threads())
        found = attended.flatten(1).numpy()
        self._finish(x.numpy(), found, *self._arrays, self._norm, self._eps, out.numpy())
        return out


def fused_finish(layer: Layer) -> FusedFinish | None:
    """For `layer`, if its weights are laid out in panels of one type, without biases."""
    projections = (layer.out, layer.gate_up, layer.down)
    are_panels = all(isinstance(p.multiply, PanelLinear) and p.bias is None for p in projections)
    is_float32 = layer.mlp_norm.dtype == torch.float32
    has_one_type = len({p.weight.dtype for p in projections}) == 1
    return FusedFinish(layer) if are_panels and is_float32 and has_one_type else None


@cache
def _compiled(kind: str):
    weight = f"{kind}[:,:,::1], f4[::1]"
    rows = "f4[:,::1]"
    with jit.announced("layers"):
        return jit.kernel(
            f"void({rows}, {rows}, {weight}, {weight}, {weight}, f4[::1], f4, {rows})"
        )(_finish)


def _finish(
    x, attended, out_w, out_scales, gate_up_w, gate_up_scales, down_w, down_scales, norm, eps, out
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
