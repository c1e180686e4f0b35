"""What decoding attention spends its time on, in vectors: scores of a few tokens, and their sum.

Both read a few tokens' values of one KV head where they lie in the cache, once, for all query heads
that share it. The arrays are flat. Of a group's query heads queries, or sums, lie one behind the
other, and scores, or weights, PIECE_TOKENS apart; a token's values lie `token_size` behind those of
the one before. From `coming` on memory is asked for as many tokens, one cache line beside each
read: in one go they would hold the reads up.

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
    typing,
    queries,
    first,
    keys,
    here,
    coming,
    token_size,
    scores,
    to,
    head_dim,
    group,
    num_tokens,
):
    """The products of a group's queries, from `first` on, with the keys of `num_tokens` tokens, 4
    or 1, from `here` on, go to `scores` from `to` on.
    """
    arguments = (queries, first, keys, here, coming, token_size, scores, to)
    constants = (head_dim, group, num_tokens)
    head_dim, group, num_tokens = (constant.literal_value for constant in constants)
    lanes = math.gcd(head_dim, LANES)

    def generate(context, builder, signature, arguments):
        address, at = _addresses(context, builder, signature, arguments), builder.gep
        queries, found = address(0, 1), address(6, 7)
        read = _reader(builder, signature, arguments, address, num_tokens, lanes)
        for first in range(0, group, GROUP_AT_ONCE):
            members = range(first, min(first + GROUP_AT_ONCE, group))
            sums = {(g, t): vectors.zeros(lanes) for g in members for t in range(num_tokens)}
            for d in range(0, head_dim, lanes):
                parts = read(d)
                for g in members:
                    place = at(queries, [INT(g * head_dim + d)])
                    query = vectors.load(builder, place, lanes=lanes)
                    for t, part in enumerate(parts):
                        sums[g, t] = vectors.multiply_add(builder, query, part, sums[g, t])
            for g in members:
                # One token stands in for four: its sum is the first of them.
                four = [sums[g, t % num_tokens] for t in range(4)]
                total = vectors.sums_of_four(builder, *four)
                if num_tokens == 1:
                    total = vectors.shuffle(builder, total, None, [0])
                vectors.store(builder, total, at(found, [INT(g * PIECE_TOKENS)]))
        return context.get_dummy_value()

    return types.void(*arguments, *constants), generate


@intrinsic(prefer_literal=True)
def add_weighted(
    typing,
    sums,
    first,
    values,
    here,
    coming,
    token_size,
    weights,
    to,
    head_dim,
    group,
    num_tokens,
):
    """The values of `num_tokens` tokens, 4 or 1, from `here` on, times `weights` from `to` on, are
    added to a group's sums from `first` on.
    """
    arguments = (sums, first, values, here, coming, token_size, weights, to)
    constants = (head_dim, group, num_tokens)
    head_dim, group, num_tokens = (constant.literal_value for constant in constants)
    lanes = math.gcd(head_dim, LANES)

    def generate(context, builder, signature, arguments):
        address, at = _addresses(context, builder, signature, arguments), builder.gep
        sums, weights = address(0, 1), address(6, 7)
        read = _reader(builder, signature, arguments, address, num_tokens, lanes)
        for first in range(0, group, GROUP_AT_ONCE):
            members = range(first, min(first + GROUP_AT_ONCE, group))
            spread = {
                (g, t): vectors.broadcast(
                    builder, builder.load(at(weights, [INT(g * PIECE_TOKENS + t)])), lanes
                )
                for g in members
                for t in range(num_tokens)
            }
            for d in range(0, head_dim, lanes):
                parts = read(d)
                for g in members:
                    place = at(sums, [INT(g * head_dim + d)])
                    total = vectors.load(builder, place, lanes=lanes)
                    for t, part in enumerate(parts):
                        total = vectors.multiply_add(builder, spread[g, t], part, total)
                    vectors.store(builder, total, place)
        return context.get_dummy_value()

    return types.void(*arguments, *constants), generate


def _addresses(context, builder, signature, arguments):
    """The address in array `i` of the element that argument `j` counts to."""

    def address(i, j):
        array = context.make_array(signature.args[i])(context, builder, arguments[i])
        return builder.gep(array.data, [arguments[j]])

    return address


def _reader(builder, signature, arguments, address, num_tokens: int, lanes: int):
    """What reads each token's values from `d` on, and asks for the cache lines that come."""
    kind, at = signature.args[2].dtype, builder.gep
    offsets = [builder.mul(arguments[5], INT(t)) for t in range(num_tokens)]
    here, ahead = ([at(address(2, i), [offset]) for offset in offsets] for i in (3, 4))
    line = CACHE_LINE_BYTES * 8 // kind.bitwidth

    def read(d: int):
        parts = []
        for token, coming in zip(here, ahead, strict=True):
            if d % line == 0:
                vectors.prefetch_line(builder, at(coming, [INT(d)]), level=2)
            parts.append(vectors.load(builder, at(token, [INT(d)]), kind, lanes))
        return parts

    return read
