"""A learner's block pool as the engine's, with a prefix cache beside it.

A block that the cache keeps is one that the cache shares: it holds a reference of its own in the
learner's pool, and gives that up when the block is evicted. So a pool that knows four methods and
no cache serves with one. Who holds what is counted here as well, and every answer is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from minserve.errors import BlockError, OutOfBlocks
from minserve.kv.blocks import BlockCopy


class ServedPool:
    """What `minserve.kv.blocks.BlockPool` offers, out of `mine`: see there.

    `failed(what)` gives the error to raise for an answer that is wrong.
    """

    def __init__(
        self, mine: Any, num_blocks: int, block_size: int, failed: Callable[[str], Exception]
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.on_unused: Callable[[int], None] = lambda block: None
        self.evict_one: Callable[[], int | None] = lambda: None
        self._mine, self._failed = mine, failed
        self._held = [0] * num_blocks
        self._kept: dict[int, list[int]] = {}  # the cache's own table of each block that it keeps
        self.num_used = self.num_cached = 0

    @property
    def num_free(self) -> int:
        return self.num_blocks - self.num_used - self.num_cached

    @property
    def num_available(self) -> int:
        return self.num_free + self.num_cached

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_references(self, block: int) -> int:
        return self._held[block]

    def allocate(self, num_tokens: int) -> list[int]:
        self._make_room(self.blocks_for(num_tokens))
        table = self._mine.allocate(num_tokens)
        self._check([], table, num_tokens, f"allocate({num_tokens})")
        return table

    def append(self, table: list[int], num_held: int, num_new: int) -> list[BlockCopy]:
        before, first = list(table), num_held // self.block_size
        written = before[first:] if num_new else []
        num_shared = sum(self._held[block] + (block in self._kept) > 1 for block in written)
        num_missing = max(0, self.blocks_for(num_held + num_new) - len(before))
        self._make_room(num_missing + num_shared)
        copies = list(self._mine.append(table, num_held, num_new))
        call = f"append({before}, {num_held}, {num_new})"
        replaced = self._check(before, table, num_held + num_new, call)
        if {(copy.source, copy.target) for copy in copies} != replaced:
            raise self._failed(f"{call} replaced {sorted(replaced)} and says {copies}")
        if len(replaced) != num_shared:
            raise self._failed(f"{call} leaves {table}, in which others would be written over")
        return copies

    def share(self, blocks: Iterable[int]) -> list[int]:
        blocks = list(blocks)
        table = self._mine.share(blocks)
        if table != blocks or table is blocks:
            raise self._failed(f"share({blocks}) is {table!r:.80}, not a new table of them")
        for block in table:
            self._hold(block)
        return table

    def release(self, table: list[int]) -> None:
        blocks = list(table)
        self._mine.release(table)
        if table:
            raise self._failed(f"release({blocks}) leaves {table!r:.80} in the table")
        for block in reversed(blocks):
            self._let_go(block)

    def keep(self, block: int) -> None:
        self._kept[block] = self._mine.share([block])

    def drop(self, block: int) -> None:
        self._mine.release(self._kept.pop(block))
        self.num_cached -= self._held[block] == 0

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        if expected != self._held:
            raise BlockError("tables and pool disagree on who holds which block")

    def _make_room(self, num_blocks: int) -> None:
        if num_blocks > self.num_available:
            raise OutOfBlocks(
                f"{num_blocks} blocks are needed and {self.num_available} can be had",
                "wait for a request to end, preempt one, or give the pool more blocks",
            )
        while self.num_free < num_blocks:
            if self.evict_one() is None:
                raise BlockError(f"{self.num_cached} blocks are cached, and none can be evicted")

    def _check(self, before: list[int], after: list[int], num_tokens: int, call: str) -> set:
        """Enter the blocks that are new in a table; what was replaced, as (old, new)."""
        wanted = max(len(before), self.blocks_for(num_tokens))
        if not isinstance(after, list) or len(after) != wanted:
            raise self._failed(f"{call} gives {after!r:.80}, and {wanted} blocks are wanted")
        old = [*before, *[None] * (wanted - len(before))]
        changed = [(x, y) for x, y in zip(old, after, strict=True) if x != y]
        for source, block in changed:
            is_block = isinstance(block, int) and 0 <= block < self.num_blocks
            if not is_block or self._held[block] or block in self._kept:
                raise self._failed(f"{call} gives block {block!r:.40}, which is not free")
            self._hold(block)
            if source is not None:
                self._let_go(source)
        return {pair for pair in changed if pair[0] is not None}

    def _hold(self, block: int) -> None:
        if self._held[block] == 0:
            self.num_used += 1
            self.num_cached -= block in self._kept
        self._held[block] += 1

    def _let_go(self, block: int) -> None:
        self._held[block] -= 1
        if self._held[block] == 0:
            self.num_used -= 1
            if block in self._kept:
                self.num_cached += 1
                self.on_unused(block)
