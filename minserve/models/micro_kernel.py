"""The innermost loop of a product on a CPU: a few rows by one panel of a weight.

A panel has PANEL columns, and for each inner index their values lie side by side. Each row's value
is spread over a vector and multiplied into all columns, whose sums stay in registers from the first
inner index to the last: the micro-kernel of "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality" (Van Zee and van de Geijn 2015).
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from minserve.models import jit, vectors
from minserve.models.vectors import INT, LANES, NUM_REGISTERS

PANEL = 2 * LANES
MOST_ROWS = 8 if NUM_REGISTERS == 32 else 6
"""The sums of so many rows, two vectors each, and what is multiplied fit the registers."""


@jit.require().njit
def multiply_panel(x, first, end, weight, panel, scales, out):
    """Rows `first` to `end` - 1 of `x`, `[num_rows, size]`, by a panel of `weight`, `[num_panels,
    size, PANEL]`, times `scales` of its columns, into these columns of `out`.

    Meanwhile the next panel is asked for, a share of it for each few rows: if rows are few, memory
    takes longer to bring a panel than this does to multiply by it.
    """
    num_panels, size, width = weight.shape
    num_rows = end - first
    num_blocks = (num_rows + MOST_ROWS - 1) // MOST_ROWS
    ahead = min(panel + 1, num_panels - 1) * size * width
    for block in range(num_blocks):
        low, high = block * num_rows // num_blocks, (block + 1) * num_rows // num_blocks
        share = ahead + block * size * width // num_blocks
        step = (width + num_blocks - 1) // num_blocks
        _multiply_rows(x, first + low, high - low, weight, panel, scales, out, share, step)


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
