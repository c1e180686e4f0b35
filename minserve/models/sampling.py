"""Choosing the next token: penalties, temperature, top-k, top-p and min-p for a batch of rows.

In this order, and only for the rows that ask for it:

1. `min_tokens`: the tokens that would end the output are ruled out.
2. Penalties: repetition, then presence and frequency.
3. Greedy rows take the likeliest token; that is all that they cost.
4. Temperature, then top-k, then top-p of what that left, then min-p.
5. One draw from what remains.

The noise of a token is a hash of (seed, output position, token id): no generator with a state, so
neighbours, batching, preemption and speculation cannot shift it. With Gumbel noise, the candidate
whose log-probability plus noise is largest is a draw from the distribution (Gumbel, 1954).

So a guessed token is checked by choosing as if it had not been guessed: it stands if it is what
the model chooses there with that position's noise. The output is the very same as without guesses,
not only one of the same distribution, as rejection sampling gives (Leviathan et al., 2023); and a
draft model that draws with the same noise agrees as often as is possible without talking to the
other (Gumbel coupling: Daliri et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from minserve.events import TokenLogprob
from minserve.execution.executor import Row, accepted
from minserve.request import SamplingParams

NUM_CANDIDATES = 64
"""Enough for almost every filter: sorting a whole vocabulary takes some forty times longer."""


def sample_rows(
    logits: Tensor, rows: Sequence[Row], eos_token_ids: frozenset[int] = frozenset()
) -> tuple[list[tuple[int, ...]], list[tuple[TokenLogprob, ...]]]:
    """The next tokens of rows that sample, and the log-probabilities of those that ask for them.

    logits: `[num_places, vocab]` float32; a row with d draft tokens has d + 1 places, from the
    one before its first guess on. A row gets a token, and one more for each guess that was right.
    """
    places = [(row, n) for row in rows for n in range(row.num_draft_tokens + 1)]
    chosen = sample(
        logits,
        [row.sampling for row, _ in places],
        [row.output_position + n for row, n in places],
        [row.history and row.history + row.draft_token_ids[:n] for row, n in places],
        eos_token_ids,
    )
    tokens: list[tuple[int, ...]] = []
    asked: list[int] = []
    counts: list[int] = []
    start = 0
    for row in rows:
        end = start + row.num_draft_tokens + 1
        tokens.append(accepted(row.draft_token_ids, chosen[start:end]))
        if row.sampling.logprobs is not None:
            asked += range(start, start + len(tokens[-1]))
            counts += [row.sampling.logprobs] * len(tokens[-1])
        start = end
    each = iter(logprobs(logits[asked], [chosen[i] for i in asked], counts) if asked else ())
    return tokens, [
        () if row.sampling.logprobs is None else tuple(next(each) for _ in right)
        for row, right in zip(rows, tokens, strict=True)
    ]


def sample(
    logits: Tensor,
    sampling: Sequence[SamplingParams],
    output_positions: Sequence[int],
    histories: Sequence[Sequence[int]] = (),
    eos_token_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """The next token of each row.

    logits: `[num_rows, vocab]` float32, which are left as they are. histories: the tokens of prompt
    and output so far, for rows that have penalties; others may have none.
    """
    held = [i for i, s in enumerate(sampling) if output_positions[i] < s.min_tokens]
    penalised = [i for i, s in enumerate(sampling) if s.has_penalties]
    if held or penalised:
        logits = logits.clone()
    for i in held:
        ends = {*sampling[i].stop_token_ids, *(() if sampling[i].ignore_eos else eos_token_ids)}
        logits[i, [end for end in ends if 0 <= end < logits.shape[1]]] = -torch.inf
    if penalised:
        changed = [(i, sampling[i], histories[i], output_positions[i]) for i in penalised]
        _penalise(logits, changed)
    drawn = [i for i, s in enumerate(sampling) if s.temperature > 0]
    if not drawn:
        return logits.argmax(-1).tolist()
    chosen = [0] * len(sampling)
    greedy = [i for i, s in enumerate(sampling) if s.temperature == 0]
    for i, token in zip(greedy, logits[greedy].argmax(-1).tolist(), strict=True):
        chosen[i] = token
    rows = [(sampling[i], output_positions[i]) for i in drawn]
    for i, token in zip(drawn, _draw(logits if not greedy else logits[drawn], rows), strict=True):
        chosen[i] = token
    return chosen


def logprobs(logits: Tensor, chosen: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """The log-probability of each row's `chosen` token and of its `counts` likeliest tokens.

    logits: `[num_rows, vocab]`, as the model gave them: nothing that sampling does to them shows.
    """
    of_all = torch.log_softmax(logits, -1)
    tokens = torch.tensor(chosen, device=logits.device)[:, None]
    own = of_all.gather(-1, tokens).squeeze(-1).tolist()
    values, ids = of_all.topk(min(max(counts), logits.shape[1]), -1)
    tops = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for logprob, count, (ids, values) in zip(own, counts, tops, strict=True)
    ]


def _penalise(
    logits: Tensor, rows: Sequence[tuple[int, SamplingParams, Sequence[int], int]]
) -> None:
    """Change `logits` in place. rows: (row, sampling, history, how many of it are output)."""
    vocab, device = logits.shape[1], logits.device
    flat = logits.view(-1)

    def count(parts: list[tuple[int, Sequence[int]]]) -> tuple[Tensor, Tensor, Tensor]:
        """Places in `flat` of the tokens that occur, the row of each, and how often it does."""
        keys = [torch.tensor(tokens, dtype=torch.int64) + i * vocab for i, tokens in parts]
        places, counts = torch.cat(keys).to(device).unique(return_counts=True)
        return places, places // vocab, counts

    def of_row(values: list[float]) -> Tensor:
        table = torch.zeros(len(logits), dtype=logits.dtype, device=device)
        table[[i for i, *_ in rows]] = torch.tensor(values, dtype=logits.dtype, device=device)
        return table

    places, row, _ = count([(i, history) for i, _, history, _ in rows])
    penalty, values = of_row([s.repetition_penalty for _, s, _, _ in rows])[row], flat[places]
    flat[places] = torch.where(values > 0, values / penalty, values * penalty)
    places, row, counts = count([(i, h[len(h) - num_out :]) for i, _, h, num_out in rows])
    flat[places] -= of_row([s.presence_penalty for _, s, _, _ in rows])[row]
    flat[places] -= of_row([s.frequency_penalty for _, s, _, _ in rows])[row] * counts


def _draw(logits: Tensor, rows: list[tuple[SamplingParams, int]]) -> list[int]:
    def column(values: list, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)[:, None]

    vocab = logits.shape[1]
    top_k = column([s.top_k if 0 < s.top_k < vocab else vocab for s, _ in rows])
    top_p = column([s.top_p for s, _ in rows], torch.float64)
    min_p = column([math.log(s.min_p) if s.min_p else -torch.inf for s, _ in rows], logits.dtype)
    keys = _mix(_mix(column([_signed(s.seed) for s, _ in rows])) ^ column([p for _, p in rows]))
    # NOTE: log_softmax sums each row by itself, so a row's bits do not depend on the others.
    temperature = column([s.temperature for s, _ in rows], logits.dtype)
    logprobs = torch.log_softmax(logits / temperature, -1)

    chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    filtered = ((top_k < vocab) | (top_p < 1) | (min_p > -torch.inf)).squeeze(-1)
    free, todo = (~filtered).nonzero().squeeze(-1), filtered.nonzero().squeeze(-1)
    if len(free):
        chosen[free] = _draw_freely(logprobs[free], keys[free])
    for num_candidates in (min(NUM_CANDIDATES, vocab), vocab):
        if len(todo):
            each: tuple[Tensor, ...] = (logprobs, top_k, top_p, min_p, keys)
            if len(todo) < len(rows):
                each = tuple(values[todo] for values in each)
            chosen[todo], is_exact = _draw_among(num_candidates, *each)
            todo = todo[~is_exact]
    return chosen.tolist()


def _draw_among(
    num_candidates: int,
    logprobs: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw from the `num_candidates` likeliest tokens of each row.

    Returns tokens `[n]` and `[n]` bool: whether everything that the filters keep was among them.
    """
    vocab = logprobs.shape[1]
    values, ids = logprobs.topk(num_candidates, -1)  # descending
    # Every filter keeps everything at or above a value, so that equal tokens share their fate.
    kth = values.gather(-1, (top_k - 1).clamp(max=num_candidates - 1))
    probs = values.double().exp() * (values >= kth)
    mass = torch.where(top_k < vocab, probs.sum(-1, keepdim=True), 1.0)
    before = probs.cumsum(-1) - probs
    # The smallest set that reaches top_p: its last token is the last with less than that before it.
    last = ((before < top_p * mass) & (values >= kth)).sum(-1, keepdim=True).clamp(min=1) - 1
    least = torch.where(top_p < 1, values.gather(-1, last).maximum(kth), kth)
    least = least.maximum(values[:, :1] + min_p)
    exact = (values[:, -1:] < least).squeeze(-1) | (num_candidates == vocab)
    scores = (values + gumbel(keys, ids)).masked_fill(values < least, -torch.inf)
    return ids.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1), exact


def _draw_freely(logprobs: Tensor, keys: Tensor) -> Tensor:
    """Draw from all tokens, `[n]`, while making noise for few: the likeliest of each row, and all
    others together as if they were one token. Only where that one wins they are told apart.

    The largest of several Gumbel variables is itself one, at the sum of their probabilities, and
    says nothing of which of them it was (max-stability), so this is exact.
    """
    vocab = logprobs.shape[1]
    values, ids = logprobs.topk(min(NUM_CANDIDATES, vocab), -1)
    best, at = (values + gumbel(keys, ids)).max(-1, keepdim=True)
    chosen = ids.gather(-1, at).squeeze(-1)
    if vocab > NUM_CANDIDATES:
        mass_of_others = (1 - values.double().exp().sum(-1, keepdim=True)).clamp(min=0)
        others = mass_of_others.log() + gumbel(keys, ids.new_tensor([[-1]]))
        todo = (others > best).squeeze(-1).nonzero().squeeze(-1)
        if len(todo):
            noise = gumbel(keys[todo], torch.arange(vocab, device=ids.device))
            scores = (logprobs[todo] + noise).scatter(-1, ids[todo], -torch.inf)
            chosen[todo] = scores.argmax(-1)
    return chosen


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
