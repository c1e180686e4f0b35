"""What decoding attention spends its time on, in vectors: scores of a few tokens, and their sum.

Both read a few tokens' values of one KV head where they lie in the cache, once, for all query heads
that share it. `group` query heads and `head_dim` are constants of the code.
"""

from __future__ import annotations

import math
from functools import cache

from numba import types
from numba.extending import intrinsic

from minserve.models import vectors
from minserve.models.vectors import INT, LANES

CACHE_LINE_BYTES = 64
GROUP_AT_ONCE = 4
"""So many query heads' sums, for four tokens each, fit the registers."""


@cache
def scores(head_dim: int, group: int, stride: int, num_tokens: int):
    """An intrinsic: the products of a group's queries with the keys of 4 tokens, or of 1.

    `(queries, first query's place, keys, first key's place, place of keys to ask memory for,
    token_size, scores, first score's place)`, all arrays flat. A query's scores lie together, the
    next one's `stride` later; a token's keys lie `token_size` after those of the token before.
    """
    lanes = math.gcd(head_dim, LANES)

    def generate(context, builder, signature, arguments):
        flat = _flat(context, builder, signature, arguments)
        queries, found, at = flat(0, 1), flat(6, 7), builder.gep
        read = _reader(builder, signature, arguments, flat, num_tokens, lanes)
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
                vectors.store(builder, total, at(found, [INT(g * stride)]))
        return context.get_dummy_value()

    return _intrinsic(generate)


@cache
def weighted_sum(head_dim: int, group: int, stride: int, num_tokens: int):
    """An intrinsic: add the values of 4 tokens, or of 1, times their weights to a group's sums.

    `(sums, first sum's place, values, first value's place, place of values to ask memory for,
    token_size, weights, first weight's place)`, laid out as for `scores`.
    """
    lanes = math.gcd(head_dim, LANES)

    def generate(context, builder, signature, arguments):
        flat = _flat(context, builder, signature, arguments)
        sums, weights, at = flat(0, 1), flat(6, 7), builder.gep
        read = _reader(builder, signature, arguments, flat, num_tokens, lanes)
        for first in range(0, group, GROUP_AT_ONCE):
            members = range(first, min(first + GROUP_AT_ONCE, group))
            spread = {
                (g, t): vectors.broadcast(
                    builder, builder.load(at(weights, [INT(g * stride + t)])), lanes
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

    return _intrinsic(generate)


def _flat(context, builder, signature, arguments):
    """The address in array `i` of the element that argument `j` counts to."""

    def address(i, j):
        array = context.make_array(signature.args[i])(context, builder, arguments[i])
        return builder.gep(array.data, [arguments[j]])

    return address


def _reader(builder, signature, arguments, flat, num_tokens: int, lanes: int):
    """Of each token the values from `d` on; of as many tokens elsewhere the cache lines are asked
    for, one by one beside the reads: in one go they would hold these up.
    """
    kind, at = signature.args[2].dtype, builder.gep
    offsets = [builder.mul(arguments[5], INT(t)) for t in range(num_tokens)]
    here, ahead = ([at(flat(2, i), [offset]) for offset in offsets] for i in (3, 4))
    line = CACHE_LINE_BYTES * 8 // kind.bitwidth

    def read(d: int):
        parts = []
        for token, coming in zip(here, ahead, strict=True):
            if d % line == 0:
                vectors.prefetch_line(
                    builder,
                    at(coming, [INT(d)]),
                    level=2,
                )
            parts.append(vectors.load(builder, at(token, [INT(d)]), kind, lanes))
        return parts

    return read


def _intrinsic(generate):
    @intrinsic
    def made(typing, ours, ours_at, cached, cached_at, ahead_at, token_size, rest, rest_at):
        arguments = (ours, ours_at, cached, cached_at, ahead_at, token_size, rest, rest_at)
        return types.void(*arguments), generate

    return made
