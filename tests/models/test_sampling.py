from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from minserve.models import sampling
from minserve.models.sampling import gumbel, sample
from minserve.request import SamplingParams

LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -3.0])


def draws(params: dict, n: int = 20_000, logits=LOGITS) -> Counter:
    rows = [SamplingParams(seed=i, **params) for i in range(n)]
    return Counter(sample(logits.expand(n, -1), rows, [0] * n))


def expected(probs) -> dict[int, float]:
    return {i: p / sum(probs) for i, p in enumerate(probs) if p > 0}


def softmax(temperature=1.0):
    return torch.softmax(LOGITS.double() / temperature, -1).tolist()


@pytest.mark.parametrize(
    ("params", "probs"),
    [
        ({"temperature": 1.0}, softmax()),
        ({"temperature": 0.5}, softmax(0.5)),
        ({"temperature": 1.0, "top_k": 2}, [*softmax()[:2], 0, 0, 0, 0]),
        # 0.455 + 0.276 = 0.731: the third token is needed to reach 0.75.
        ({"temperature": 1.0, "top_p": 0.75}, [*softmax()[:3], 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [*softmax()[:2], 0, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 1e-9}, [1, 0, 0, 0, 0, 0]),
        # Of the first two, the first alone holds 0.62 of what top-k left.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [1, 0, 0, 0, 0, 0]),
        ({"temperature": 1.0, "top_k": 100}, softmax()),
    ],
)
def test_draws_follow_the_filtered_distribution(params, probs):
    n = 20_000
    counts, want = draws(params, n), expected(probs)
    assert set(counts) <= set(want)
    for token, p in want.items():
        # Five standard deviations.
        assert abs(counts[token] - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1


def test_greedy_takes_the_argmax_and_no_noise(monkeypatch):
    monkeypatch.setattr(sampling, "_draw", None)
    logits = torch.randn(5, 100)
    rows = [SamplingParams(seed=i) for i in range(5)]
    assert sample(logits, rows, range(5)) == logits.argmax(-1).tolist()


def test_a_row_does_not_depend_on_its_neighbours_or_their_number():
    torch.manual_seed(0)
    logits = torch.randn(40, 3000) * 3
    kinds = [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 2.0, "top_k": 500, "top_p": 0.99},
        {},
    ]
    rows = [SamplingParams(seed=i * 7919, **kinds[i % 5]) for i in range(40)]
    positions = [i * 3 for i in range(40)]
    together = sample(logits, rows, positions)
    alone = [sample(logits[i : i + 1], [rows[i]], [positions[i]])[0] for i in range(40)]
    assert together == alone


def test_noise_changes_with_seed_and_position_and_nothing_else():
    logits = torch.zeros(1, 1000)

    def draw(seed, position):
        return sample(logits, [SamplingParams(temperature=1.0, seed=seed)], [position])[0]

    assert draw(1, 0) == draw(1, 0)
    assert len({draw(1, p) for p in range(50)}) > 40
    assert len({draw(s, 0) for s in range(50)}) > 40
    assert draw(-1, 5) == draw(2**64 - 1, 5)  # seeds are taken modulo 2^64


@pytest.mark.parametrize("params", [{"top_k": 300}, {"top_p": 0.999}, {"top_p": 0.5}])
def test_the_fast_path_is_exact(monkeypatch, params):
    """A pre-filter of 64 and one of everything draw the same tokens, ties included."""
    torch.manual_seed(1)
    logits = (torch.randn(30, 2000) * 2).round()  # many equal logits
    rows = [SamplingParams(temperature=1.0, seed=i, **params) for i in range(30)]
    fast = sample(logits, rows, [0] * 30)
    monkeypatch.setattr(sampling, "NUM_CANDIDATES", 2000)
    assert sample(logits, rows, [0] * 30) == fast


def test_gumbel_noise_has_its_mean_and_variance():
    keys = torch.arange(1000)[:, None] * 0x5851F42D4C957F2D
    noise = gumbel(keys, torch.arange(200)[None])
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.05)
