"""Vector instructions for compiled kernels, where Numba's own code would not come out as them.

Numba turns loops into vectors by guessing. A kernel whose speed hangs on which values stay in which
registers says it itself, in LLVM's instructions; these are their words. All take the `builder` that
Numba hands to an intrinsic.
"""

from __future__ import annotations

import platform

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from minserve.models import jit


def _has(feature: str) -> bool:
    """Whether Numba compiles for a CPU with this feature, in LLVM's words."""
    told = jit.require().config.CPU_FEATURES
    features = binding.get_host_cpu_features().flatten() if told is None else told
    return f"+{feature}" in features.split(",")


LANES = 16 if _has("avx512f") else 8 if _has("avx2") else 4
"""Floats in a vector."""
NUM_REGISTERS = 16 if LANES == 8 else 32
WIDENS_FLOAT16 = LANES > 4 or platform.machine() in ("arm64", "aarch64")
"""Whether the CPU makes floats of float16 by itself."""

NUMBA_TYPES = {torch.float32: "f4", torch.bfloat16: "i2", torch.float16: "u2", torch.int8: "i1"}
"""Numba computes with neither 16-bit float: it is told which one by the sign of an integer."""
_VIEWS = {torch.bfloat16: np.int16, torch.float16: np.uint16}

INT, FLOAT = ir.IntType(64), ir.FloatType()
_INT32 = ir.IntType(32)


def bits(tensor: torch.Tensor) -> np.ndarray:
    """A view of a tensor of one of NUMBA_TYPES that Numba can read."""
    view = _VIEWS.get(tensor.dtype)
    return tensor.numpy() if view is None else tensor.view(torch.int16).numpy().view(view)


def load(builder, pointer, kind=types.float32, lanes: int = LANES):
    """`lanes` values from `pointer` on as float32: exactly what they are in their own type.

    kind: Numba's type of a value, one of NUMBA_TYPES.
    """
    floats, whole = ir.VectorType(FLOAT, lanes), ir.VectorType(_INT32, lanes)
    if kind == types.float32:
        return builder.load(builder.bitcast(pointer, floats.as_pointer()), align=4)
    narrow = ir.VectorType(ir.IntType(kind.bitwidth), lanes)
    bits = builder.load(builder.bitcast(pointer, narrow.as_pointer()), align=kind.bitwidth // 8)
    if kind == types.uint16:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes)), floats)
    if kind == types.int16:  # the upper half of a float32
        shifted = builder.shl(builder.zext(bits, whole), ir.Constant(whole, [16] * lanes))
        return builder.bitcast(shifted, floats)
    return builder.sitofp(builder.sext(bits, whole), floats)


def store(builder, vector, pointer) -> None:
    """Write a vector of float32."""
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=4)


def zeros(lanes: int = LANES):
    """A vector of 0."""
    return ir.Constant(ir.VectorType(FLOAT, lanes), [0.0] * lanes)


def constant(like, value):
    """`value` as what `like` is: a number, or in all lanes of a vector."""
    kind = like.type
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def counting(first: int):
    """The integers from `first` on."""
    return ir.Constant(ir.VectorType(_INT32, LANES), list(range(first, first + LANES)))


def broadcast(builder, value, lanes: int = LANES):
    """The number `value` in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    return shuffle(builder, builder.insert_element(undefined, value, _INT32(0)), None, [0] * lanes)


def shuffle(builder, a, b, lanes: list[int]):
    """Of `a` and then `b`, counted on, the values at `lanes`."""
    b = ir.Constant(a.type, ir.Undefined) if b is None else b
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes))


def multiply_add(builder, a, b, c):
    """`a * b + c`, rounded once where the CPU has an instruction for it."""
    declared = ir.FunctionType(a.type, [a.type] * 3)
    lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
    name = f"llvm.fmuladd.{lanes}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, declared, name), [a, b, c])


def largest(builder, a, b):
    """The larger, lane by lane."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


_E_TO_R = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def exp(builder, x):
    """e^x of a float32 or a vector of them, for x <= 0; no less than e^-87.

    x = n ln 2 + r with `|r| <= ln 2 / 2`; e^r by a polynomial (Cephes, Moshier), 2^n by its bits.
    """

    def say(value):
        return constant(x, value)

    x = largest(builder, x, say(-87.0))
    whole = ir.VectorType(_INT32, x.type.count) if isinstance(x.type, ir.VectorType) else _INT32
    # Towards zero, and x is below it: to the nearest. NOTE: no trick that rounds by adding a large
    # number, which fastmath would undo.
    nearest = builder.fsub(builder.fmul(x, say(1.44269504)), say(0.5))
    power = builder.fptosi(nearest, whole)
    n = builder.sitofp(power, x.type)
    r = multiply_add(builder, n, say(-0.693359375), x)
    r = multiply_add(builder, n, say(2.12194440e-4), r)
    y = say(_E_TO_R[0])
    for coefficient in _E_TO_R[1:]:
        y = multiply_add(builder, y, r, say(coefficient))
    y = multiply_add(builder, y, builder.fmul(r, r), builder.fadd(r, say(1.0)))
    bits_ = builder.shl(builder.add(power, constant(power, 127)), constant(power, 23))
    return builder.fmul(y, builder.bitcast(bits_, x.type))


def fold(builder, many: list, join):
    """One number of the lanes of 1, 2, 4... vectors, joined in pairs by `join(builder, a, b)`."""
    while len(many) > 1:
        many = [join(builder, *pair) for pair in zip(many[::2], many[1::2], strict=True)]
    [one] = many
    while one.type.count > 1:
        half = one.type.count // 2
        halves = (shuffle(builder, one, None, list(range(i, i + half))) for i in (0, half))
        one = join(builder, *halves)
    return builder.extract_element(one, _INT32(0))


def sums_of_four(builder, a, b, c, d):
    """Four lanes: the sum of the lanes of each."""
    n = a.type.count
    quads = range(0, n, 4)

    def pick(x, y, order):
        """Of every four lanes of both, `order`, in which 4 and on are those of `y`."""
        lanes = [quad + i % 4 + (n if i > 3 else 0) for quad in quads for i in order]
        return shuffle(builder, x, y, lanes)

    def join(x, y, low, high):
        return builder.fadd(pick(x, y, low), pick(x, y, high))

    ab, cd = (join(x, y, (0, 4, 1, 5), (2, 6, 3, 7)) for x, y in ((a, b), (c, d)))
    total = join(ab, cd, (0, 1, 4, 5), (2, 3, 6, 7))
    while total.type.count > 4:
        half = total.type.count // 2
        lower, upper = (shuffle(builder, total, None, list(range(i, i + half))) for i in (0, half))
        total = builder.fadd(lower, upper)
    return total


def prefetch_line(builder, pointer, level: int) -> None:
    """Ask for a cache line without waiting for it. level: 1, 2 or 3, the cache it is to come to."""
    declared = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[_INT32] * 3])
    function = cgutils.get_or_insert_function(builder.module, declared, "llvm.prefetch.p0")
    read, nearness, data = _INT32(0), _INT32(4 - level), _INT32(1)
    address = builder.bitcast(pointer, cgutils.voidptr_t)
    builder.call(function, [address, read, nearness, data])
