"""What a value of the KV cache is worth, for each kind of cache: one text serves all kernels.

float32    itself
bfloat16   Numba has no such type: its 16 bits are read as an int16, and are the upper half
           of a float32
int8       value times the scale of its token and head. The scale is a bfloat16, kept in the
           two bytes behind the head's values, so that one read fetches both
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload


def as_float(value):
    """A cached value as float32, without its scale."""
    raise NotImplementedError("for compiled code only")


def scale_of(head, head_dim):
    """The scale of a head's values, `[head_dim]` or with two bytes more."""
    raise NotImplementedError("for compiled code only")


def write_head(target, source):
    """Write one head's float32 values to the cache, as its type has them."""
    raise NotImplementedError("for compiled code only")


@overload(as_float, inline="always")
def _as_float(value):
    if value == types.int16:
        return lambda value: np.int32(np.int32(value) << np.int32(16)).view(np.float32)
    return lambda value: np.float32(value)


@overload(scale_of, inline="always")
def _scale_of(head, head_dim):
    if head.dtype != types.int8:
        return lambda head, head_dim: np.float32(1)

    def scale(head, head_dim):
        low, high = np.int32(head[head_dim]) & np.int32(255), np.int32(head[head_dim + 1])
        return np.int32(high << np.int32(24) | low << np.int32(16)).view(np.float32)

    return scale


@overload(write_head)
def _write_head(target, source):
    def as_it_is(target, source):
        for d in range(len(source)):
            target[d] = source[d]

    def as_bfloat16(target, source):
        for d in range(len(source)):
            target[d] = np.int16(_to_bfloat16(source[d]))

    def as_int8(target, source):
        largest = np.float32(0)
        for d in range(len(source)):
            largest = max(largest, abs(source[d]))
        # The scale that will be read, rounded up so that no value exceeds 127.
        scale = _to_bfloat16(largest * np.float32(1.00392157 / 127))
        real = np.int32(scale << np.int32(16)).view(np.float32)
        inverse = np.float32(1) / real if real > 0 else np.float32(0)
        for d in range(len(source)):
            target[d] = np.int8(np.rint(source[d] * inverse))
        target[len(source)] = np.int8(scale & np.int32(255))
        target[len(source) + 1] = np.int8(scale >> np.int32(8))

    return {types.int8: as_int8, types.int16: as_bfloat16}.get(target.dtype, as_it_is)


@njit
def _to_bfloat16(value):
    """Its upper 16 bits, rounded to nearest, ties to even."""
    whole = np.float32(value).view(np.int32)
    odd = (whole >> np.int32(16)) & np.int32(1)
    return np.int32((whole + np.int32(0x7FFF) + odd) >> np.int32(16))
