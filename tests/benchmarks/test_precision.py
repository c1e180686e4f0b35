"""What a cheaper precision costs: float32 beside itself costs nothing, and a worse one more."""

from __future__ import annotations

import pytest

from minserve.benchmarks.precision import CHEAPER, EXACT, compare, logits
from minserve.execution.torch_executor import TorchExecutor
from minserve.models import jit

pytestmark = pytest.mark.skipif(not jit.is_available(), reason="an int8 cache needs numba")


def test_logits_are_those_of_every_place():
    executor = TorchExecutor("nano", num_blocks=8)
    text = list(range(100, 140))
    whole = logits(executor, text)
    assert whole.shape == (40, executor.config.vocab_size)
    assert (whole[:20] - logits(executor, text[:20])).abs().max() < 1e-3


def test_float32_costs_nothing_and_int8_changes_few_words_for_fewer_bytes():
    exact, *cheaper = compare("nano", num_texts=3, num_questions=12)
    assert exact.precision == str(EXACT) and len(cheaper) == len(CHEAPER)
    assert exact.max_error == 0 and exact.num_same == exact.num_questions == 12
    assert exact.same_likeliest == exact.num_places > 300
    for cost in cheaper:
        assert 0 < cost.mean_error < cost.max_error < 3
        # Nano was trained on answers alone: inside a prompt many tokens are about as likely.
        assert cost.same_likeliest > 0.9 * cost.num_places
        assert cost.num_right >= exact.num_right - 1
        assert min(cost.weight_bytes / exact.weight_bytes, cost.token_s) > 0
    by_name = {cost.precision: cost for cost in cheaper}
    weights, cache = by_name["float32, int8 weights"], by_name["float32, int8 KV"]
    # A checkpoint of 16-bit values is kept in as many bits.
    assert weights.weight_bytes * 2 < 1.04 * exact.weight_bytes
    assert cache.kv_bytes_per_token * 4 < 1.04 * exact.kv_bytes_per_token
    assert weights.num_same == cache.num_same == 12
