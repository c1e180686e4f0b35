"""Choosing the next token: greedy, or seeded temperature, top-k and top-p, for a batch of rows.

The noise of a token is a hash of (seed, output position, token id): no generator with a state, so
neighbours, batching, preemption and speculation cannot shift it. With Gumbel noise, the candidate
whose log-probability plus noise is largest is a draw from the distribution (Gumbel 1954).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minserve.request import SamplingParams

NUM_CANDIDATES = 64
"""Enough for almost every filter: sorting a whole vocabulary takes some forty times longer."""


def sample(logits: Tensor, sampling: Sequence[SamplingParams], output_positions: Sequence[int]):
    """The next token of each row.

    logits: `[num_rows, vocab]` float32. Returns a list of num_rows token ids. Greedy rows take an
    argmax and nothing more. Top-k comes before top-p, which sums over what top-k left.
    """
    chosen = logits.argmax(-1).tolist()
    drawn = [i for i, s in enumerate(sampling) if s.temperature > 0]
    if drawn:
        rows = [(sampling[i], output_positions[i]) for i in drawn]
        for i, token in zip(drawn, _draw(logits[drawn], rows), strict=True):
            chosen[i] = token
    return chosen


def _draw(logits: Tensor, rows: list[tuple[SamplingParams, int]]) -> list[int]:
    def column(values: list, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)[:, None]

    vocab = logits.shape[1]
    top_k = column([s.top_k if 0 < s.top_k < vocab else vocab for s, _ in rows])
    top_p = column([s.top_p for s, _ in rows], torch.float64)
    keys = _mix(_mix(column([_signed(s.seed) for s, _ in rows])) ^ column([p for _, p in rows]))
    # NOTE: log_softmax sums each row by itself, so a row's bits do not depend on the others.
    temperature = column([s.temperature for s, _ in rows], logits.dtype)
    logprobs = torch.log_softmax(logits / temperature, -1)

    chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    filtered = ((top_k < vocab) | (top_p < 1)).squeeze(-1)
    everything = torch.arange(vocab, device=logits.device)
    free = ~filtered
    chosen[free] = (logprobs[free] + gumbel(keys[free], everything)).argmax(-1)
    todo = filtered.nonzero().squeeze(-1)
    for num_candidates in (min(NUM_CANDIDATES, vocab), vocab):
        if len(todo):
            chosen[todo], exact = _draw_among(
                logprobs[todo], top_k[todo], top_p[todo], keys[todo], num_candidates
            )
            todo = todo[~exact]
    return chosen.tolist()


def _draw_among(
    logprobs: Tensor, top_k: Tensor, top_p: Tensor, keys: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """Draw from the `num_candidates` likeliest tokens of each row.

    Returns tokens `[n]` and `[n]` bool: whether everything that the filters keep was among them.
    """
    vocab = logprobs.shape[1]
    values, ids = logprobs.topk(num_candidates, -1)  # descending
    # Both filters keep everything at or above a value, so that equal tokens share their fate.
    kth = values.gather(-1, (top_k - 1).clamp(max=num_candidates - 1))
    probs = values.double().exp() * (values >= kth)
    mass = torch.where(top_k < vocab, probs.sum(-1, keepdim=True), 1.0)
    before = probs.cumsum(-1) - probs
    # The smallest set that reaches top_p: its last token is the last with less than that before it.
    last = ((before < top_p * mass) & (values >= kth)).sum(-1, keepdim=True).clamp(min=1) - 1
    least = torch.where(top_p < 1, values.gather(-1, last).maximum(kth), kth)
    exact = (values[:, -1:] < least).squeeze(-1) | (num_candidates == vocab)
    scores = (values + gumbel(keys, ids)).masked_fill(values < least, -torch.inf)
    return ids.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1), exact


def gumbel(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise `[n, m]` float64 for keys `[n, 1]` and token ids `[n or 1, m]`."""
    bits = _mix(_mix(keys ^ token_ids))
    uniform = (_shift(bits, 11).double() + 0.5) * 2.0**-53  # inside (0, 1), never at its ends
    return -(-uniform.log()).log()


def _mix(x: Tensor) -> Tensor:
    """splitmix64's step (Steele et al. 2014): one int64 to another, one to one. Wraps around."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
