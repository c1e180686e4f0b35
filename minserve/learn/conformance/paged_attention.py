"""The rules of `paged_attention`, each tried on the smallest cache, against a dense oracle.

The oracle never sees a block: it is given the keys and values in one piece, loops over heads, and
computes in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

Attend = Callable[[Tensor, Tensor, Tensor, list[int], int], Tensor]
GARBAGE = 50.0  # what slots hold that nobody may look at


class _Case:
    """A small cache in which `keys` and `values` `[tokens, kv_heads, head_dim]` are paged out."""

    def __init__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        table: list[int],
        block_size: int,
        num_blocks: int = 4,
    ) -> None:
        self.query, self.keys, self.values = query, keys, values
        self.table, self.block_size = table, block_size
        shape = (num_blocks, block_size, *keys.shape[1:])
        self.key_cache = torch.full(shape, GARBAGE)
        self.value_cache = torch.full(shape, GARBAGE)
        for position in range(len(keys)):
            block, slot = table[position // block_size], position % block_size
            self.key_cache[block, slot] = keys[position]
            self.value_cache[block, slot] = values[position]
        self.lines = [
            f"query {list(query.shape)}, key_cache {list(shape)}, block_size {block_size}",
            f"paged_attention(query, key_cache, value_cache, block_table={table}, "
            f"num_context_tokens={len(keys)})",
        ]

    def run(self, attend: Attend) -> Tensor:
        """The candidate's answer, checked to be a tensor of the right shape that is finite."""
        query, keys, values = (t.clone() for t in (self.query, self.key_cache, self.value_cache))
        with showing(self.lines):
            out = attend(query, keys, values, list(self.table), len(self.keys))
        if not isinstance(out, Tensor) or out.shape != self.query.shape:
            found = f"shape {list(out.shape)}" if isinstance(out, Tensor) else returned(out)
            self.fail(f"a tensor of shape {list(self.query.shape)} is wanted, not {found}")
        before = (self.query, self.key_cache, self.value_cache)
        if not all(map(torch.equal, (query, keys, values), before)):
            self.fail("query and caches belong to the engine; one of them was changed")
        if not out.isfinite().all():
            self.fail(f"the result is not finite: {_short(out)}")
        return out

    def oracle(self) -> Tensor:
        """Dense attention, one head at a time, in float64."""
        num_heads, head_dim = self.query.shape
        group = num_heads // self.keys.shape[1]
        out = []
        for head in range(num_heads):
            keys, values = (x[:, head // group].double() for x in (self.keys, self.values))
            scores = keys @ self.query[head].double() / head_dim**0.5
            out.append(scores.softmax(0) @ values)
        return torch.stack(out)

    def check(self, attend: Attend, why: str) -> None:
        """The candidate's answer must be the oracle's, but for rounding."""
        out, right = self.run(attend), self.oracle()
        if not torch.allclose(out.double(), right, rtol=1e-3, atol=1e-4):
            self.fail(f"{why}: {_difference(right, out)}")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)


def _difference(right: Tensor, out: Tensor) -> str:
    """Both results if they are short, else the number that is furthest off, and where it is."""
    if right.numel() <= 6:
        return f"{_short(right)} expected, got {_short(out)}"
    head, place = divmod(int((right - out).abs().argmax()), right.shape[-1])
    wanted, got = right[head, place].item(), out[head, place].item()
    return f"head {head}, place {place}: {wanted:.3f} expected, got {got:.3f}"


def _short(tensor: Tensor) -> str:
    return str([round(value, 2) for value in tensor.flatten().tolist()][:6])


def _numbered(num_tokens: int, kv_heads: int = 1, head_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Keys of zeros, so that every position counts alike; position p's value is p + 1."""
    keys = torch.zeros(num_tokens, kv_heads, head_dim)
    values = torch.arange(1.0, num_tokens + 1)[:, None, None].expand(-1, kv_heads, head_dim)
    return keys, values.clone()


def _shape(attend: Attend) -> None:
    for heads, head_dim in ((1, 1), (2, 3)):
        keys, values = _numbered(1, 1, head_dim)
        _Case(torch.ones(heads, head_dim), keys + 1, values, [0], 1).run(attend)


def _follows_the_table(attend: Attend) -> None:
    for table in ([0], [2], [2, 0], [1, 3, 0]):
        keys, values = _numbered(len(table))
        case = _Case(torch.ones(1, 1), keys, values, table, 1)
        case.check(attend, f"the context lies in blocks {table}, in this order")


def _nothing_beyond_the_context(attend: Attend) -> None:
    for table, tokens in (([0], 1), ([1, 0], 3), ([2, 1, 0], 2)):
        keys, values = _numbered(tokens)
        case = _Case(torch.ones(1, 1), keys, values, table, 2)
        case.check(
            attend,
            f"{len(table)} blocks of 2 have {2 * len(table)} slots, of which {tokens} hold the "
            f"context; the others hold somebody's leftovers ({GARBAGE:g})",
        )


def _weighs_by_score(attend: Attend) -> None:
    keys = torch.tensor([1.0, 0.0])[:, None, None]
    values = torch.tensor([1.0, 0.0])[:, None, None]
    case = _Case(torch.ones(1, 1), keys, values, [0], 2)
    case.check(attend, "scores 1 and 0 weigh e : 1, values are 1 and 0")


def _scales(attend: Attend) -> None:
    keys = torch.stack([torch.ones(1, 4), torch.zeros(1, 4)])
    values = torch.stack([torch.ones(1, 4), torch.zeros(1, 4)])
    case = _Case(torch.ones(1, 4), keys, values, [0], 2)
    case.check(attend, "head_dim is 4, so the score 4 becomes 4 / 2")


def _groups_of_heads(attend: Attend) -> None:
    for heads, kv_heads in ((2, 2), (2, 1), (4, 2)):
        keys = torch.zeros(1, kv_heads, 1)
        values = torch.arange(1.0, kv_heads + 1)[None, :, None]
        case = _Case(torch.ones(heads, 1), keys, values, [0], 1)
        group = heads // kv_heads
        pairs = ", ".join(f"{h} reads {h // group}" for h in range(heads))
        case.check(attend, f"with {heads} heads over {kv_heads} KV heads, head {pairs}")


def _large_scores(attend: Attend) -> None:
    keys = torch.tensor([200.0, 0.0])[:, None, None]
    values = torch.tensor([1.0, 0.0])[:, None, None]
    case = _Case(torch.ones(1, 1), keys, values, [0], 2)
    case.check(attend, "scores 200 and 0: exp(200) overflows float32, a softmax need not")


def _as_dense(attend: Attend) -> None:
    random = torch.Generator().manual_seed(0)
    for tokens, block_size, heads, kv_heads, head_dim in (
        (1, 1, 1, 1, 2),
        (5, 2, 2, 1, 4),
        (11, 4, 4, 2, 8),
        (64, 16, 9, 3, 16),
    ):
        num_blocks = -(-tokens // block_size)
        table = torch.randperm(num_blocks + 2, generator=random)[:num_blocks].tolist()
        keys, values = torch.randn(2, tokens, kv_heads, head_dim, generator=random)
        query = torch.randn(heads, head_dim, generator=random)
        case = _Case(query, keys, values, table, block_size, num_blocks + 2)
        case.check(attend, "random numbers, compared with dense attention")


_STEP = "attend"
RULES = (
    Rule(
        "shape",
        _STEP,
        "One vector per query head comes back, and nothing that was passed in is changed.",
        "query is [num_heads, head_dim], and so is the result.",
        _shape,
    ),
    Rule(
        "follows_the_table",
        _STEP,
        "The context is read through the block table, in the table's order.",
        "Position p lies in block_table[p // block_size], slot p % block_size.",
        _follows_the_table,
    ),
    Rule(
        "nothing_beyond_the_context",
        _STEP,
        "Slots at or beyond num_context_tokens are not looked at, not even a little.",
        "Cut keys and values to [:num_context_tokens]. A score of 0 is not enough: exp(0) is 1.",
        _nothing_beyond_the_context,
    ),
    Rule(
        "weighs_by_score",
        _STEP,
        "The weights are a softmax over the context: positive, adding up to 1.",
        "softmax over the tokens, not over the heads or the head dimension.",
        _weighs_by_score,
    ),
    Rule(
        "scales",
        _STEP,
        "Scores are divided by the square root of head_dim.",
        "head_dim ** 0.5, before the softmax.",
        _scales,
    ),
    Rule(
        "groups_of_heads",
        _STEP,
        "Head h reads KV head h // (num_heads // num_kv_heads): neighbours share.",
        "repeat_interleave keeps neighbours together; repeat does not.",
        _groups_of_heads,
    ),
    Rule(
        "large_scores",
        _STEP,
        "Large scores do not overflow.",
        "Use torch.softmax, or subtract the largest score before exp.",
        _large_scores,
    ),
    Rule(
        "as_dense",
        _STEP,
        "Paging changes where things lie, and never the result.",
        "Gather keys and values into one piece, and compare shapes at each line.",
        _as_dense,
    ),
)

SUITE = Suite(
    "paged_attention",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
block_size 2, block_table [3 0], num_context_tokens = 3

  cache    block 0 [k2  ? ]   block 1 [ ?  ? ]   block 2 [ ?  ? ]   block 3 [k0 k1]

  gather   cache[[3, 0]]       ->  [k0 k1] [k2 ?]
  flatten the first two axes   ->   k0 k1 k2 ?
  cut to the context           ->   k0 k1 k2""",
            pseudocode="""\
keys   = key_cache[block_table], first two axes joined, cut to num_context_tokens
values = the same from value_cache                   both [tokens, num_kv_heads, head_dim]
repeat each KV head for its group of query heads     both [tokens, num_heads, head_dim]
scores = sum over head_dim of query * keys, divided by sqrt(head_dim)   [tokens, num_heads]
weights = softmax of scores over tokens
result = sum over tokens of weights * values                       [num_heads, head_dim]""",
            near_miss="""\
- keys = key_cache[block_table].flatten(0, 1)                       # leftovers included
+ keys = key_cache[block_table].flatten(0, 1)[:num_context_tokens]
- keys = keys.repeat(1, group, 1)                                   # head 1 reads KV head 1
+ keys = keys.repeat_interleave(group, dim=1)                       # head 1 reads KV head 0""",
        )
    },
)
