"""Prefix caching: reuse the KV of an exactly equal token prefix, in whole blocks.

Equivalent inputs: the same token ids from position 0, under the same cache namespace (model,
tokenizer, template, precision), salt and adapter. Reuse stays valid until eviction or `clear`.
Scope: whoever shares the salt. Order matters: one differing token ends the match. A cancelled
request leaves behind only blocks that were fully computed. It saves prefill, never decode.

Each block's key is chained to its parent's, as in vLLM's automatic prefix caching; the tokens
themselves are compared on every hit, so a hash collision is a miss and never a wrong answer.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from minserve.errors import BlockError
from minserve.kv.blocks import BlockPool


@lru_cache(maxsize=1024)  # asked for each request that waits, at every step
def root_hash(namespace: str, salt: str = "", adapter: str = "") -> bytes:
    """The parent of every first block. Fields are named and length-prefixed, so no two mix."""
    digest = blake2b(b"minserve-prefix-1", digest_size=16)
    for name, value in (("namespace", namespace), ("salt", salt), ("adapter", adapter)):
        for text in (name.encode(), value.encode()):
            digest.update(len(text).to_bytes(8, "little"))
            digest.update(text)
    return digest.digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of one block: its parent's key and its token ids, eight bytes each."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


def block_hashes(
    token_ids: Sequence[int],
    parent: bytes,
    block_size: int,
    hash_block: Callable[[bytes, Sequence[int]], bytes] = block_hash,
) -> list[bytes]:
    """The chained keys of the full blocks of `token_ids`, which follow block `parent`."""
    result = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = hash_block(parent, token_ids[start : start + block_size])
        result.append(parent)
    return result


@dataclass(slots=True)
class _Entry:
    block: int
    token_ids: tuple[int, ...]
    parent: bytes
    root: bytes
    num_children: int = 0
    last_used: int = 0


class PrefixCache:
    """Finds, registers and evicts reusable blocks of `pool`. It owns no references itself.

    Evicts the least recently used block that no cached block depends on (leaf first).
    `hash_block` can be replaced, to force collisions in a test.
    """

    def __init__(
        self,
        pool: BlockPool,
        namespace: str = "",
        hash_block: Callable[[bytes, Sequence[int]], bytes] = block_hash,
    ) -> None:
        self.pool = pool
        self.namespace = namespace
        self._hash_block = hash_block
        self._entries: dict[bytes, _Entry] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._evictable: list[tuple[int, bytes]] = []
        self._ticks = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.num_evicted_blocks = 0
        pool.on_unused = self._unused
        pool.evict_one = self.evict

    @property
    def hit_rate(self) -> float:
        """Reused share of the tokens asked about: counted in tokens, not requests."""
        return self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else 0.0

    def root(self, salt: str = "", adapter: str = "") -> bytes:
        """The parent of the first block of whoever shares `salt` and `adapter`."""
        return root_hash(self.namespace, salt, adapter)

    def hashes(self, token_ids: Sequence[int], parent: bytes) -> list[bytes]:
        """The chained keys of the full blocks of `token_ids`, which follow block `parent`."""
        return block_hashes(token_ids, parent, self.pool.block_size, self._hash_block)

    def match(
        self, token_ids: Sequence[int], hashes: Sequence[bytes], root: bytes = b""
    ) -> list[int]:
        """Blocks that already hold the longest cached prefix of `token_ids` under `root`.

        At least one token is left to compute, because the next token needs its logits. Changes
        nothing: to own the blocks the caller shares them before anything else is allocated.
        """
        size, blocks, parent = self.pool.block_size, [], b""
        for index in range(min(len(hashes), (len(token_ids) - 1) // size)):
            entry = self._entries.get(hashes[index])
            tokens = token_ids[index * size : (index + 1) * size]
            if entry is None or not self._is_same(entry, parent, root, tokens):
                break
            blocks.append(entry.block)
            parent = hashes[index]
        return blocks

    def count(self, num_queried_tokens: int, num_hit_tokens: int) -> None:
        """Add one admission to the hit rate."""
        self.num_queried_tokens += num_queried_tokens
        self.num_hit_tokens += num_hit_tokens

    def register(
        self,
        table: list[int],
        hashes: Sequence[bytes],
        index: int,
        token_ids: Sequence[int],
        root: bytes = b"",
    ) -> None:
        """Offer block `table[index]`, full and computed, for reuse under `hashes[index]`.

        If an equal block is cached already, `table` takes that one over and gives its own back:
        one copy stays. A block whose parent in `table` is not the cached one stays private.
        """
        key, block, parent = hashes[index], table[index], hashes[index - 1] if index else b""
        if index and (
            parent not in self._entries or self._entries[parent].block != table[index - 1]
        ):
            return
        twin = self._entries.get(key)
        if twin is None:
            self.pool.keep(block)
            self._entries[key] = _Entry(block, tuple(token_ids), parent, root)
            self._hash_of_block[block] = key
            if index:
                self._entries[parent].num_children += 1
        elif twin.block != block and self._is_same(twin, parent, root, token_ids):
            self.pool.share([twin.block])
            self.pool.release([block])
            table[index] = twin.block

    def evict(self) -> int | None:
        """Free the least recently used leaf that nobody uses; None if there is none."""
        while self._evictable:
            last_used, key = heapq.heappop(self._evictable)
            entry = self._entries.get(key)
            if entry and entry.last_used == last_used and self._is_evictable(entry):
                self._remove(key, entry)
                self.num_evicted_blocks += 1
                return entry.block
        return None

    def clear(self) -> int:
        """Forget everything (a new model, template or incompatible tenant); returns how much."""
        num_entries = len(self._entries)
        for entry in self._entries.values():
            self.pool.drop(entry.block)
        self._entries.clear()
        self._hash_of_block.clear()
        self._evictable.clear()
        return num_entries

    def check_integrity(self) -> None:
        """Raises `BlockError` if entries, children counts or evictability contradict each other."""
        children: dict[bytes, int] = {}
        for key, entry in self._entries.items():
            if self._hash_of_block.get(entry.block) != key:
                raise BlockError(f"block {entry.block} is cached under two keys")
            if entry.parent:
                if entry.parent not in self._entries:
                    raise BlockError(f"block {entry.block} outlived its parent")
                children[entry.parent] = children.get(entry.parent, 0) + 1
        for key, entry in self._entries.items():
            if entry.num_children != children.get(key, 0):
                raise BlockError(f"block {entry.block} has {children.get(key, 0)} children")
            listed = (entry.last_used, key) in self._evictable
            if self._is_evictable(entry) and not listed:
                raise BlockError(f"block {entry.block} could never be evicted")

    @staticmethod
    def _is_same(entry: _Entry, parent: bytes, root: bytes, token_ids: Sequence[int]) -> bool:
        # NOTE: equal tokens under another adapter have other KV, so the root is compared as well.
        is_same_place = entry.parent == parent and entry.root == root
        return is_same_place and entry.token_ids == tuple(token_ids)

    def _is_evictable(self, entry: _Entry) -> bool:
        return entry.num_children == 0 and self.pool.num_references(entry.block) == 0

    def _unused(self, block: int) -> None:
        self._ticks += 1
        key = self._hash_of_block[block]
        self._entries[key].last_used = self._ticks
        heapq.heappush(self._evictable, (self._ticks, key))
        if len(self._evictable) > 64 + 4 * len(self._entries):  # mostly out of date: rebuild
            self._evictable = [
                (e.last_used, k) for k, e in self._entries.items() if self._is_evictable(e)
            ]
            heapq.heapify(self._evictable)

    def _remove(self, key: bytes, entry: _Entry) -> None:
        del self._entries[key], self._hash_of_block[entry.block]
        if entry.parent:
            parent = self._entries[entry.parent]
            parent.num_children -= 1
            if self._is_evictable(parent):
                heapq.heappush(self._evictable, (parent.last_used, entry.parent))
        self.pool.drop(entry.block)
