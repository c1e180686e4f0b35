"""The parts of lesson 4: the reference of each, and how a real engine and server run them.

`block_hashes`, `PrefixCachePart` and `cache_salt` are what the lesson asks for. `install` puts a
learner's hashes and cache into an engine; `SaltsPart` lets a server salt by a learner's function.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Protocol

from minserve.engine import Engine
from minserve.errors import BlockError, ConfigError
from minserve.kv.blocks import BlockPool
from minserve.kv.prefix import PrefixCache
from minserve.serving.identity import Principal, Salts, Scope

# -- block_hashes


def block_hashes(token_ids: Sequence[int], block_size: int, root: bytes) -> list[bytes]:
    """The chained keys of the full blocks of `token_ids`, 16 bytes each.

    Each block's key is a digest of its parent's key and its own token ids, eight bytes each;
    `root` is the parent of the first. A block that is not full has none.
    """
    hashes: list[bytes] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        digest = blake2b(parent, digest_size=16)
        for token in token_ids[start : start + block_size]:
            digest.update(token.to_bytes(8, "little"))
        parent = digest.digest()
        hashes.append(parent)
    return hashes


# -- prefix_cache


class PrefixCachePart(Protocol):
    """The part `prefix_cache`: which blocks hold what, and which to give up. Made with no argument.

    `match(hashes)` returns the blocks of the longest known run from the first hash on.
    `register(hashes, index, block)` notes that `block` holds the computed content `hashes[index]`.
    `evict(is_used)` forgets and returns the block least recently matched or registered, among
    those that no known block follows and for which `is_used(block)` is false; None without any.
    """

    def match(self, hashes: Sequence[bytes]) -> list[int]: ...

    def register(self, hashes: Sequence[bytes], index: int, block: int) -> None: ...

    def evict(self, is_used: Callable[[int], bool]) -> int | None: ...


class LeafFirstCache:
    """Reference of `prefix_cache`: least recently used, and never a block that others build on."""

    def __init__(self) -> None:
        self.known: OrderedDict[bytes, tuple[int, bytes | None]] = OrderedDict()

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known run from the first hash on; using them is noted."""
        blocks = []
        for key in hashes:
            if key not in self.known:
                break
            self.known.move_to_end(key)
            blocks.append(self.known[key][0])
        return blocks

    def register(self, hashes: Sequence[bytes], index: int, block: int) -> None:
        """`block` holds `hashes[index]`, computed. A hash that is known keeps its block."""
        key, parent = hashes[index], hashes[index - 1] if index else None
        if key not in self.known:
            self.known[key] = (block, parent)
        self.known.move_to_end(key)

    def evict(self, is_used: Callable[[int], bool]) -> int | None:
        """Forget the least recently used leaf that nobody uses, and return its block."""
        parents = {parent for _, parent in self.known.values()}
        for key, (block, _) in self.known.items():
            if key not in parents and not is_used(block):
                del self.known[key]
                return block
        return None


class LearnedPrefixCache(PrefixCache):
    """The engine's prefix cache, with a learner's decisions: hashes, matches, and whom to evict.

    The engine's own book is kept beside it. What the part matches is trusted as far as that book
    has the same tokens, so a weak hash costs hits and never an answer; evicting a block that is in
    use or has followers raises `BlockError`.
    """

    def __init__(
        self,
        pool: BlockPool,
        namespace: str,
        make: Callable[[], PrefixCachePart] = LeafFirstCache,
        hash_blocks: Callable[[Sequence[int], int, bytes], list[bytes]] = block_hashes,
    ) -> None:
        super().__init__(pool, namespace)
        self._make = make
        self._hash_blocks = hash_blocks
        self._part = make()

    def hashes(self, token_ids: Sequence[int], parent: bytes) -> list[bytes]:
        return list(self._hash_blocks(token_ids, self.pool.block_size, parent))

    def match(
        self, token_ids: Sequence[int], hashes: Sequence[bytes], root: bytes = b""
    ) -> list[int]:
        reusable = (len(token_ids) - 1) // self.pool.block_size
        found = self._part.match(hashes[:reusable])
        held = super().match(token_ids, hashes, root)
        blocks: list[int] = []
        for block, checked in zip(found, held, strict=False):
            if block != checked:
                break
            blocks.append(block)
        return blocks

    def register(
        self,
        table: list[int],
        hashes: Sequence[bytes],
        index: int,
        token_ids: Sequence[int],
        root: bytes = b"",
    ) -> None:
        super().register(table, hashes, index, token_ids, root)
        if self._hash_of_block.get(table[index]) == hashes[index]:
            self._part.register(hashes, index, table[index])

    def evict(self) -> int | None:
        block = self._part.evict(lambda block: self.pool.num_references(block) > 0)
        if block is None:
            return None
        key = self._hash_of_block.get(block)
        if key is None or not self._is_evictable(self._entries[key]):
            raise BlockError(
                f"the part evicted block {block}, which is in use, has followers or is not cached",
                "evict leaves that nobody uses",
            )
        self._remove(key, self._entries[key])
        self.num_evicted_blocks += 1
        return block

    def clear(self) -> int:
        self._part = self._make()
        return super().clear()


def install(
    engine: Engine,
    make: Callable[[], PrefixCachePart] = LeafFirstCache,
    hash_blocks: Callable[[Sequence[int], int, bytes], list[bytes]] = block_hashes,
) -> LearnedPrefixCache:
    """Let `engine`, which has served nothing yet, reuse prefixes by these parts."""
    namespace = engine.executor.cache_namespace
    cache = LearnedPrefixCache(engine.pool, namespace, make, hash_blocks)
    engine.prefix_cache = engine.scheduler.tables.prefix_cache = cache
    return cache


# -- cache_salt


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as the server's own records say: looked up by the API key, never read
    from the request's body. `application` is empty if the key belongs to none.
    """

    tenant: str
    user: str
    application: str = ""


def cache_salt(secret: bytes, identity: Caller, scope: str) -> str:
    """The salt of everybody who may share a prefix with `identity`, as hex digits.

    HMAC-SHA256 under the server's `secret`, over the scope's name and the fields that it shares,
    each with its length before it. `scope` is user, tenant, application or global; a caller
    without an application shares with its tenant. Raises `ConfigError` for any other scope.
    """
    shared: tuple[str, ...]
    if scope == "user":
        shared = ("user", identity.tenant, identity.user)
    elif scope == "application" and identity.application:
        shared = ("application", identity.application)
    elif scope in ("tenant", "application"):
        shared = ("tenant", identity.tenant)
    elif scope == "global":
        shared = ("global",)
    else:
        raise ConfigError(f"there is no scope {scope!r}", "user, tenant, application or global")
    message = b""
    for field in shared:
        text = field.encode()
        message += len(text).to_bytes(8, "little") + text
    return hmac.new(secret, message, sha256).hexdigest()


class SaltsPart(Salts):
    """A server's salts by a learner's `function(secret, identity, scope)`."""

    def __init__(
        self,
        function: Callable[[bytes, Caller, str], str] = cache_salt,
        scope: Scope = Scope.TENANT,
        secret: bytes | None = None,
    ) -> None:
        super().__init__(scope, secret)
        self.function = function

    def of(self, principal: Principal) -> str:
        who = principal.identity
        caller = Caller(who.tenant, who.subject, principal.application)
        return self.function(self._secret, caller, self.scope.value)
