"""Paged allocation: fixed-size blocks with reference counts (PagedAttention, Kwon et al., 2023).

A block is in exactly one of three states, and the three counts always add up to the pool:

    free    nobody refers to it and it holds nothing worth keeping
    used    one or more block tables refer to it
    cached  nobody refers to it, but the prefix cache keeps its contents until space is needed

A block table is a plain list of block ids: position p of a sequence lives in block
`table[p // block_size]`, slot `p % block_size`. Its owner passes it back to `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minserve.errors import BlockError, ConfigError, OutOfBlocks


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy-on-write: before anything else is computed, copy block `source` into block `target`."""

    source: int
    target: int


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each.

    Every method either does all of its work or raises and changes nothing.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(
                f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing",
                "give at least one block of at least one token",
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))
        self._references = [0] * num_blocks
        self._kept: set[int] = set()
        self._num_cached = 0
        self.on_unused: Callable[[int], None] = lambda block: None
        self.evict_one: Callable[[], int | None] = lambda: None

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be had right now: free ones, and cached ones after eviction."""
        return self.num_free + self._num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed to hold `num_tokens` tokens: the division, rounded up."""
        return -(-num_tokens // self.block_size)

    def num_references(self, block: int) -> int:
        """How many block tables hold `block`."""
        return self._references[block]

    def allocate(self, num_tokens: int) -> list[int]:
        """A new table with room for `num_tokens` tokens. Raises `OutOfBlocks`."""
        return self._take(self.blocks_for(num_tokens))

    def append(self, table: list[int], num_held: int, num_new: int) -> list[BlockCopy]:
        """Make room in `table`, which holds `num_held` tokens, for `num_new` more.

        Blocks are added in place. If the partly filled last block is shared, writing to it would
        change another owner's tokens, so it is replaced by a copy: the caller must have the
        executor carry out the returned copies before it writes. Raises `OutOfBlocks`.
        """
        num_missing = max(0, self.blocks_for(num_held + num_new) - len(table))
        first_written = num_held // self.block_size
        shared = [
            index
            for index in range(first_written, len(table))
            if num_new and self._references[table[index]] > 1
        ]
        if not (num_missing or shared):  # most decodes: there is room in a block of its own
            return []
        blocks = self._take(num_missing + len(shared))
        copies = []
        for index in shared:
            source, target = table[index], blocks.pop()
            self._references[source] -= 1
            table[index] = target
            copies.append(BlockCopy(source, target))
        table.extend(blocks)
        return copies

    def share(self, blocks: Iterable[int]) -> list[int]:
        """A new table over the same blocks: one more reference to each, nothing copied."""
        blocks = list(blocks)
        for block in blocks:
            self._check_holds_something(block)
        for block in blocks:
            if self._references[block] == 0:
                self._num_cached -= 1
            self._references[block] += 1
        return blocks

    def release(self, table: list[int]) -> None:
        """Give up one reference to each block of `table`, and empty it.

        The last block goes first, so that of a sequence's cached blocks the tail ages first.
        Raises `BlockError` if the table refers to a block that nobody holds (a double free).
        """
        for block in table:
            if not 0 <= block < self.num_blocks or self._references[block] < 1:
                raise BlockError(
                    f"block {block} is released, but nobody holds it",
                    "release each table once, when its request ends or is preempted",
                )
        if len(set(table)) != len(table):
            raise BlockError("a table lists a block twice", "give each position its own block")
        while table:
            block = table.pop()
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._kept:
                    self._num_cached += 1
                    self.on_unused(block)
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """The prefix cache wants `block` kept when its last reference goes. It is in use now."""
        if self._references[block] < 1:
            raise BlockError(f"block {block} is not in use", "register a block while it is held")
        self._kept.add(block)

    def drop(self, block: int) -> None:
        """The prefix cache no longer wants `block`: free it now, or when it is released."""
        if block not in self._kept:
            raise BlockError(f"block {block} is not kept", "drop a block once")
        self._kept.remove(block)
        if self._references[block] == 0:
            self._num_cached -= 1
            self._free.append(block)

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Walk everything, given all block tables; `BlockError` on the first contradiction."""
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        if expected != self._references:
            wrong = [b for b in range(self.num_blocks) if expected[b] != self._references[b]]
            raise BlockError(
                f"blocks {wrong}: tables hold {[expected[b] for b in wrong]} references, "
                f"the pool counts {[self._references[b] for b in wrong]}"
            )
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockError("a block is in the free list twice")
        cached = {block for block in self._kept if self._references[block] == 0}
        used = {block for block in range(self.num_blocks) if self._references[block]}
        if free & (self._kept | used) or len(free | cached | used) != self.num_blocks:
            raise BlockError(f"free {sorted(free)}, cached {sorted(cached)}, used {sorted(used)}")
        if len(cached) != self._num_cached:
            raise BlockError(f"{len(cached)} blocks are cached, {self._num_cached} counted")

    def _take(self, num_blocks: int) -> list[int]:
        if num_blocks > self.num_available:
            raise OutOfBlocks(
                f"{num_blocks} blocks are needed and {self.num_available} can be had",
                "wait for a request to end, preempt one, or give the pool more blocks",
            )
        while len(self._free) < num_blocks:
            if self.evict_one() is None:
                raise BlockError(
                    f"{self._num_cached} blocks are cached, but none of them can be evicted",
                    "drop what was kept, or let a PrefixCache keep it",
                )
        blocks = [self._free.popleft() for _ in range(num_blocks)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _check_holds_something(self, block: int) -> None:
        in_pool = 0 <= block < self.num_blocks
        if not in_pool or not (self._references[block] or block in self._kept):
            raise BlockError(f"block {block} is free", "share blocks that are used or cached")
