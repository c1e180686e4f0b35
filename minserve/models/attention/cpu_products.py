"""What decoding attention spends its time on, in vectors: scores of a few tokens, and their sum.

Both read a few tokens' values of one KV head where they lie in the cache, once, for all query heads
that share it. The arrays are flat. Of a group's query heads queries, or sums, lie one behind the
other, and scores, or weights, PIECE_TOKENS apart; a token's values lie `token_size` behind those of
the one before. From `coming` on as much memory is asked for, one cache line beside each read: in
one go they would hold the reads up. It is asked for front to back whatever the order of the reads,
as the CPU, which then helps, expects.

NOTE: `head_dim`, `group` and `num_tokens` must be constants where they are called: they are laid
out in code. A factory of intrinsics would do too, but Numba keeps no compiled function that holds
one.
"""

from __future__ import annotations

import math

from numba import types
from numba.extending import intrinsic

from minserve.models import vectors
from minserve.models.vectors import INT, LANES

PIECE_TOKENS = 256
"""Keys of a decode that are folded in one go. Fixed, so that a result does not depend on what else
is in the batch, nor on the number of threads."""
CACHE_LINE_BYTES = 64
GROUP_AT_ONCE = 4
"""So many query heads' sums, for four tokens each, fit the registers."""


@intrinsic(prefer_literal=True)
def score(
    typing, queries, first, keys, here, coming, token_size, scores, to, head_dim, group, num_tokens
):
    """The products of a group's queries, from `first` on, with the keys of `num_tokens` tokens, 4
    or 1, from `here` on, go to `scores` from `to` on.
    """
    arguments = (queries, first, keys, here, coming, token_size, scores, to)
    return _laid_out(_score, arguments, (head_dim, group, num_tokens))


@intrinsic(prefer_literal=True)
def add_weighted(
    typing, sums, first, values, here, coming, token_size, weights, to, head_dim, group, num_tokens
):
    """The values of `num_tokens` tokens, 4 or 1, from `here` on, times `weights` from `to` on, are
    added to a group's sums from `first` on.
    """
    arguments = (sums, first, values, here, coming, token_size, weights, to)
    return _laid_out(_add_weighted, arguments, (head_dim, group, num_tokens))


def _laid_out(body, arguments, constants):
    """The signature of an intrinsic, and what writes its code: `body` for these constants."""
    head_dim, group, num_tokens = (constant.literal_value for constant in constants)

    def generate(context, builder, signature, arguments):
        def address(i, j):
            """Of the element of array `i` that argument `j` counts to."""
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            return builder.gep(array.data, [arguments[j]])

        lanes = math.gcd(head_dim, LANES)
        offsets = [builder.mul(arguments[5], INT(t)) for t in range(num_tokens)]
        here = [builder.gep(address(2, 3), [offset]) for offset in offsets]
        coming = address(2, 4)
        kind = signature.args[2].dtype
        line = CACHE_LINE_BYTES * 8 // kind.bitwidth

        asked = set()

        def read(d):
            """Each token's values from `d` on. What comes is asked for the first time only."""
            parts = []
            for t, token in enumerate(here):
                if d % line == 0 and (d, t) not in asked:
                    asked.add((d, t))
                    ahead = builder.gep(coming, [INT(d * num_tokens + t * line)])
                    vectors.prefetch_line(builder, ahead, level=1)
                place = builder.gep(token, [INT(d)])
                parts.append(vectors.load(builder, place, kind, lanes))
            return parts

        for first in range(0, group, GROUP_AT_ONCE):
            members = range(first, min(first + GROUP_AT_ONCE, group))
            dims = range(0, head_dim, lanes)
            body(builder, address(0, 1), address(6, 7), read, members, dims, num_tokens)
        return context.get_dummy_value()

    return types.void(*arguments, *constants), generate


def _score(builder, queries, found, read, members, dims, num_tokens):
    lanes, head_dim = dims.step, dims.stop
    sums = {(g, t): vectors.zeros(lanes) for g in members for t in range(num_tokens)}
    for d in dims:
        parts = read(d)
        for g in members:
            place = builder.gep(queries, [INT(g * head_dim + d)])
            query = vectors.load(builder, place, lanes=lanes)
            for t, part in enumerate(parts):
                sums[g, t] = vectors.multiply_add(builder, query, part, sums[g, t])
    for g in members:
        # One token stands in for four: its sum is the first of them.
        total = vectors.sums_of_four(builder, *(sums[g, t % num_tokens] for t in range(4)))
        if num_tokens == 1:
            total = vectors.shuffle(builder, total, None, [0])
        vectors.store(builder, total, builder.gep(found, [INT(g * PIECE_TOKENS)]))


def _add_weighted(builder, sums, weights, read, members, dims, num_tokens):
    lanes, head_dim = dims.step, dims.stop

    def spread(g, t):
        weight = builder.load(builder.gep(weights, [INT(g * PIECE_TOKENS + t)]))
        return vectors.broadcast(builder, weight, lanes)

    by = {(g, t): spread(g, t) for g in members for t in range(num_tokens)}
    for d in dims:
        parts = read(d)
        for g in members:
            place = builder.gep(sums, [INT(g * head_dim + d)])
            total = vectors.load(builder, place, lanes=lanes)
            for t, part in enumerate(parts):
                total = vectors.multiply_add(builder, by[g, t], part, total)
            vectors.store(builder, total, place)
