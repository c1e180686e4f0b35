"""What an engine is measured for: that a pair of prompts shares what it says, and parts add up."""

from __future__ import annotations

import random

import pytest
from tiny_llama import write_checkpoint

from minserve.benchmarks.engine import SAMPLED, prefix_hit, step_shares
from minserve.execution.torch_executor import TorchExecutor


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    return TorchExecutor(write_checkpoint(tmp_path_factory.mktemp("tiny")), num_blocks=128)


def test_exactly_the_shared_tokens_are_not_computed_and_every_pair_is_cold_at_first(executor):
    rng = random.Random(0)
    for _ in range(2):
        pair = prefix_hit(executor, rng, num_shared=48, num_own=20)
        assert pair.num_cached_tokens == 48
        assert min(pair.cold_s, pair.hit_s) > 0


def test_parts_of_a_step_are_shares_of_its_time(executor):
    found = step_shares(executor, random.Random(0), SAMPLED, batch_size=4, num_steps=5)
    assert found.num_steps == 5
    assert 0.5 < sum(found.shares.values()) <= 1 + 1e-6
    assert 0 < found.bookkeeping < 1
