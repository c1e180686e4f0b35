"""Which blocks each request holds: given, grown, shared, cut back and returned.

Block ownership, for a request with prompt `pppp pppp p` and output `oo` in blocks of four:

    block_table   [ b0        b1        b2       ]
    tokens          p p p p   p p p p   p o o _
                    '-- shared from the     '-- num_computed_tokens: written up to here
                        prefix cache            own blocks: only this request writes them

A choice that splits off shares every block of the prompt, `b0 b1 b2`. Whoever first writes to a
shared block, here `b2`, gets a copy of its own (copy-on-write).

Equivalent inputs: equal tokens at equal positions. Valid until the last table lets go. Scope: the
choices of one request, and whom the prefix cache's salt joins. Order matters: a position is part of
a key. A cancelled request gives up its references, after the step in flight.
"""

from __future__ import annotations

from minserve.kv.blocks import BlockCopy, BlockPool
from minserve.kv.prefix import PrefixCache
from minserve.request import Request, Status


class BlockTables:
    """Gives requests blocks of `pool`, those in `prefix_cache` first, and keeps their tables."""

    def __init__(self, pool: BlockPool, prefix_cache: PrefixCache | None = None) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache

    def num_to_compute(self, request: Request) -> int:
        """Tokens to compute before the next can be sampled; for a waiting one, if admitted now."""
        if request.status is Status.RUNNING:
            return request.num_tokens - request.num_computed_tokens
        return request.num_tokens - len(self._match(request)) * self.pool.block_size

    def num_new_blocks(self, request: Request) -> int:
        """Blocks that it takes to compute all of a request's tokens, beyond those it holds.

        Counts copies of shared blocks, and one block for each choice that is still to split off.
        """
        num_blocks = self.pool.blocks_for(request.num_tokens)
        if request.status is Status.RUNNING:
            table, num_shared = request.block_table, 0
            for block in table[request.num_computed_tokens // self.pool.block_size :]:
                num_shared += self.pool.num_references(block) > 1
            return num_blocks - len(table) + num_shared
        num_held = sum(self.pool.num_references(b) > 0 for b in self._match(request))
        # NOTE: capped, so that a request that fits in an empty pool is never kept out for ever.
        return min(num_blocks + request.num_forks_to_come - num_held, self.pool.num_blocks)

    def admit(self, request: Request) -> bool:
        """Give a waiting request blocks for all its tokens; False, and nothing, if too few."""
        if self.num_new_blocks(request) > self.pool.num_available:
            return False
        table = request.block_table = self.pool.share(self._match(request))
        num_cached = len(table) * self.pool.block_size
        self.pool.append(table, num_cached, request.num_tokens - num_cached)
        if self.prefix_cache:
            self.prefix_cache.count(request.num_tokens, num_cached)
        request.num_computed_tokens = request.num_cached_tokens = num_cached
        return True

    def fork(self, request: Request, choice: Request) -> None:
        """Let `choice` share the computed prompt of `request`, and compute its last token anew."""
        size, num_tokens = self.pool.block_size, request.num_prompt_tokens
        num_blocks = self.pool.blocks_for(num_tokens)
        choice.block_table = self.pool.share(request.block_table[:num_blocks])
        choice.block_hashes = request.block_hashes[: num_tokens // size]
        choice.num_computed_tokens = choice.num_cached_tokens = num_tokens - 1

    def extend(self, request: Request, num_held: int, num_new: int) -> list[BlockCopy]:
        """Make room behind `num_held` tokens for `num_new`. Raises `OutOfBlocks`; see `append`."""
        return self.pool.append(request.block_table, num_held, num_new)

    def settle(self, request: Request, first: int) -> None:
        """After a step that computed from position `first` on: offer its full blocks for reuse,
        and give back blocks that only rejected guesses needed.
        """
        table = request.block_table
        unneeded = table[self.pool.blocks_for(request.num_tokens) :]
        if unneeded:
            del table[-len(unneeded) :]
            self.pool.release(unneeded)
        cache, size = self.prefix_cache, self.pool.block_size
        blocks = range(first // size, request.num_computed_tokens // size)
        if cache is None or not blocks:  # most decodes fill no block
            return
        root = self._hash(cache, request, request.num_computed_tokens)
        for index in blocks:
            tokens = request.tokens(index * size, (index + 1) * size)
            cache.register(table, request.block_hashes, index, tokens, root)

    def release(self, request: Request) -> None:
        """Take all its blocks back. Those registered stay cached until space is needed."""
        self.pool.release(request.block_table)

    def _match(self, request: Request) -> list[int]:
        if self.prefix_cache is None:
            return []
        root = self._hash(self.prefix_cache, request, request.num_tokens)
        tokens = request.tokens(0, request.num_tokens)
        return self.prefix_cache.match(tokens, request.block_hashes, root)

    def _hash(self, cache: PrefixCache, request: Request, num_tokens: int) -> bytes:
        """Hash the full blocks up to `num_tokens`; returns the root of the chain."""
        root = cache.root(request.cache_salt, request.adapter)
        hashes, size = request.block_hashes, self.pool.block_size
        start = len(hashes) * size
        if num_tokens - start >= size:
            parent = hashes[-1] if hashes else root
            hashes += cache.hashes(request.tokens(start, num_tokens), parent)
        return root
