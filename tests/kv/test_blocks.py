"""The block pool: counts add up, nothing is freed twice, a shared block is never written."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import small

from minserve.errors import BlockError, ConfigError, OutOfBlocks
from minserve.kv.blocks import BlockPool


def state(pool: BlockPool, *tables: list[int]):
    """Everything observable, to show that a refused call changed nothing."""
    references = [pool.num_references(block) for block in range(pool.num_blocks)]
    return pool.num_free, pool.num_used, pool.num_cached, references, [list(t) for t in tables]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_a_pool_that_holds_nothing_is_refused(num_blocks, block_size):
    with pytest.raises(ConfigError):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_table_has_whole_blocks_enough_for_its_tokens(num_tokens, num_blocks):
    pool = BlockPool(4, 4)
    table = pool.allocate(num_tokens)
    assert len(table) == len(set(table)) == num_blocks
    assert (pool.num_used, pool.num_free) == (num_blocks, 4 - num_blocks)


@pytest.mark.parametrize("num_held", range(9))
@pytest.mark.parametrize("num_new", range(6))
def test_append_adds_just_the_blocks_that_are_missing(num_held, num_new):
    pool = BlockPool(8, 4)
    table = pool.allocate(num_held)
    before = list(table)
    assert pool.append(table, num_held, num_new) == []
    assert len(table) == pool.blocks_for(num_held + num_new)
    assert table[: len(before)] == before


@pytest.mark.parametrize("num_tokens", [17, 100])
def test_allocate_beyond_the_pool_raises_and_changes_nothing(num_tokens):
    pool = BlockPool(4, 4)
    held = pool.allocate(4)
    before = state(pool, held)
    with pytest.raises(OutOfBlocks):
        pool.allocate(num_tokens)
    with pytest.raises(OutOfBlocks):
        pool.append(held, 4, num_tokens)
    assert state(pool, held) == before


def test_append_that_cannot_copy_raises_and_changes_nothing():
    pool = BlockPool(2, 4)
    table = pool.allocate(6)
    fork = pool.share(table)
    before = state(pool, table, fork)
    with pytest.raises(OutOfBlocks):
        pool.append(fork, 6, 1)
    assert state(pool, table, fork) == before


@pytest.mark.parametrize("num_held", range(1, 9))
def test_append_copies_a_shared_block_only_if_it_is_written(num_held):
    pool = BlockPool(8, 4)
    table = pool.allocate(num_held)
    fork = pool.share(table)
    copies = pool.append(fork, num_held, 1)
    if num_held % 4:
        assert [(copy.source, copy.target) for copy in copies] == [(table[-1], fork[-1])]
        assert fork[:-1] == table[:-1] and fork[-1] != table[-1]
    else:
        assert copies == [] and fork[:-1] == table
    assert pool.append(table, num_held, 1) == [], "the last owner writes in place"
    pool.check_integrity([table, fork])


def test_append_of_nothing_copies_nothing():
    pool = BlockPool(4, 4)
    table = pool.allocate(6)
    fork = pool.share(table)
    assert pool.append(fork, 6, 0) == []
    assert fork == table


@pytest.mark.parametrize("again", ["the same list refilled", "a copy of it", "part of it"])
def test_a_double_release_raises_and_changes_nothing(again):
    pool = BlockPool(4, 4)
    table = pool.allocate(12)
    other = pool.allocate(4)
    copy = list(table)
    pool.release(table)
    assert table == [], "release empties the table, so that releasing it again does nothing"
    pool.release(table)
    before = state(pool, other)
    stale = {"the same list refilled": copy, "a copy of it": [*copy], "part of it": copy[1:]}[again]
    for wrong in (stale, [*other, stale[0]]):
        with pytest.raises(BlockError):
            pool.release(wrong)
        assert state(pool, other) == before


@pytest.mark.parametrize("block", [-1, 4, 99])
def test_a_block_outside_the_pool_is_refused(block):
    pool = BlockPool(4, 4)
    for call in (lambda: pool.release([block]), lambda: pool.share([block])):
        with pytest.raises(BlockError):
            call()


def test_sharing_a_free_block_raises_and_changes_nothing():
    pool = BlockPool(4, 4)
    table = pool.allocate(4)
    free = next(block for block in range(4) if block not in table)
    before = state(pool, table)
    with pytest.raises(BlockError):
        pool.share([*table, free])
    assert state(pool, table) == before


def test_a_table_that_lists_a_block_twice_is_refused():
    pool = BlockPool(4, 4)
    table = pool.allocate(4)
    pool.share(table)
    before = state(pool, table)
    with pytest.raises(BlockError):
        pool.release([*table, *table])
    assert state(pool, table) == before


def test_the_last_block_of_a_table_is_released_first_so_that_the_tail_ages_first():
    pool = BlockPool(4, 4)
    table = pool.allocate(12)
    for block in table:
        pool.keep(block)
    unused: list[int] = []
    pool.on_unused = unused.append
    right = table[::-1]
    pool.release(table)
    assert unused == right


def test_keep_and_drop_need_a_block_in_the_right_state():
    pool = BlockPool(4, 4)
    with pytest.raises(BlockError):
        pool.keep(0)
    table = pool.allocate(4)
    with pytest.raises(BlockError):
        pool.drop(table[0])
    pool.keep(table[0])
    pool.drop(table[0])
    with pytest.raises(BlockError):
        pool.drop(table[0])


def test_cached_blocks_that_nobody_can_evict_are_an_error_and_not_a_hang():
    pool = BlockPool(2, 4)
    table = pool.allocate(4)
    pool.keep(table[0])
    pool.release(table)
    assert pool.num_available == 2
    with pytest.raises(BlockError):
        pool.allocate(8)
    pool.check_integrity([])


@pytest.mark.parametrize(
    "tables",
    [[], [[0]], [[0, 1], [1]], [[0, 1], [2]]],
    ids=["a leak", "a block missing", "one reference too many", "a block nobody took"],
)
def test_check_integrity_sees_tables_that_disagree_with_the_pool(tables):
    pool = BlockPool(4, 4)
    table = pool.allocate(8)
    assert table == [0, 1]
    pool.check_integrity([table])
    with pytest.raises(BlockError):
        pool.check_integrity(tables)


def test_check_integrity_sees_a_block_twice_in_the_free_list():
    pool = BlockPool(4, 4)
    pool._free.append(pool._free[0])
    with pytest.raises(BlockError):
        pool.check_integrity([])


class PoolMachine(RuleBasedStateMachine):
    """Tables that own, share and write real contents: what one writes no other ever sees."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(8, 3)
        self.contents = [[None] * 3 for _ in range(8)]
        self.tables: list[tuple[list[int], list[int]]] = []
        self.next_token = 0

    def write(self, table: list[int], tokens: list[int], num_new: int) -> None:
        copies = self.pool.append(table, len(tokens), num_new)
        for copy in copies:
            self.contents[copy.target] = list(self.contents[copy.source])
        for _ in range(num_new):
            block, slot = divmod(len(tokens), 3)
            self.contents[table[block]][slot] = self.next_token
            tokens.append(self.next_token)
            self.next_token += 1

    @rule(num_tokens=st.integers(0, 7))
    def allocate(self, num_tokens):
        before = state(self.pool)
        try:
            table = self.pool.allocate(num_tokens)
        except OutOfBlocks:
            assert self.pool.blocks_for(num_tokens) > self.pool.num_available
            assert state(self.pool) == before
            return
        tokens: list[int] = []
        self.write(table, tokens, num_tokens)
        self.tables.append((table, tokens))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_new=st.integers(0, 5))
    def append(self, data, num_new):
        table, tokens = data.draw(st.sampled_from(self.tables))
        before = state(self.pool, table)
        try:
            self.write(table, tokens, num_new)
        except OutOfBlocks:
            assert state(self.pool, table) == before

    @precondition(lambda self: 0 < len(self.tables) < 6)
    @rule(data=st.data())
    def share(self, data):
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((self.pool.share(table), list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.release(self.tables.pop(index)[0])

    @invariant()
    def every_table_reads_what_it_wrote(self):
        self.pool.check_integrity(table for table, _ in self.tables)
        assert self.pool.num_free + self.pool.num_used == 8
        for table, tokens in self.tables:
            slots = [slot for block in table for slot in self.contents[block]]
            assert slots[: len(tokens)] == tokens


PoolMachine.TestCase.settings = small(60, stateful_step_count=30)
TestPool = PoolMachine.TestCase
