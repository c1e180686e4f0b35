"""Penalties, min-p, min_tokens and log-probabilities agree with transformers' own processors."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from minserve.models import sampling as module
from minserve.models.sampling import _penalise, logprobs, sample
from minserve.request import SamplingParams

HISTORY = (3, 7, 7, 1, 7, 2, 1)  # the last four are output


def penalised(logits, **params):
    changed = logits.clone()
    _penalise(changed, [(0, SamplingParams(**params), HISTORY, 4)])
    return changed


def test_the_repetition_penalty_is_that_of_transformers():
    logits = torch.randn(1, 12)
    right = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([HISTORY]), logits)
    assert torch.allclose(penalised(logits, repetition_penalty=1.7), right)


def test_presence_and_frequency_count_output_tokens_alone():
    logits = torch.randn(1, 12)
    right = logits.clone()
    for token, count in Counter(HISTORY[3:]).items():
        right[0, token] -= 0.5 + 0.25 * count
    changed = penalised(logits, presence_penalty=0.5, frequency_penalty=0.25)
    assert torch.allclose(changed, right)


def test_min_p_keeps_what_transformers_keeps():
    logits = torch.randn(1, 20) * 2
    kept = MinPLogitsWarper(0.2)(torch.tensor([[0]]), logits).isfinite().nonzero()[:, 1].tolist()
    rows = [SamplingParams(temperature=1.0, min_p=0.2, seed=seed) for seed in range(4000)]
    assert set(sample(logits.expand(4000, -1), rows, [0] * 4000)) == set(kept)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_ends_the_output_cannot_be_chosen_before_min_tokens(temperature):
    logits = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    params = SamplingParams(min_tokens=2, stop_token_ids=(3,), temperature=temperature)
    held, free = (sample(logits, [params], [at], (), frozenset({2}))[0] for at in (1, 2))
    assert held in (0, 1) and free in (2, 3)


def test_logprobs_are_the_models_own_whatever_sampling_does():
    logits = torch.randn(2, 50)
    got = logprobs(logits, [4, 9], [0, 3])
    right = torch.log_softmax(logits, -1)
    assert got[0].top == () and got[0].logprob == pytest.approx(right[0, 4].item())
    values, ids = right[1].topk(3)
    assert [i for i, _ in got[1].top] == ids.tolist()
    assert [v for _, v in got[1].top] == pytest.approx(values.tolist())


def test_a_draw_from_few_candidates_and_all_others_follows_the_distribution(monkeypatch):
    monkeypatch.setattr(module, "NUM_CANDIDATES", 2)
    n, probs = 20_000, torch.softmax(torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, 0.9]), -1)
    rows = [SamplingParams(temperature=1.0, seed=seed) for seed in range(n)]
    counts = Counter(sample(probs.log().expand(n, -1), rows, [0] * n))
    for token, p in enumerate(probs.tolist()):
        assert abs(counts[token] - n * p) <= 5 * math.sqrt(n * p * (1 - p))
