"""Variants of the parts of lesson 4; see `variants` for the form of the tables."""

from __future__ import annotations

HASHES = """
    from hashlib import blake2b

    def block_hashes(token_ids, block_size, root):
        hashes = []
        parent = root
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            tokens = token_ids[start : start + block_size]
            content = b"".join(token.to_bytes(8, "little") for token in tokens)
            parent = blake2b(parent + content, digest_size=16).digest()
            hashes.append(parent)
        return hashes
"""
HASHES_BY_JSON = """
    import json
    from hashlib import sha256
    from itertools import accumulate

    def block_hashes(token_ids, block_size, root):
        count = len(token_ids) // block_size
        blocks = [token_ids[n * block_size : (n + 1) * block_size] for n in range(count)]

        def key(parent, block):
            return sha256(json.dumps([parent.hex(), list(block)]).encode()).digest()

        return list(accumulate(blocks, key, initial=root))[1:]
"""

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

SALT = """
    import hmac
    from hashlib import sha256

    def cache_salt(secret, identity, scope):
        if scope == "user":
            shared = ("user", identity.tenant, identity.user)
        elif scope == "application" and identity.application:
            shared = ("application", identity.application)
        elif scope in ("tenant", "application"):
            shared = ("tenant", identity.tenant)
        elif scope == "global":
            shared = ("global",)
        else:
            raise ValueError(scope)
        message = b""
        for field in shared:
            text = field.encode()
            message += len(text).to_bytes(8, "little") + text
        return hmac.new(secret, message, sha256).hexdigest()
"""
SALT_BY_JSON = """
    import hmac
    import json

    def salt_for(secret, who, scope):
        tenant = {"tenant": who.tenant}
        shared = {
            "user": {**tenant, "user": who.user},
            "tenant": tenant,
            "application": {"application": who.application} if who.application else tenant,
            "global": {},
        }[scope]
        text = json.dumps(shared, sort_keys=True)
        return hmac.digest(secret, text.encode(), "sha512").hex()

    def cache_salt(secret, identity, scope):
        return salt_for(secret, identity, scope)
"""

RIGHT = {
    "block_hashes": ("block_hashes", {"as in the lesson": HASHES, "json": HASHES_BY_JSON}),
    "prefix_cache": (
        "PrefixCache",
        {"as in the lesson": CACHE, "counts children": CACHE_OF_CHILDREN},
    ),
    "cache_salt": ("cache_salt", {"as in the lesson": SALT, "json": SALT_BY_JSON}),
}

# Each mistake: what to replace, by what, the rule that must catch it first, part of its message.
WRONG = {
    "block_hashes": {
        "half a block": (
            "len(token_ids) - block_size + 1",
            "len(token_ids)",
            "full_blocks_only",
            "what is not full has none",
        ),
        "forgets the last": (
            "len(token_ids) - block_size + 1",
            "len(token_ids) - block_size",
            "full_blocks_only",
            "there are as many keys",
        ),
        "text": (
            "hashes.append(parent)",
            "hashes.append(parent.hex())",
            "full_blocks_only",
            "a key is bytes",
        ),
        "short": ("digest_size=16", "digest_size=8", "keys_are_long", "8 bytes"),
        "only where it stands": (
            "parent + content",
            "parent + bytes(len(content))",
            "other_tokens_other_key",
            "other tokens have other keys",
        ),
        "only the last token": (
            "for token in tokens)",
            "for token in tokens[-1:])",
            "other_tokens_other_key",
            "other tokens have other keys",
        ),
        "sorted": ("for token in tokens)", "for token in sorted(tokens))", "order_counts", "order"),
        "digits in a row": (
            'token.to_bytes(8, "little")',
            "str(token).encode()",
            "tokens_are_kept_apart",
            "these look the same",
        ),
        "one byte a token": (
            'token.to_bytes(8, "little")',
            "bytes([token % 256])",
            "whole_token_ids",
            "257 needs",
        ),
        "two bytes a token": (
            'token.to_bytes(8, "little")',
            '(token % 65536).to_bytes(2, "little")',
            "whole_token_ids",
            "65537 needs",
        ),
        "Python's hash": (
            "blake2b(parent + content, digest_size=16).digest()",
            '(hash((parent, tuple(tokens))) % 2**64).to_bytes(16, "little")',
            "not_by_hash",
            "PYTHONHASHSEED",
        ),
        "no chain": (
            "parent = blake2b(parent + content, digest_size=16).digest()\n"
            "            hashes.append(parent)",
            "hashes.append(blake2b(root + content, digest_size=16).digest())",
            "knows_what_came_before",
            "attention has mixed those in",
        ),
        "no root": ("parent = root\n", 'parent = b""\n', "the_root_is_the_first_parent", "model"),
        "half the parent": (
            "blake2b(parent + content",
            "blake2b(parent[:8] + content",
            "the_root_is_the_first_parent",
            "the roots differ",
        ),
        "all of the text so far": (
            "blake2b(parent + content",
            'blake2b(root + b"".join(t.to_bytes(8, "little") for t in token_ids[:start]) + content',
            "goes_on_from_any_block",
            "the engine goes on from the last key",
        ),
        "counts blocks": (
            "blake2b(parent + content",
            'blake2b(start.to_bytes(8, "little") + parent + content',
            "goes_on_from_any_block",
            "the engine goes on from the last key",
        ),
    },
    "prefix_cache": {
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
    },
    "cache_salt": {
        "short": (".hexdigest()", ".hexdigest()[:8]", "long_enough", "8 characters"),
        "bytes": (".hexdigest()", ".digest()", "long_enough", "a salt is text"),
        "random": (
            "hmac.new(secret, message",
            'hmac.new(__import__("os").urandom(8), message',
            "always_the_same",
            "the same caller at another time",
        ),
        "tenant means user": (
            '            shared = ("tenant", identity.tenant)\n',
            '            shared = ("tenant", identity.tenant, identity.user)\n',
            "a_tenant_shares",
            "both are of the tenant",
        ),
        "application within the tenant": (
            '("application", identity.application)\n',
            '("application", identity.tenant, identity.application)\n',
            "an_application_shares",
            "both use the application",
        ),
        "nobody shares": (
            'shared = ("global",)',
            'shared = ("global", identity.tenant)',
            "all_share",
            "everybody",
        ),
        "everybody shares": (
            '            shared = ("tenant", identity.tenant)\n',
            '            shared = ("tenant", "")\n',
            "tenants_are_apart",
            "two tenants",
        ),
        "user names are enough": (
            '("user", identity.tenant, identity.user)',
            '("user", identity.user)',
            "tenants_are_apart",
            "two tenants",
        ),
        "user means tenant": (
            '("user", identity.tenant, identity.user)',
            '("user", identity.tenant)',
            "users_are_apart",
            "two people",
        ),
        "one for all applications": (
            '("application", identity.application)\n',
            '("application",)\n',
            "applications_are_apart",
            "two applications",
        ),
        "no application is one too": (
            'scope == "application" and identity.application:',
            'scope == "application":',
            "without_an_application_it_is_the_tenant",
            "neither has an application",
        ),
        "in a row": (
            'len(text).to_bytes(8, "little") + text',
            "text",
            "fields_are_kept_apart",
            "written in a row",
        ),
        "colons": (
            'len(text).to_bytes(8, "little") + text',
            'b":" + text',
            "fields_are_kept_apart",
            "written in a row",
        ),
        "not typed": (
            "for field in shared:",
            "for field in shared[1:]:",
            "fields_are_typed",
            "the application desk",
        ),
        "no secret": (
            "hmac.new(secret, message, sha256)",
            "sha256(message)",
            "needs_the_secret",
            "could compute the salt",
        ),
        "half the secret": (
            "hmac.new(secret,",
            "hmac.new(secret[:8],",
            "needs_the_secret",
            "could compute the salt",
        ),
        "tenant if in doubt": (
            'elif scope in ("tenant", "application"):',
            'elif scope != "global":',
            "an_unknown_scope_is_refused",
            "there is no scope",
        ),
        "global if in doubt": (
            "raise ValueError(scope)",
            'shared = ("everybody",)',
            "an_unknown_scope_is_refused",
            "there is no scope",
        ),
    },
}
