"""Prefix-aware routing: the rules of choosing, and what it does to the hit rate of real caches."""

import random

import pytest

from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.execution.simulated import SimulatedExecutor
from minserve.kv.prefix import block_hashes, root_hash
from minserve.request import Request, SamplingParams
from minserve.routing.prefix import PrefixRouter
from minserve.simulator.fleet import Fleet

SIZE = 16


def keys_of(tokens, salt=""):
    return block_hashes(tokens, root_hash("model", salt), SIZE)


PROMPT = list(range(4 * SIZE))


def test_the_longest_cached_prefix_attracts():
    router = PrefixRouter(100, SIZE)
    router.sent(keys_of(PROMPT[: 2 * SIZE]), "short")
    router.sent(keys_of(PROMPT), "long")
    assert router.choose(keys_of(PROMPT), 64, {"none": 0, "short": 0, "long": 0}) == "long"


def test_a_replica_with_more_queued_tokens_than_the_prefix_saves_is_passed_over():
    router = PrefixRouter(100, SIZE)
    router.sent(keys_of(PROMPT), "a")
    assert router.choose(keys_of(PROMPT), 64, {"a": 63, "b": 0}) == "a"
    assert router.choose(keys_of(PROMPT), 64, {"a": 65, "b": 0}) == "b"


def test_another_tenants_prefix_attracts_nobody():
    router = PrefixRouter(100, SIZE)
    router.sent(keys_of(PROMPT, "kestrel"), "a")
    assert router.num_cached_tokens(keys_of(PROMPT, "heron"), "a") == 0
    assert router.choose(keys_of(PROMPT, "heron"), 64, {"a": 0, "b": 0}) == "b"
    assert router.choose(keys_of(PROMPT, "kestrel"), 64, {"a": 0, "b": 0}) == "a"


def test_unknown_prefixes_spread_over_idle_replicas():
    router = PrefixRouter(100, SIZE)
    chosen = []
    for number in range(6):
        keys = keys_of([number] * 64)
        chosen.append(router.choose(keys, 64, dict.fromkeys("abc", 0)))
        router.sent(keys, chosen[-1])
    assert sorted(chosen) == list("aabbcc")


def test_what_a_cache_cannot_hold_is_forgotten_oldest_prompt_and_last_block_first():
    router = PrefixRouter(6, SIZE)
    old, new = keys_of([1] * 64), keys_of([2] * 64)
    router.sent(old, "a")
    router.sent(new, "a")
    assert router.num_known_blocks("a") == 6
    assert router.num_cached_tokens(new, "a") == 64
    assert router.num_cached_tokens(old, "a") == 32


def test_a_replica_that_has_gone_is_forgotten():
    router = PrefixRouter(100, SIZE)
    router.sent(keys_of(PROMPT), "a")
    router.forget("a")
    assert router.num_cached_tokens(keys_of(PROMPT), "a") == 0


def hit_rate(num_replicas, num_blocks, choose):
    """Of real schedulers and caches, on the virtual clock, over prefixes that come back."""
    loop = EventLoop(VirtualClock())
    fleet = Fleet(
        loop,
        lambda: Engine(SimulatedExecutor(num_blocks=num_blocks, block_size=SIZE)),
        num_replicas,
        route=choose,
    )
    rng = random.Random(7)
    prefixes = [[1000 + number] * (8 * SIZE) for number in range(24)]  # 192 blocks in all
    for number in range(480):
        tokens = [*rng.choice(prefixes), *(rng.randrange(900) for _ in range(20))]
        sampling = SamplingParams(max_tokens=4)
        fleet.send(Request(str(number), tuple(tokens), sampling, arrival_s=number * 0.5))
    loop.run()
    caches = [engine.prefix_cache for engine in fleet.engines]
    queried = sum(cache.num_queried_tokens for cache in caches)
    return sum(cache.num_hit_tokens for cache in caches) / queried


@pytest.fixture
def prefix_route():
    router = PrefixRouter(128, SIZE)

    def route(request, loads):
        keys = keys_of(request.prompt_token_ids, request.cache_salt)
        tokens = {index: load * request.num_prompt_tokens for index, load in enumerate(loads)}
        chosen = router.choose(keys, request.num_prompt_tokens, tokens)
        router.sent(keys, chosen)
        return chosen

    return route


def test_two_caches_together_hit_nearly_like_one_of_their_size_and_random_ones_do_not(prefix_route):
    """The working set is 1.5 times what one of the two replicas holds."""
    rng = random.Random(3)
    single = hit_rate(1, 256, None)
    routed = hit_rate(2, 128, prefix_route)
    at_random = hit_rate(2, 128, lambda request, loads: rng.randrange(2))
    assert routed >= 0.95 * single, (routed, single)
    assert at_random <= 2 / 3 * single, (at_random, single)
