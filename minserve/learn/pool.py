"""What the engine asks of a block pool beside the four methods that a learner writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from minserve.errors import BlockError
from minserve.kv.blocks import BlockCopy


class BlockPoolPart(Protocol):
    """The part `block_pool`: who holds which block. A table is a plain list of block ids.

    `allocate(num_tokens)` returns a new table with just enough blocks.
    `append(table, num_held, num_new)` makes room in a table that holds `num_held` tokens for
    `num_new` more: in place, and with a copy of any shared block that would be written to. It
    returns the copies that the executor must make first.
    `share(blocks)` returns a new table over the same blocks.
    `release(table)` gives up one reference to each block and empties the table.

    `allocate` and `append` raise `OutOfBlocks`, `share` and `release` raise `BlockError`, and
    whatever raises has changed nothing.
    """

    num_blocks: int
    block_size: int

    @property
    def num_free(self) -> int: ...

    @property
    def num_used(self) -> int: ...

    def allocate(self, num_tokens: int) -> list[int]: ...

    def append(self, table: list[int], num_held: int, num_new: int) -> list[BlockCopy]: ...

    def share(self, blocks: Iterable[int]) -> list[int]: ...

    def release(self, table: list[int]) -> None: ...


class PoolBase:
    """A base for a learner's pool: two fields to work with, and what else the engine asks for.

    `self.free` lists the ids of the blocks that nobody holds; `self.references[block]` counts the
    tables that hold a block. A pool that keeps other books overrides `__init__` and `num_free`.
    There is no prefix cache: run it as `Engine(executor, pool=mine, prefix_caching=False)`.
    """

    num_cached = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self.free)

    @property
    def num_used(self) -> int:
        """Blocks that one table or more hold."""
        return self.num_blocks - self.num_free

    @property
    def num_available(self) -> int:
        """Blocks that can be had right now."""
        return self.num_free

    def num_references(self, block: int) -> int:
        """How many tables hold a block, if the pool counts them in `references`; else 1."""
        references = getattr(self, "references", None)
        return references[block] if isinstance(references, list) else 1

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed to hold `num_tokens` tokens: the division, rounded up."""
        return -(-num_tokens // self.block_size)

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """`BlockError` unless the blocks in `tables` are exactly the used ones."""
        held = {block for table in tables for block in table}
        if len(held) != self.num_used:
            raise BlockError(
                f"tables hold {len(held)} blocks, the pool counts {self.num_used} used",
                "every block that a table lists is used, and no other",
            )


def for_engine(cls: type) -> type:
    """`cls` with all that the engine asks for: mixed with `PoolBase` unless it derives from it."""
    if issubclass(cls, PoolBase) or hasattr(cls, "check_integrity"):
        return cls
    return type(cls.__name__, (cls, PoolBase), {"__doc__": cls.__doc__})
