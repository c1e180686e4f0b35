"""The rules of `block_hashes(token_ids, block_size, root)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest import mock

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

Hashes = Callable[[Sequence[int], int, bytes], list[bytes]]
BLOCKS, CHAIN = "blocks", "chain"
ROOT, OTHER_ROOT = bytes(15) + b"A", bytes(15) + b"B"
SHORTEST = 16


class Asked:
    """Calls of one candidate, written down."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self.lines: list[str] = []

    def keys(self, token_ids: Sequence[int], size: int, root: bytes = ROOT) -> list[bytes]:
        """The candidate's keys, checked to be a list of bytes."""
        name = {ROOT: "A", OTHER_ROOT: "B"}.get(root, "the last key of the call before")
        self.lines.append(f"block_hashes({list(token_ids)}, block_size={size}, root={name})")
        with showing(self.lines):
            keys = self._hashes(list(token_ids), size, root)
        if not isinstance(keys, list):
            self.fail(f"a list of keys is wanted, one per full block; this is {returned(keys)}")
        if not all(isinstance(key, bytes) for key in keys):
            self.fail(f"a key is bytes, from a digest(); this is {keys!r:.60}")
        self.lines[-1] += f"   # {', '.join(key.hex()[:8] for key in keys) or 'no keys'}"
        return keys

    def differ(self, one: Sequence[int], other: Sequence[int], why: str) -> None:
        """Two blocks, each a prompt of its own, must have different keys."""
        if self.keys(one, len(one)) == self.keys(other, len(other)):
            self.fail(why)

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)


def _full_blocks_only(hashes: Hashes) -> None:
    for size in (1, 2, 3):
        for length in range(8):
            asked = Asked(hashes)
            keys = asked.keys(range(5, 5 + length), size)
            if len(keys) != length // size:
                asked.fail(
                    f"of {length} tokens, {length // size} blocks of {size} are full, so there are "
                    f"as many keys, not {len(keys)}: what is not full has none"
                )


def _keys_are_long(hashes: Hashes) -> None:
    asked = Asked(hashes)
    for key in asked.keys([5, 6], 1):
        if len(key) < SHORTEST:
            asked.fail(
                f"a key has {len(key)} bytes: with fewer than {SHORTEST}, two different blocks "
                "will share a key some day"
            )


def _other_tokens_other_key(hashes: Hashes) -> None:
    for one, other in (([1], [2]), ([1, 2], [1, 3]), ([1, 2], [3, 2])):
        Asked(hashes).differ(one, other, "other tokens have other keys and values in the cache")


def _order_counts(hashes: Hashes) -> None:
    Asked(hashes).differ([1, 2], [2, 1], "the same tokens in another order are another text")


def _tokens_are_kept_apart(hashes: Hashes) -> None:
    for one, other in (([1, 23], [12, 3]), ([1, 1], [11, 1]), ([0, 1], [1, 0])):
        Asked(hashes).differ(one, other, "written one behind the other these look the same")


def _whole_token_ids(hashes: Hashes) -> None:
    for bits in (8, 16, 24):
        why = f"{1 + 2**bits} needs over {bits} bits: vocabularies have 150,000 tokens or more"
        Asked(hashes).differ([1], [1 + 2**bits], why)


def _not_by_hash(hashes: Hashes) -> None:
    asked = Asked(hashes)

    def refuse(value: object) -> None:
        asked.fail(
            "Python's hash() differs from process to process (PYTHONHASHSEED), has 64 bits, and "
            "anybody can construct two texts with the same one"
        )

    with mock.patch("builtins.hash", refuse):
        asked.keys([1, 2], 1)


def _knows_what_came_before(hashes: Hashes) -> None:
    for size in (1, 2):
        asked = Asked(hashes)
        one = asked.keys([1] * size + [7] * size, size)
        other = asked.keys([2] * size + [7] * size, size)
        if one[1] == other[1]:
            asked.fail(
                "the second blocks have the same tokens, but behind other ones: attention has "
                "mixed those in, so the cached values differ"
            )


def _the_root_is_the_first_parent(hashes: Hashes) -> None:
    asked = Asked(hashes)
    if asked.keys([1, 2], 2, ROOT) == asked.keys([1, 2], 2, OTHER_ROOT):
        asked.fail(
            "the roots differ (in their last byte), so nothing may match: the root stands for "
            "model, adapter and salt"
        )


def _goes_on_from_any_block(hashes: Hashes) -> None:
    for size in (1, 2):
        first, second = [1] * size, [2] * size
        asked = Asked(hashes)
        whole = asked.keys(first + second, size)
        begun = asked.keys(first, size)
        rest = asked.keys(second, size, begun[-1])
        if whole != begun + rest:
            asked.fail(
                "as an answer grows the engine goes on from the last key: the same keys must come "
                "out as for the whole text at once"
            )


RULES = (
    Rule(
        "full_blocks_only",
        BLOCKS,
        "There is one key for each full block, in order.",
        "range(0, len(token_ids) - block_size + 1, block_size) gives where full blocks begin.",
        _full_blocks_only,
    ),
    Rule(
        "keys_are_long",
        BLOCKS,
        "A key has 16 bytes or more.",
        "hashlib.sha256(...).digest() has 32; do not cut it to fewer than 16.",
        _keys_are_long,
    ),
    Rule(
        "other_tokens_other_key",
        BLOCKS,
        "Blocks with different tokens have different keys.",
        "Put every token of the block into the digest.",
        _other_tokens_other_key,
    ),
    Rule(
        "order_counts",
        BLOCKS,
        "The order of the tokens counts.",
        "Neither sort nor add up tokens.",
        _order_counts,
    ),
    Rule(
        "tokens_are_kept_apart",
        BLOCKS,
        "It is clear where one token ends and the next begins.",
        "The same number of bytes for each: token.to_bytes(8, 'little').",
        _tokens_are_kept_apart,
    ),
    Rule(
        "whole_token_ids",
        BLOCKS,
        "Nothing of a token id is cut off.",
        "One byte holds 256 ids, two hold 65,536. Use 8.",
        _whole_token_ids,
    ),
    Rule(
        "not_by_hash",
        BLOCKS,
        "A key is a cryptographic digest, the same in every process.",
        "hashlib, not hash().",
        _not_by_hash,
    ),
    Rule(
        "knows_what_came_before",
        CHAIN,
        "A block's key depends on everything before it.",
        "Begin each digest with the key of the block before.",
        _knows_what_came_before,
    ),
    Rule(
        "the_root_is_the_first_parent",
        CHAIN,
        "The first block's parent is the root, all of it.",
        "parent = root, before the loop.",
        _the_root_is_the_first_parent,
    ),
    Rule(
        "goes_on_from_any_block",
        CHAIN,
        "A key needs nothing but its parent's key and its own tokens.",
        "No index, and no tokens of earlier blocks: the parent stands for all of them.",
        _goes_on_from_any_block,
    ),
)

SUITE = Suite(
    "block_hashes",
    (BLOCKS, CHAIN),
    RULES,
    {
        BLOCKS: Ladder(
            drawing="""\
block_size 4

  tokens   [ 5 8 2 9 ][ 7 7 1 3 ][ 4 6          10 tokens
  keys        key 0      key 1      none        the third block is not full""",
            pseudocode="""\
for each full block:
    digest of its tokens, eight bytes each
    note it""",
            near_miss="""\
- digest = sha256("".join(map(str, block)).encode())       # [1, 23] and [12, 3] look the same
+ digest = sha256(b"".join(token.to_bytes(8, "little") for token in block))""",
        ),
        CHAIN: Ladder(
            drawing="""\
  root --.          .--> key 0 --.          .--> key 1
         +-> digest-+            +-> digest-+
  block 0'                block 1'""",
            pseudocode="""\
parent = root
for each full block:
    key = digest of (parent, the block's tokens)
    note it
    parent = key""",
            near_miss="""\
  for start in ...:
-     key = sha256(root + tokens).digest()                 # every block hangs on the root
+     key = sha256(parent + tokens).digest()
+     parent = key""",
        ),
    },
)
