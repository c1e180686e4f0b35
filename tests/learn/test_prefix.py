"""The parts of lesson 4 in an engine: same answers, same reuse, no damage by a wrong part."""

from __future__ import annotations

import random
import textwrap

import pytest
from variants.block_hashes import HASHES_BY_JSON
from variants.prefix_cache import CACHE, CACHE_OF_CHILDREN

from minserve.engine import Engine
from minserve.errors import BlockError
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.checker import load
from minserve.learn.prefix import LeafFirstCache, SaltsPart, block_hashes, install
from minserve.request import Identity, Request, SamplingParams
from minserve.serving.identity import Principal, Salts, Scope


def variant(text: str, name: str):
    return load(name, textwrap.dedent(text))


def crowd(seed: int, count: int = 40) -> list[Request]:
    """Requests whose prompts begin alike in many ways, from few salts."""
    rng = random.Random(seed)
    starts = [[rng.randrange(500) for _ in range(rng.choice((16, 40, 64)))] for _ in range(4)]
    return [
        Request(
            f"r{number}",
            tuple(rng.choice(starts) + [rng.randrange(500) for _ in range(rng.randrange(1, 40))]),
            SamplingParams(max_tokens=rng.randrange(1, 24), ignore_eos=True),
            cache_salt=rng.choice(("", "acme", "bolt")),
        )
        for number in range(count)
    ]


def serve(requests: list[Request], num_blocks: int, *parts) -> tuple[list, int, int]:
    engine = Engine(SimulatedExecutor(num_blocks, 8))
    if parts:
        install(engine, *parts)
    waiting = list(requests)
    while waiting or engine.has_unfinished:
        if waiting:
            engine.submit(waiting.pop(0), 0.0)
        engine.step(0.0)
        engine.check_integrity()
    cache = engine.prefix_cache
    return [r.output_token_ids for r in requests], cache.num_hit_tokens, cache.num_evicted_blocks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(lambda: (LeafFirstCache, block_hashes), id="the references"),
        pytest.param(
            lambda: (variant(CACHE, "PrefixCache"), variant(HASHES_BY_JSON, "block_hashes")),
            id="as in the lesson",
        ),
        pytest.param(lambda: (variant(CACHE_OF_CHILDREN, "PrefixCache"),), id="counts children"),
    ],
)
def test_engine_answers_the_same_on_a_learners_parts_and_reuses_as_much(parts, seed):
    answers, hits, evicted = serve(crowd(seed), 40)
    theirs, their_hits, their_evicted = serve(crowd(seed), 40, *parts())
    assert theirs == answers
    assert evicted > 0 < their_evicted and hits > 0
    assert their_hits > hits / 2  # ages are counted otherwise, so not the same to the token


def test_with_room_for_everything_both_reuse_the_same_tokens():
    assert serve(crowd(1), 4000)[1:] == serve(crowd(1), 4000, LeafFirstCache)[1:]


def test_a_weak_hash_costs_hits_and_never_an_answer():
    def weak(token_ids, block_size, root):
        return [bytes([n]) * 16 for n in range(len(token_ids) // block_size)]

    answers, hits, _ = serve(crowd(2), 400)
    theirs, their_hits, _ = serve(crowd(2), 400, LeafFirstCache, weak)
    assert theirs == answers and their_hits < hits


def test_the_same_salt_shares_and_another_salt_or_adapter_does_not():
    engine = Engine(SimulatedExecutor(64, 8))
    install(engine)
    prompt, one = tuple(range(40)), SamplingParams(max_tokens=1, ignore_eos=True)
    hits = {}
    for name, salt in (("first", "X"), ("same", "X"), ("other", "Y"), ("none", "")):
        request = Request(name, prompt, one, cache_salt=salt)
        engine.submit(request, 0.0)
        while engine.step(0.0):
            pass
        hits[name] = request.num_cached_tokens
    assert hits == {"first": 0, "same": 32, "other": 0, "none": 0}
    assert engine.prefix_cache.root(salt="X") != engine.prefix_cache.root(adapter="X")


def test_evicting_what_others_build_on_is_an_error():
    class PlainLru(LeafFirstCache):
        def evict(self, is_used):
            key = next(iter(self.known))
            return self.known.pop(key)[0]

    with pytest.raises(BlockError, match="the part evicted block"):
        serve(crowd(0), 40, PlainLru)


def test_clear_forgets_in_the_part_too():
    engine = Engine(SimulatedExecutor(64, 8))
    cache = install(engine)
    [request] = crowd(0, 1)
    engine.submit(request, 0.0)
    while engine.step(0.0):
        pass
    assert cache.clear() > 0
    assert engine.pool.num_free == 64
    assert cache.match(request.prompt_token_ids, request.block_hashes, cache.root()) == []


@pytest.mark.parametrize("scope", Scope)
def test_salts_by_the_part_keep_apart_whom_the_servers_own_keep_apart(scope):
    people = [
        Principal(Identity(tenant, user), application=application)
        for tenant in ("acme", "bolt", "desk")
        for user in ("anna", "ben")
        for application in ("", "desk", "shop")
    ]
    own, part = Salts(scope), SaltsPart(scope=scope)
    for one in people:
        for other in people:
            shared = own.of(one) == own.of(other)
            assert (part.of(one) == part.of(other)) is shared
