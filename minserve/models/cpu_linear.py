"""Products on a CPU: activations in float32, weights in whatever type they came in.

A weight `[out, in]` lies in panels of PANEL outputs, in which the outputs of one input are
neighbours: `[out / PANEL, in, PANEL]`. A thread takes panels one by one. For up to MOST_ROWS rows
it walks down the panel once and keeps all their sums in vector registers (the micro-kernel of
"BLIS: A Framework for Rapidly Instantiating BLAS Functionality", Van Zee and van de Geijn 2015).
Meanwhile it asks memory for its next panel: for few rows fetching weights takes longer than
multiplying by them.

Weights become floats on their way into a register, which costs next to nothing. So a checkpoint of
16-bit values is read as it is: half the bytes of float32, for the very same sums. A sum runs over
the inputs from the first to the last, whatever else is in the batch.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor
from torch.nn.functional import pad

from minserve.models import jit, vectors
from minserve.models.vectors import INT, LANES, NUM_REGISTERS

numba = jit.require()
prange = numba.prange

PANEL = 2 * LANES
MOST_ROWS = 8 if NUM_REGISTERS == 32 else 6
"""The sums of so many rows, two vectors each, and what is multiplied fit the registers."""
SERIAL_PRODUCTS = 1 << 18
"""Fewer products than this are done before a second thread has woken."""

NUMBA_TYPES = {torch.float32: "f4", torch.bfloat16: "i2", torch.float16: "u2", torch.int8: "i1"}
_VIEWS = {torch.bfloat16: np.int16, torch.float16: np.uint16}


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
        is_small = len(x) * weight.numel() < SERIAL_PRODUCTS
        jit.use_threads(1 if is_small else jit.max_threads())
        self._multiply(
            x.float().contiguous().numpy(), _bits(weight), self.scales.numpy(), out.numpy()
        )
        if out.shape[1] != self.num_outputs:
            out = out[:, : self.num_outputs].contiguous()
        y = out.to(x.dtype)
        return y if bias is None else y.add_(bias)


def to_panels(weight: Tensor) -> Tensor:
    """`[out, in]` to `[out / PANEL, in, PANEL]`, the last panel filled up with zeros."""
    weight = pad(weight, (0, 0, 0, -len(weight) % PANEL))
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def _bits(weight: Tensor) -> np.ndarray:
    view = _VIEWS.get(weight.dtype)
    return weight.numpy() if view is None else weight.view(torch.int16).numpy().view(view)


@cache
def _compiled(kind: str):
    with jit.announced("products"):
        return jit.kernel(f"void(f4[:,::1], {kind}[:,:,::1], f4[::1], f4[:,::1])")(_multiply)


def _multiply(x, weight, scales, out):
    num_rows, (num_panels, size, width) = len(x), weight.shape
    num_blocks = (num_rows + MOST_ROWS - 1) // MOST_ROWS
    for panel in prange(num_panels):
        ahead = min(panel + 1, num_panels - 1) * size * width
        for block in range(num_blocks):
            first, end = block * num_rows // num_blocks, (block + 1) * num_rows // num_blocks
            # Each block of rows asks for its share of the next panel.
            _multiply_rows(
                x,
                first,
                end - first,
                weight,
                panel,
                scales,
                out,
                ahead + block * size * width // num_blocks,
                (width + num_blocks - 1) // num_blocks,
            )


@intrinsic
def _multiply_rows(typing, x, first, num_rows, weight, panel, scales, out, ahead, ahead_step):
    """One panel by `num_rows` rows of `x`, 1 to MOST_ROWS, into the panel's columns of `out`.

    From `ahead` on, `ahead_step` further for each input, values of `weight` are asked for.
    """
    arguments = (x, first, num_rows, weight, panel, scales, out, ahead, ahead_step)
    return types.void(*arguments), _generate


def _generate(context, builder, signature, arguments):
    """LLVM's instructions for `_multiply_rows`: a loop for each number of rows, and a switch."""
    _, first, num_rows, _, panel, _, _, ahead, ahead_step = arguments
    x, weight, scales, out = (
        context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3, 5, 6)
    )
    size, num_columns = (cgutils.unpack_tuple(builder, array.shape)[1] for array in (x, out))
    column = builder.mul(panel, INT(PANEL))
    at = builder.gep
    inputs = at(x.data, [builder.mul(first, size)])
    outputs = at(out.data, [builder.add(builder.mul(first, num_columns), column)])
    weights = at(weight.data, [builder.mul(column, size)])
    coming = at(weight.data, [ahead])
    halves = [INT(LANES * j) for j in (0, 1)]
    scale = [vectors.load(builder, at(scales.data, [builder.add(column, half)])) for half in halves]

    done = builder.append_basic_block("done")
    choice = builder.switch(num_rows, done)
    for count in range(1, MOST_ROWS + 1):
        start = builder.append_basic_block(f"start_{count}")
        loop = builder.append_basic_block(f"loop_{count}")
        end = builder.append_basic_block(f"end_{count}")
        choice.add_case(INT(count), start)

        builder.position_at_end(start)
        rows = [at(inputs, [builder.mul(size, INT(i))]) for i in range(count)]
        builder.branch(loop)

        builder.position_at_end(loop)
        k = builder.phi(INT)
        k.add_incoming(INT(0), start)
        sums = [builder.phi(vectors.zeros().type) for _ in range(2 * count)]
        for total in sums:
            total.add_incoming(vectors.zeros(), start)
        vectors.prefetch_line(builder, at(coming, [builder.mul(k, ahead_step)]), level=2)
        here = at(weights, [builder.mul(k, INT(PANEL))])
        pair = [vectors.load(builder, at(here, [half]), signature.args[3].dtype) for half in halves]
        new = []
        for i, row in enumerate(rows):
            value = vectors.broadcast(builder, builder.load(at(row, [k])))
            new += [vectors.multiply_add(builder, value, pair[j], sums[2 * i + j]) for j in (0, 1)]
        for total, value in zip(sums, new, strict=True):
            total.add_incoming(value, loop)
        following = builder.add(k, INT(1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, size), loop, end)

        builder.position_at_end(end)
        for i in range(count):
            row = at(outputs, [builder.mul(num_columns, INT(i))])
            for j in (0, 1):
                vectors.store(builder, builder.fmul(new[2 * i + j], scale[j]), at(row, [halves[j]]))
        builder.branch(done)
    builder.position_at_end(done)
    return context.get_dummy_value()
