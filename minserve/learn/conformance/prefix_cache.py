"""The rules of a prefix cache: `match`, `register`, `evict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

LOOK_UP, EVICT = "look up", "evict"


class Tried:
    """A cache under test, which writes down every call. Text `abc` has the hashes a, ab, abc."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.lines = ["cache = PrefixCache()   # one letter a block; hashes of 'ab': of a, of ab"]
        self.cache = self._call(make)

    def match(self, text: str) -> list[int]:
        """What the cache finds of `text`, one letter a block."""
        self.lines.append(f"cache.match(hashes of {text!r})")
        blocks = self._call(lambda: self.cache.match(_hashes(text)))
        self.lines[-1] += f"   # -> {blocks!r:.60}"
        if not isinstance(blocks, list):
            self.fail(f"a list of block ids is wanted, often empty; this is {returned(blocks)}")
        return blocks

    def register(self, text: str, index: int, block: int) -> None:
        """Block `block` now holds letter `index` of `text`."""
        self.lines.append(f"cache.register(hashes of {text!r}, index={index}, block={block})")
        self._call(lambda: self.cache.register(_hashes(text), index, block))

    def register_all(self, text: str, *blocks: int) -> None:
        """One block after another, as the engine computes them."""
        for index, block in enumerate(blocks):
            self.register(text, index, block)

    def evict(self, *used: int) -> int | None:
        """Whom the cache gives up while the blocks `used` are in use."""
        self.lines.append(f"cache.evict(is_used)   # in use: {list(used) or 'none'}")
        block = self._call(lambda: self.cache.evict(lambda block: block in used))
        self.lines[-1] += f" -> {block!r:.40}"
        return block

    def expect(self, text: str, wanted: Sequence[int], why: str) -> None:
        """`match` must find these blocks."""
        blocks = self.match(text)
        if blocks != list(wanted):
            self.fail(f"{why}: {list(wanted)} expected, not {blocks}")

    def expect_evicted(self, wanted: int | None, why: str, *used: int) -> None:
        """`evict` must give up this block."""
        block = self.evict(*used)
        if block != wanted:
            self.fail(f"{why}: {wanted} expected, not {block!r}")

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)

    def _call(self, call: Callable[[], Any]) -> Any:
        with showing(self.lines):
            return call()


def _hashes(text: str) -> list[bytes]:
    return [text[: end + 1].encode().rjust(16, b".") for end in range(len(text))]


def _an_empty_one_knows_nothing(make) -> None:
    Tried(make).expect("ab", [], "nothing was registered")


def _finds_what_was_registered(make) -> None:
    for text, blocks in (("a", [7]), ("ab", [7, 3]), ("abc", [7, 3, 0])):
        tried = Tried(make)
        tried.register_all(text, *blocks)
        tried.expect(text, blocks, "all of it was registered, block by block")


def _only_the_block_it_is_told(make) -> None:
    tried = Tried(make)
    tried.register("abc", 0, 7)
    tried.expect("abc", [7], "the other blocks have not been computed yet")


def _the_longest_run_from_the_start(make) -> None:
    tried = Tried(make)
    tried.register_all("abc", 7, 3, 0)
    tried.expect("abx", [7, 3], "the third block differs, the first two are known")
    tried.expect("xbc", [], "the first block differs, and everything hangs on it")
    tried = Tried(make)
    tried.register("abc", 0, 7)
    tried.register("abc", 2, 0)
    tried.expect("abc", [7], "block 1 is missing: the run ends there, whatever follows")


def _looking_up_registers_nothing(make) -> None:
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.match("ab")
    tried.expect("ab", [7], "looking for it has computed nothing")


def _the_first_stays(make) -> None:
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.register("a", 0, 3)
    tried.expect("a", [7], "the same content twice: others may be reading the first")


def _gives_up_and_forgets(make) -> None:
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.expect_evicted(7, "it is the only block, and nobody uses it")
    tried.expect("a", [], "block 7 was evicted and will hold something else")


def _none_when_there_is_none(make) -> None:
    Tried(make).expect_evicted(None, "there is nothing to evict")
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.evict()
    tried.expect_evicted(None, "block 7 has gone already")


def _never_in_use(make) -> None:
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.register("b", 0, 3)
    tried.expect_evicted(3, "somebody reads block 7", 7)
    tried.expect_evicted(None, "somebody reads block 7, and nothing else is left", 7)


def _the_least_recent_goes(make) -> None:
    tried = Tried(make)
    for letter, block in (("a", 3), ("b", 9), ("c", 1)):
        tried.register(letter, 0, block)
    tried.expect_evicted(3, "it was registered first and never used since")
    tried.expect_evicted(9, "it is the oldest now")


def _a_match_is_a_use(make) -> None:
    tried = Tried(make)
    tried.register("a", 0, 7)
    tried.register("b", 0, 3)
    tried.match("a")
    tried.expect_evicted(3, "block 7 was matched a moment ago")


def _leaf_first(make) -> None:
    for text, blocks in (("ab", (7, 3)), ("abc", (7, 3, 5))):
        tried = Tried(make)
        tried.register_all(text, *blocks)
        for block in blocks[::-1]:
            why = "a block cannot be matched without those before it, so the end goes first"
            tried.expect_evicted(block, why)


def _a_parent_waits_for_all_its_children(make) -> None:
    tried = Tried(make)
    tried.register_all("ax", 7, 3)
    tried.register("ay", 1, 5)
    tried.expect_evicted(3, "x is the older of the two leaves")
    tried.expect_evicted(5, "y still follows block 7")
    tried.expect_evicted(7, "nothing follows it any more")


def _a_parent_keeps_its_age(make) -> None:
    tried = Tried(make)
    tried.register_all("ax", 7, 3)
    tried.register("b", 0, 9)
    tried.expect_evicted(3, "of the leaves 3 and 9 it is the older")
    tried.expect_evicted(7, "it was last used before 9, and is a leaf now")


RULES = (
    Rule(
        "an_empty_one_knows_nothing",
        LOOK_UP,
        "What was never registered is not found.",
        "Return an empty list.",
        _an_empty_one_knows_nothing,
    ),
    Rule(
        "finds_what_was_registered",
        LOOK_UP,
        "match returns the registered blocks, in the order of the hashes.",
        "A dict from hash to block; register puts hashes[index] in.",
        _finds_what_was_registered,
    ),
    Rule(
        "only_the_block_it_is_told",
        LOOK_UP,
        "register makes one block known: the one that was computed.",
        "hashes[index], and no other hash of the list, has a block now.",
        _only_the_block_it_is_told,
    ),
    Rule(
        "the_longest_run_from_the_start",
        LOOK_UP,
        "match ends at the first hash that is not known.",
        "Use `break`, not `continue`.",
        _the_longest_run_from_the_start,
    ),
    Rule(
        "looking_up_registers_nothing",
        LOOK_UP,
        "match makes nothing known.",
        "A defaultdict or setdefault in match adds what it does not find.",
        _looking_up_registers_nothing,
    ),
    Rule(
        "the_first_stays",
        LOOK_UP,
        "A hash that is known keeps its block.",
        "if key not in self.known: ...",
        _the_first_stays,
    ),
    Rule(
        "gives_up_and_forgets",
        EVICT,
        "evict returns a block, and match never finds it again.",
        "Delete its hash before you return it.",
        _gives_up_and_forgets,
    ),
    Rule(
        "none_when_there_is_none",
        EVICT,
        "Without a block to give up, evict returns None.",
        "Let the loop come to its end.",
        _none_when_there_is_none,
    ),
    Rule(
        "never_in_use",
        EVICT,
        "A block that somebody uses stays.",
        "Ask is_used(block) of each candidate.",
        _never_in_use,
    ),
    Rule(
        "the_least_recent_goes",
        EVICT,
        "Of the blocks that may go, the one whose last use is longest ago goes.",
        "A dict keeps the order of insertion; OrderedDict.move_to_end makes an entry the newest.",
        _the_least_recent_goes,
    ),
    Rule(
        "a_match_is_a_use",
        EVICT,
        "A block that match returns counts as used just now.",
        "In match: self.known.move_to_end(key)",
        _a_match_is_a_use,
    ),
    Rule(
        "leaf_first",
        EVICT,
        "A block goes only when no known block follows it.",
        "Keep each block's parent, hashes[index - 1]; a key that is somebody's parent stays.",
        _leaf_first,
    ),
    Rule(
        "a_parent_waits_for_all_its_children",
        EVICT,
        "A block with several followers stays until the last of them has gone.",
        "Count them, or look through the parents of all entries anew.",
        _a_parent_waits_for_all_its_children,
    ),
    Rule(
        "a_parent_keeps_its_age",
        EVICT,
        "Losing its last follower does not make a block newer.",
        "Evicting is no use: move nothing to the end.",
        _a_parent_keeps_its_age,
    ),
)

SUITE = Suite(
    "prefix_cache",
    (LOOK_UP, EVICT),
    RULES,
    {
        LOOK_UP: Ladder(
            drawing="""\
known:   h0 -> block 7    h1 -> block 3

  match([h0, h1, h2])  ->  [7, 3]        h2 is not known: the run ends
  match([x0, h1, h2])  ->  []            the first is not known: so ends the run""",
            pseudocode="""\
match:     for each hash: if it is not known, stop; else note its block
register:  if hashes[index] is not known yet, it is `block` now; remember its parent too""",
            near_miss="""\
  for key in hashes:
      if key not in self.known:
-         continue
+         break""",
        ),
        EVICT: Ladder(
            drawing="""\
oldest                          newest
  h0: 7      x0: 4      h1: 3              h1 follows h0

  evict -> 4     block 7 is older, but h1 could not be matched without it""",
            pseudocode="""\
match and register: make what they touch the newest
evict:  parents = the parents of all entries
        from the oldest to the newest:
            nobody's parent, and not in use?  forget it, return its block
        return None""",
            near_miss="""\
+ parents = {parent for _, parent in self.known.values()}
  for key, (block, parent) in self.known.items():
-     if not is_used(block):
+     if key not in parents and not is_used(block):
          del self.known[key]
          return block""",
        ),
    },
)
