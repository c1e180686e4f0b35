"""Variants of `prefix_cache`; see `variants` for their form."""

CACHE = """
    from collections import OrderedDict

    class PrefixCache:
        def __init__(self):
            self.known = OrderedDict()

        def match(self, hashes):
            blocks = []
            for key in hashes:
                if key not in self.known:
                    break
                self.known.move_to_end(key)
                blocks.append(self.known[key][0])
            return blocks

        def register(self, hashes, index, block):
            key = hashes[index]
            parent = hashes[index - 1] if index else None
            if key not in self.known:
                self.known[key] = (block, parent)

        def evict(self, is_used):
            parents = {parent for _, parent in self.known.values()}
            for key, (block, parent) in self.known.items():
                if key not in parents and not is_used(block):
                    del self.known[key]
                    return block
            return None
"""

CACHE_OF_CHILDREN = """
    from itertools import takewhile

    class PrefixCache:
        def __init__(self):
            self.block, self.parent, self.children, self.used_at = {}, {}, {}, {}
            self.clock = 0

        def touch(self, key):
            self.clock += 1
            self.used_at[key] = self.clock

        def match(self, hashes):
            run = list(takewhile(self.block.__contains__, hashes))
            for key in run:
                self.touch(key)
            return [self.block[key] for key in run]

        def register(self, hashes, index, block):
            key = hashes[index]
            self.touch(key)
            if key in self.block:
                return
            self.block[key] = block
            if index > 0:
                self.parent[key] = hashes[index - 1]
                self.children.setdefault(hashes[index - 1], set()).add(key)

        def evict(self, is_used):
            leaves = [
                key
                for key, block in self.block.items()
                if not self.children.get(key) and not is_used(block)
            ]
            if not leaves:
                return
            oldest = min(leaves, key=self.used_at.get)
            if oldest in self.parent:
                self.children[self.parent.pop(oldest)].discard(oldest)
            return self.block.pop(oldest)
"""

RIGHT = (
    "PrefixCache",
    {"as in the lesson": CACHE, "counts children": CACHE_OF_CHILDREN},
)
WRONG = {
    "returns None": (
        "            return blocks\n",
        "            return blocks or None\n",
        "an_empty_one_knows_nothing",
        "a list of block ids",
    ),
    "finds only the last": (
        "            return blocks\n",
        "            return blocks[-1:]\n",
        "finds_what_was_registered",
        "block by block",
    ),
    "forgets": (
        "self.known[key] = (block, parent)",
        "pass",
        "finds_what_was_registered",
        "all of it was registered",
    ),
    "registers what follows": (
        "            if key not in self.known:\n                self.known[key]",
        "            for key in hashes[index:]:\n                self.known[key]",
        "only_the_block_it_is_told",
        "not been computed yet",
    ),
    "goes on behind a gap": (
        "                    break\n",
        "                    continue\n",
        "the_longest_run_from_the_start",
        "the run ends there",
    ),
    "all or nothing": (
        "                    break\n",
        "                    return []\n",
        "only_the_block_it_is_told",
        "not been computed yet",
    ),
    "a miss is noted": (
        "                    break\n",
        "                    self.known[key] = (-1, None)\n                    break\n",
        "looking_up_registers_nothing",
        "has computed nothing",
    ),
    "the last one stays": (
        "            if key not in self.known:\n                self.known",
        "            if True:\n                self.known",
        "the_first_stays",
        "others may be reading the first",
    ),
    "remembers": (
        "                    del self.known[key]\n",
        "",
        "gives_up_and_forgets",
        "will hold something else",
    ),
    "gives up the hash": (
        "                    return block\n",
        "                    return key\n",
        "gives_up_and_forgets",
        "nobody uses it",
    ),
    "minus one when empty": (
        "            return None\n",
        "            return -1\n",
        "none_when_there_is_none",
        "nothing to evict",
    ),
    "takes what is in use": (
        " and not is_used(block)",
        "",
        "never_in_use",
        "somebody reads block 7",
    ),
    "newest first": (
        "in self.known.items():",
        "in reversed(self.known.items()):",
        "the_least_recent_goes",
        "registered first",
    ),
    "first in, first out": (
        "                self.known.move_to_end(key)\n",
        "",
        "a_match_is_a_use",
        "matched a moment ago",
    ),
    "plain LRU": (
        "key not in parents and ",
        "",
        "leaf_first",
        "the end goes first",
    ),
    "one follower is enough": (
        "            parents = {parent for _, parent in self.known.values()}\n",
        "            self.lost = getattr(self, 'lost', set())\n"
        "            self.lost |= self.seen if hasattr(self, 'seen') else set()\n"
        "            parents = {parent for _, parent in self.known.values()} - self.lost\n"
        "            ends = [k for k, (b, _) in self.known.items()"
        " if k not in parents and not is_used(b)]\n"
        "            self.seen = {self.known[key][1] for key in ends[:1]}\n",
        "a_parent_waits_for_all_its_children",
        "y still follows",
    ),
    "the parent gets younger": (
        "                    del self.known[key]\n",
        "                    del self.known[key]\n"
        "                    if parent in self.known:\n"
        "                        self.known.move_to_end(parent)\n",
        "a_parent_keeps_its_age",
        "is a leaf now",
    ),
}
