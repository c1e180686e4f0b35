"""Softmax of a stretch of scores, in vectors, as part of a softmax of more (online softmax)."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from minserve.models import vectors
from minserve.models.vectors import INT, LANES

LOWEST = -1e30  # NOTE: not -inf, which fastmath may assume never to meet


@intrinsic
def exp(typing, x):
    """e^x in float32, for x <= 0; no less than e^-87."""

    def generate(context, builder, signature, arguments):
        return vectors.exp(builder, arguments[0])

    return types.float32(types.float32), generate


@intrinsic(prefer_literal=True)
def weigh(typing, scores, at, first, end, top, num):
    """Turn `num` neighbours of the flat `scores`, from `at` on, into weights: `e^(score - largest)`
    of those from `first` to `end` - 1, counted from `at`, and 0 of the others.

    Returns the largest, which is at least `top`, and the sum of the weights. NOTE: `num` must be a
    constant where this is called, a multiple of LANES.
    """

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        first, end = (
            context.cast(builder, arguments[i], signature.args[i], types.int32) for i in (2, 3)
        )
        top = arguments[4]
        here = builder.gep(array.data, [arguments[1]])
        places = [builder.gep(here, [INT(i)]) for i in range(0, num.literal_value, LANES)]
        first, end, lowest = (
            vectors.broadcast(builder, value)
            for value in (first, end, vectors.constant(top, LOWEST))
        )

        found, masks = [], []
        for i, place in enumerate(places):
            index = vectors.counting(i * LANES)
            mask = builder.and_(
                builder.icmp_signed(">=", index, first), builder.icmp_signed("<", index, end)
            )
            found.append(builder.select(mask, vectors.load(builder, place), lowest))
            masks.append(mask)
        largest = vectors.largest(builder, vectors.fold(builder, found, vectors.largest), top)
        spread, weights = vectors.broadcast(builder, largest), []
        for score, mask, place in zip(found, masks, places, strict=True):
            weight = vectors.exp(builder, builder.fsub(score, spread))
            weights.append(builder.select(mask, weight, vectors.zeros()))
            vectors.store(builder, weights[-1], place)
        total = vectors.fold(builder, weights, ir.IRBuilder.fadd)
        return context.make_tuple(builder, signature.return_type, [largest, total])

    returned = types.UniTuple(types.float32, 2)
    return returned(scores, at, first, end, types.float32, num), generate
