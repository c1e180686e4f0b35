"""Batching, chunking, preemption and prefix hits change when a token comes, never which one."""

from __future__ import annotations

import random

import pytest
from tiny_llama import generate

from minserve.engine import Engine
from minserve.execution.speculative import DraftProposer, NgramProposer, Speculation
from minserve.execution.torch_executor import TorchExecutor
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching, DynamicBatching, StaticBatching

NUM_REQUESTS = 14
POLICIES = {
    "one at a time": (StaticBatching(1), 128),
    "static": (StaticBatching(4), 128),
    "dynamic": (DynamicBatching(5, max_wait_s=0.0), 128),
    "continuous": (ContinuousBatching(), 256),
    "continuous, chunks of 7": (ContinuousBatching(20, max_running=8, chunk_tokens=7), 128),
    "continuous, preempting": (ContinuousBatching(48, max_running=14), 13),
}


def requests() -> list[Request]:
    """Prompts that share a beginning or not; greedy and seeded; short and long outputs."""
    rng = random.Random(5)
    shared = [rng.randrange(290) for _ in range(45)]
    made = []
    for i in range(NUM_REQUESTS):
        own = [rng.randrange(290) for _ in range(rng.choice([1, 3, 20, 70]))]
        sampling = SamplingParams(
            max_tokens=rng.choice([1, 6, 30]),
            temperature=rng.choice([0.0, 0.8]),
            top_p=rng.choice([1.0, 0.9]),
            seed=i,
            ignore_eos=True,
        )
        made.append(Request(f"r{i}", (shared if i % 2 else []) + own, sampling))
    return made


@pytest.fixture(scope="module")
def expected(tiny_folder):
    """Each request alone, without an engine."""
    executor = TorchExecutor(tiny_folder, num_blocks=16, batch_invariant=True)
    return [
        generate(
            executor, r.prompt_token_ids, range(16), r.sampling.max_tokens, sampling=r.sampling
        )
        for r in requests()
    ]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("policy", "num_blocks"), POLICIES.values(), ids=POLICIES.keys())
def test_tokens_are_those_of_each_request_alone(
    tiny_folder, expected, policy, num_blocks, prefix_caching
):
    executor = TorchExecutor(tiny_folder, num_blocks=num_blocks, batch_invariant=True)
    engine = Engine(executor, policy, prefix_caching=prefix_caching)
    made = requests()
    for request in made:
        engine.submit(request, 0.0)
    now_s = 0.0
    while engine.has_unfinished:
        assert engine.step(now_s), "the engine has work and does none"
        engine.check_integrity()
        now_s += 1.0
    assert [r.output_token_ids for r in made] == expected
    if num_blocks == 13:
        assert sum(r.num_preemptions for r in made) > 0
    if prefix_caching:
        assert sum(r.num_cached_tokens for r in made) > 0


@pytest.mark.parametrize("kind", ["ngram", "draft"])
@pytest.mark.parametrize(
    "name", ["continuous", "continuous, chunks of 7", "continuous, preempting"]
)
def test_guesses_change_no_token(tiny_folder, expected, name, kind):
    policy, num_blocks = POLICIES[name]
    executor = TorchExecutor(tiny_folder, num_blocks=num_blocks, batch_invariant=True)
    if kind == "ngram":
        proposer = NgramProposer(longest=2, shortest=1)
    else:
        proposer = DraftProposer(TorchExecutor(tiny_folder, num_blocks=40), draft_cost=0.0)
    speculation = Speculation(proposer, token_cost=0.0)
    engine = Engine(executor, policy, speculator=speculation)
    made = requests()
    for request in made:
        engine.submit(request, 0.0)
    while engine.has_unfinished:
        assert engine.step(0.0)
        engine.check_integrity()
    assert [r.output_token_ids for r in made] == expected
    assert speculation.num_checks > 0
    if kind == "draft":
        assert speculation.acceptance > 0.5
        assert proposer.pool.num_used == 0
