"""The prefix cache: only an equal prefix is reused, leaf first and oldest first are evicted."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import small

from minserve.errors import BlockError, OutOfBlocks
from minserve.kv.blocks import BlockPool
from minserve.kv.prefix import PrefixCache, block_hash, root_hash

SIZE = 2


def make(num_blocks: int = 8, **more) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(num_blocks, SIZE)
    return pool, PrefixCache(pool, **more)


def store(cache: PrefixCache, tokens, salt: str = "", adapter: str = "") -> list[int]:
    """Compute `tokens`, register their full blocks, and keep the table."""
    root = cache.root(salt, adapter)
    hashes = cache.hashes(tokens, root)
    table = cache.pool.allocate(len(tokens))
    for index in range(len(hashes)):
        piece = tokens[index * SIZE : (index + 1) * SIZE]
        cache.register(table, hashes, index, piece, root)
    return table


def find(cache: PrefixCache, tokens, salt: str = "", adapter: str = "") -> list[int]:
    root = cache.root(salt, adapter)
    return cache.match(tokens, cache.hashes(tokens, root), root)


@pytest.mark.parametrize("num_tokens", range(1, 8))
def test_whole_blocks_are_reused_and_at_least_one_token_is_left_to_compute(num_tokens):
    _, cache = make()
    tokens = tuple(range(num_tokens))
    table = store(cache, tokens)
    assert find(cache, tokens) == table[: (num_tokens - 1) // SIZE]
    assert find(cache, (*tokens, 99)) == table[: num_tokens // SIZE]


@pytest.mark.parametrize("position", range(6))
def test_one_differing_token_ends_the_match_at_its_block(position):
    _, cache = make()
    tokens = (1, 2, 3, 4, 5, 6)
    table = store(cache, tokens)
    other = list((*tokens, 7))
    other[position] = 99
    assert find(cache, other) == table[: position // SIZE]


@pytest.mark.parametrize("one", [0, 1, 2**8, 2**16, 2**32, 2**62])
@pytest.mark.parametrize("step", [2**8, 2**16, 2**32])
def test_token_ids_are_hashed_in_full(one, step):
    assert block_hash(b"", (one, 0)) != block_hash(b"", (one + step, 0))
    assert block_hash(b"", (one, 0)) != block_hash(b"", (0, one)) or one == 0


def test_the_same_tokens_after_another_prefix_have_a_key_of_their_own():
    assert block_hash(b"a", (1, 2)) != block_hash(b"b", (1, 2))
    _, cache = make()
    table = store(cache, (1, 2, 1, 2))
    assert find(cache, (1, 2, 1, 2, 3)) == table


SCOPES = [("", ""), ("X", ""), ("", "X"), ("X", "X"), ("XX", ""), ("", "XX"), ("Y", "X")]


@pytest.mark.parametrize("stored", SCOPES, ids=str)
@pytest.mark.parametrize("asked", SCOPES, ids=str)
@pytest.mark.parametrize("collide", [False, True], ids=["", "every hash collides"])
def test_only_the_same_salt_and_the_same_adapter_hit(stored, asked, collide):
    _, cache = make(**({"hash_block": lambda parent, tokens: b"same"} if collide else {}))
    tokens = (1, 2, 3)
    table = store(cache, tokens, *stored)
    assert find(cache, tokens, *asked) == (table[:1] if asked == stored else [])


def test_fields_of_the_root_hash_do_not_run_into_each_other():
    fields = [("ab", "c", ""), ("a", "bc", ""), ("abc", "", ""), ("", "ab", "c"), ("", "abc", "")]
    fields += [("ab\0", "c", ""), ("ab", "\0c", ""), ("", "", "abc"), ("adapter", "", "")]
    assert len({root_hash(*each) for each in fields}) == len(fields)


def test_another_namespace_never_hits():
    assert make(namespace="a")[1].root() != make(namespace="b")[1].root()


COLLISIONS = {
    "all": lambda parent, tokens: b"same",
    "to the parent": lambda parent, tokens: parent,
    "by parent": lambda parent, tokens: b"*" + parent[-3:],
    "by tokens": lambda parent, tokens: bytes([sum(tokens) % 2]),
    "by last token": lambda parent, tokens: bytes([tokens[-1] % 256]),
}


@pytest.mark.parametrize("hash_block", COLLISIONS.values(), ids=COLLISIONS)
def test_a_forced_collision_never_returns_blocks_of_other_tokens(hash_block):
    pool, cache = make(32, hash_block=hash_block)
    written: dict[int, tuple] = {}
    texts = [(1, 2, 3, 4, 5), (3, 4, 1, 2, 5), (1, 2, 1, 2, 9), (9, 2, 3, 4, 5), (2, 1, 4, 3, 0)]
    tables = []
    for tokens in texts:
        tables.append(store(cache, tokens))
        for index, block in enumerate(tables[-1]):
            written.setdefault(block, tokens[: (index + 1) * SIZE])
        pool.check_integrity(tables)
        cache.check_integrity()
    for tokens in texts:
        for index, block in enumerate(find(cache, tokens)):
            assert written[block] == tokens[: (index + 1) * SIZE]
    for table in tables:
        pool.release(table)
    pool.allocate(32 * SIZE)
    assert cache.num_evicted_blocks > 0, "collisions do not keep a block from being evicted"


def test_an_equal_block_is_kept_once():
    pool, cache = make()
    first = store(cache, (1, 2, 3, 4))
    second = store(cache, (1, 2, 3, 4))
    assert first == second
    assert pool.num_used == 2 and pool.num_references(first[0]) == 2
    pool.check_integrity([first, second])


def test_a_block_that_nobody_computed_is_never_found():
    pool, cache = make()
    tokens = (1, 2, 3, 4, 5)
    pool.allocate(len(tokens))
    assert find(cache, tokens) == []


def test_match_changes_nothing():
    pool, cache = make()
    table = store(cache, (1, 2, 3, 4))
    pool.release(table)
    assert len(find(cache, (1, 2, 3, 4, 5))) == 2
    assert (pool.num_cached, pool.num_used) == (2, 0)
    assert cache.num_queried_tokens == 0


def test_eviction_is_leaf_first_and_of_the_least_recently_used_chain():
    pool, cache = make(6)
    old = store(cache, (1, 2, 3, 4))
    new = store(cache, (1, 2, 5, 6, 7, 8))
    shared, old_leaf, middle, new_leaf = old[0], old[1], new[1], new[2]
    pool.release(new)
    pool.release(old)
    pool.release(pool.share([shared, middle, new_leaf]))  # used again: now the younger chain
    assert [cache.evict() for _ in range(5)] == [old_leaf, new_leaf, middle, shared, None]
    assert pool.num_free == 6


def test_a_leaf_is_evicted_before_what_it_follows_even_if_it_was_used_last():
    pool, cache = make()
    table = store(cache, (1, 2, 3, 4))
    parent, leaf = table
    pool.release(table)
    pool.release(pool.share([leaf]))
    assert [cache.evict(), cache.evict()] == [leaf, parent]
    cache.check_integrity()


def test_a_block_in_use_is_not_evicted_and_neither_is_what_it_follows():
    pool, cache = make(3)
    table = store(cache, (1, 2, 3, 4))
    with pytest.raises(OutOfBlocks):
        pool.allocate(2 * SIZE)
    assert cache.evict() is None
    pool.check_integrity([table])


def test_clear_forgets_all_and_leaves_blocks_in_use_with_their_owners():
    pool, cache = make()
    used = store(cache, (1, 2, 3, 4))
    pool.release(store(cache, (7, 8)))
    assert cache.clear() == 3
    assert find(cache, (1, 2, 3, 4, 5)) == []
    assert (pool.num_used, pool.num_cached) == (2, 0)
    again = store(cache, (1, 2, 3, 4))
    assert not set(again) & set(used)
    pool.release(used)
    pool.release(again)
    pool.check_integrity([])
    cache.check_integrity()


def test_the_list_of_evictable_blocks_does_not_grow_with_the_number_of_hits():
    pool, cache = make()
    pool.release(store(cache, (1, 2, 3, 4)))
    for _ in range(2_000):
        pool.release(pool.share(find(cache, (1, 2, 3, 4, 5))))
    assert len(cache._evictable) < 200
    cache.check_integrity()


def test_the_hit_rate_counts_tokens():
    _, cache = make()
    assert cache.hit_rate == 0.0
    cache.count(30, 10)
    cache.count(10, 10)
    assert cache.hit_rate == 0.5


def test_check_integrity_sees_a_cached_block_that_outlived_its_parent():
    _, cache = make()
    table = store(cache, (1, 2, 3, 4))
    del cache._entries[cache._hash_of_block[table[0]]]
    with pytest.raises(BlockError):
        cache.check_integrity()


class PrefixMachine(RuleBasedStateMachine):
    """Tables that reuse, compute and register prefixes, under evictions and weak hashes."""

    hash_block = staticmethod(block_hash)

    def __init__(self):
        super().__init__()
        self.pool, self.cache = make(7, hash_block=self.hash_block)
        self.contents: dict[int, tuple] = {}
        self.tables: list[list[int]] = []

    @rule(
        scope=st.sampled_from([("", ""), ("A", ""), ("", "A")]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple),
        num_computed=st.integers(0, 8),
    )
    def serve(self, scope, tokens, num_computed):
        root = self.cache.root(*scope)
        hashes = self.cache.hashes(tokens, root)
        table = self.pool.share(self.cache.match(tokens, hashes, root))
        assert len(table) * SIZE < len(tokens)
        for index, block in enumerate(table):
            assert self.contents[block] == (scope, tokens[: (index + 1) * SIZE]), "wrong KV"
        held = len(table) * SIZE
        try:
            self.pool.append(table, held, len(tokens) - held)
        except OutOfBlocks:
            self.pool.release(table)
            return
        num_full = min(max(num_computed, held), len(tokens)) // SIZE
        for index in range(held // SIZE, num_full):
            self.contents[table[index]] = (scope, tokens[: (index + 1) * SIZE])
        for index in range(held // SIZE, num_full):
            piece = tokens[index * SIZE : (index + 1) * SIZE]
            self.cache.register(table, hashes, index, piece, root)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule()
    def evict(self):
        num_free, num_cached = self.pool.num_free, self.pool.num_cached
        block = self.cache.evict()
        assert (block is None) == (num_cached == 0), "whatever is cached can be had"
        assert self.pool.num_free == num_free + (block is not None)

    @invariant()
    def all_adds_up(self):
        self.pool.check_integrity(self.tables)
        self.cache.check_integrity()


class CollidingPrefixMachine(PrefixMachine):
    hash_block = staticmethod(lambda parent, tokens: bytes([sum(tokens) % 2]))


PrefixMachine.TestCase.settings = small(60, stateful_step_count=30)
CollidingPrefixMachine.TestCase.settings = small(60, stateful_step_count=30)
TestPrefix = PrefixMachine.TestCase
TestPrefixUnderCollisions = CollidingPrefixMachine.TestCase
