"""Products on a CPU: activations in float32, weights in whatever type they came in.

A weight `[out, in]` lies in panels of PANEL outputs, in which the outputs of one input are
neighbours: `[out / PANEL, in, PANEL]`. Threads share the panels; how rows are multiplied by one of
them is in `minserve.models.micro_kernel`.

Weights become floats on their way into a register, which costs next to nothing. So a checkpoint of
16-bit values is read as it is: half the bytes of float32, for the very same sums. A sum runs over
the inputs from the first to the last, whatever else is in the batch.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from minserve.execution.huge_pages import HugePages
from minserve.models import jit
from minserve.models.micro_kernel import PANEL, multiply_panel
from minserve.models.vectors import NUMBA_TYPES, bits

numba = jit.require()
prange = numba.prange

SERIAL_PRODUCTS = 1 << 18
"""Fewer products than this are done before a second thread has woken."""


class PanelLinear:
    """As torch's `linear`, for a weight that `to_panels` laid out.

    num_outputs: without what fills up the last panel. scales: of each output, `[num_outputs]`, for
    weights in int8. Compiles its kernel when it is made.
    """

    def __init__(self, num_outputs: int, dtype: torch.dtype, scales: Tensor | None = None) -> None:
        self.num_outputs = num_outputs
        num_filled = num_outputs + -num_outputs % PANEL
        scales = torch.ones(num_outputs) if scales is None else scales.float()
        self.scales = pad(scales, (0, num_filled - num_outputs))
        self._multiply = _compiled(NUMBA_TYPES[dtype])

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(len(x), len(self.scales))
        share(len(x) * weight.numel())
        self._multiply(
            x.float().contiguous().numpy(), bits(weight), self.scales.numpy(), out.numpy()
        )
        if out.shape[1] != self.num_outputs:
            out = out[:, : self.num_outputs].contiguous()
        y = out.to(x.dtype)
        return y if bias is None else y.add_(bias)


def to_panels(weight: Tensor, memory: HugePages | None = None) -> Tensor:
    """`[out, in]` to `[out / PANEL, in, PANEL]`, the last panel filled up with zeros; in `memory`
    if given.
    """
    weight = pad(weight, (0, 0, 0, -len(weight) % PANEL))
    panels = weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2)
    return panels.contiguous() if memory is None else memory.copy(panels)


class PanelTable:
    """The rows of a weight that `to_panels` laid out, looked up as in a tensor `[out, in]`: of tied
    embeddings, which are then kept once.
    """

    def __init__(self, panels: Tensor, num_rows: int) -> None:
        self._panels, self._num_rows = panels, num_rows

    def __getitem__(self, rows: Tensor) -> Tensor:
        """`[len(rows), in]`. Raises `IndexError` for a row that there is not."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._num_rows:
            raise IndexError(f"rows {rows.tolist()} of a table of {self._num_rows}")
        return self._panels[rows // PANEL, :, rows % PANEL]


def share(num_products: int) -> None:
    """Let as many threads do so many products as are worth waking."""
    jit.use_threads(1 if num_products < SERIAL_PRODUCTS else jit.max_threads())


@cache
def _compiled(kind: str):
    with jit.announced("products"):
        return jit.kernel(f"void(f4[:,::1], {kind}[:,:,::1], f4[::1], f4[:,::1])")(_multiply)


def _multiply(x, weight, scales, out):
    for panel in prange(len(weight)):
        multiply_panel(x, 0, len(x), weight, panel, scales, out)
