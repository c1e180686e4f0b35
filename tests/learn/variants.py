"""Right parts, each written in two ways, and wrong ones: the first right part with one mistake."""

from __future__ import annotations

import variants_admission
import variants_engine
import variants_jobs
import variants_load
import variants_prefix
import variants_reuse

# -- right parts, written differently

POOL = """
    from minserve.errors import BlockError, OutOfBlocks
    from minserve.kv.blocks import BlockCopy
    from minserve.learn import PoolBase

    class Pool(PoolBase):
        def allocate(self, num_tokens):
            return self.take(self.blocks_for(num_tokens))

        def append(self, table, num_held, num_new):
            missing = max(0, self.blocks_for(num_held + num_new) - len(table))
            first = num_held // self.block_size
            shared = [i for i in range(first, len(table)) if self.references[table[i]] > 1]
            fresh = self.take(missing + len(shared))
            copies = []
            for i in shared:
                copies.append(BlockCopy(table[i], fresh[0]))
                self.references[table[i]] -= 1
                table[i] = fresh.pop(0)
            table.extend(fresh)
            return copies

        def share(self, blocks):
            if any(self.references[block] == 0 for block in blocks):
                raise BlockError("a free block holds nothing to share")
            for block in blocks:
                self.references[block] += 1
            return list(blocks)

        def release(self, table):
            if any(self.references[block] == 0 for block in table):
                raise BlockError("released before")
            for block in table:
                self.references[block] -= 1
                if self.references[block] == 0:
                    self.free.append(block)
            table.clear()

        def take(self, count):
            if count > len(self.free):
                raise OutOfBlocks("too few")
            blocks = [self.free.pop() for _ in range(count)]
            for block in blocks:
                self.references[block] = 1
            return blocks
"""

POOL_OF_OWN_BOOKS = """
    from collections import Counter
    from minserve.errors import BlockError, OutOfBlocks
    from minserve.kv.blocks import BlockCopy

    class Pool:
        def __init__(self, num_blocks, block_size):
            self.num_blocks, self.block_size = num_blocks, block_size
            self.holders = Counter()

        @property
        def num_used(self):
            return len(self.holders)

        @property
        def num_free(self):
            return self.num_blocks - self.num_used

        def allocate(self, num_tokens):
            table = []
            self.append(table, 0, num_tokens)
            return table

        def append(self, table, num_held, num_new):
            size = self.block_size
            end = (num_held + num_new + size - 1) // size
            written = range(num_held // size, len(table))
            copied = [i for i in written if self.holders[table[i]] > 1]
            unused = [b for b in range(self.num_blocks) if b not in self.holders]
            needed = len(copied) + max(0, end - len(table))
            if needed > len(unused):
                raise OutOfBlocks("full")
            copies = []
            for i in copied:
                copies.append(BlockCopy(table[i], unused.pop()))
                self.holders[table[i]] -= 1
                table[i] = copies[-1].target
                self.holders[table[i]] = 1
            while len(table) < end:
                table.append(unused.pop())
                self.holders[table[-1]] = 1
            return copies

        def share(self, blocks):
            copy = [*blocks]
            if not set(copy) <= set(self.holders):
                raise BlockError("free")
            self.holders.update(copy)
            return copy

        def release(self, table):
            for block in table:
                if block not in self.holders:
                    raise BlockError("free")
            while table:
                block = table.pop()
                if self.holders[block] == 1:
                    del self.holders[block]
                else:
                    self.holders[block] -= 1
"""

ESTIMATE = """
    def estimate(config, bytes_per_value):
        values = 2 * config.num_hidden_layers * config.num_kv_heads * config.head_dim
        return values * bytes_per_value
"""

ESTIMATE_BY_PARTS = """
    def estimate(config, bytes_per_value):
        one_vector = config.head_dim * bytes_per_value
        total = 0
        for layer in range(config.num_hidden_layers):
            for head in range(config.num_kv_heads):
                total += one_vector  # key
                total += one_vector  # value
        return total
"""

ATTEND = """
    import torch

    def attend(query, key_cache, value_cache, block_table, num_context_tokens):
        keys = key_cache[block_table].flatten(0, 1)[:num_context_tokens]
        values = value_cache[block_table].flatten(0, 1)[:num_context_tokens]
        group = query.shape[0] // keys.shape[1]
        keys = keys.repeat_interleave(group, dim=1)
        values = values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[1] ** 0.5
        weights = torch.softmax(scores, dim=1)
        return torch.einsum("ht,thd->hd", weights, values)
"""

ATTEND_BY_LOOP = """
    import math
    import torch

    def attend(query, key_cache, value_cache, block_table, num_context_tokens):
        size, kv_heads = key_cache.shape[1], key_cache.shape[2]
        out = torch.zeros_like(query)
        for head in range(len(query)):
            kv_head = head // (len(query) // kv_heads)
            scores, values = [], []
            for position in range(num_context_tokens):
                block, slot = block_table[position // size], position % size
                key = key_cache[block, slot, kv_head]
                scores.append(float(query[head] @ key) / math.sqrt(len(key)))
                values.append(value_cache[block, slot, kv_head])
            highest = max(scores)
            weights = [math.exp(score - highest) for score in scores]
            for weight, value in zip(weights, values):
                out[head] += weight / sum(weights) * value
        return out
"""

ROOM = """
    def room(running, num_missing):
        victims = []
        by_arrival = sorted(running, key=lambda c: c.arrival_s)
        for candidate in reversed(by_arrival[1:]):
            if num_missing <= 0:
                break
            victims.append(candidate.id)
            num_missing -= candidate.num_blocks
        return victims
"""

ROOM_BY_POPPING = """
    def room(running, num_missing):
        left = {c.arrival_s: c for c in running}
        victims = []
        while num_missing > 0 and len(left) > 1:
            candidate = left.pop(max(left))
            num_missing -= candidate.num_blocks
            victims += [candidate.id]
        return victims
"""

RIGHT = {
    "block_pool": ("Pool", {"base class": POOL, "own books": POOL_OF_OWN_BOOKS}),
    "kv_bytes_per_token": ("estimate", {"formula": ESTIMATE, "loops": ESTIMATE_BY_PARTS}),
    "paged_attention": ("attend", {"einsum": ATTEND, "loops": ATTEND_BY_LOOP}),
    "preemption": ("room", {"sorted": ROOM, "popping": ROOM_BY_POPPING}),
}

# part -> (what is replaced in the first right part, by what, the rule, what the learner reads)
WRONG = {
    "block_pool": {
        "rounds down": (
            "self.take(self.blocks_for(num_tokens))",
            "self.take(num_tokens // self.block_size)",
            "just_enough_blocks",
            "need 1 block of 2; the table has 0",
        ),
        "always one more": (
            "self.take(self.blocks_for(num_tokens))",
            "self.take(num_tokens // self.block_size + 1)",
            "just_enough_blocks",
            "0 tokens need 0 blocks of 1; the table has 1",
        ),
        "counts blocks as tokens": (
            "self.take(self.blocks_for(num_tokens))",
            "self.take(num_tokens)",
            "just_enough_blocks",
            "2 tokens need 1 block of 2; the table has 2",
        ),
        "hands the same blocks out again": (
            "[self.free.pop() for _ in range(count)]",
            "self.free[:count]",
            "one_owner_per_block",
            "was handed out twice",
        ),
        "off by one": (
            "count > len(self.free)",
            "count >= len(self.free)",
            "the_last_block_can_be_had",
            "this must succeed, but raises OutOfBlocks",
        ),
        "no check, so the wrong exception": (
            'raise OutOfBlocks("too few")',
            "pass",
            "refuses_whole",
            "must raise OutOfBlocks; it raises IndexError",
        ),
        "returns None when full": (
            'raise OutOfBlocks("too few")',
            "return None",
            "refuses_whole",
            "must raise OutOfBlocks; it returns None",
        ),
        "a short table when full": (
            'raise OutOfBlocks("too few")',
            "count = len(self.free)",
            "refuses_whole",
            "must raise OutOfBlocks; it returns [",
        ),
        "takes before it checks": (
            'raise OutOfBlocks("too few")',
            'self.free.clear(); raise OutOfBlocks("too few")',
            "refuses_whole",
            "whatever raises must change nothing",
        ),
        "a new block for every append": (
            "max(0, self.blocks_for(num_held + num_new) - len(table))",
            "self.blocks_for(num_new)",
            "fills_the_last_block",
            "the last block has 1 empty slots, enough for 1",
        ),
        "grows a list of its own": (
            "table.extend(fresh)",
            "table = table + fresh",
            "grows_in_place",
            "0 + 1 tokens need 1 block of 1; the table has 0",
        ),
        "puts new blocks first": (
            "table.extend(fresh)",
            "table[:0] = fresh",
            "grows_in_place",
            "the table began as",
        ),
        "ignores room already there": (
            "max(0, self.blocks_for(num_held + num_new) - len(table))",
            "self.blocks_for(num_held + num_new) - self.blocks_for(num_held)",
            "uses_room_already_there",
            "has room for 4 tokens and holds 0, so 1 more fit",
        ),
        "forgets to return the copies": (
            "return copies",
            "return None",
            "fills_the_last_block",
            "append returns None",
        ),
        "share takes new blocks": (
            "return list(blocks)",
            "return self.take(len(blocks))",
            "names_the_same_blocks",
            "its share is",
        ),
        "one list for two owners": (
            "return list(blocks)",
            "return blocks",
            "is_a_list_of_its_own",
            "only b was appended to, yet a is now",
        ),
        "never copies": (
            "if self.references[table[i]] > 1]",
            "if False]",
            "copies_before_writing",
            "b's next token would land in a's memory too",
        ),
        "copies, and does not say so": (
            "copies.append(BlockCopy(table[i], fresh[0]))",
            "pass",
            "copies_before_writing",
            "copies must be [BlockCopy(source=",
        ),
        "copies full blocks too": (
            "first = num_held // self.block_size",
            "first = max(0, len(table) - 1)",
            "full_blocks_stay_shared",
            "is full, b's next token goes into a new block",
        ),
        "keeps holding the source": (
            "self.references[table[i]] -= 1\n                table[i]",
            "table[i]",
            "gives_up_the_source",
            "so a is alone on it and may write",
        ),
        "copy without a block": (
            "fresh = self.take(missing + len(shared))",
            "fresh = self.take(missing) + self.free[:len(shared)]",
            "copies_before_writing",
            "2 free",
        ),
        "copies before it has the rest": (
            "fresh = self.take(missing + len(shared))",
            "fresh = self.take(len(shared)) + self.take(missing)",
            "a_copy_needs_a_block",
            "whatever raises must change nothing",
        ),
        "counts nothing as used": (
            "class Pool(PoolBase):",
            "class Pool(PoolBase):\n        num_used = 0",
            "counts_add_up",
            "2 free and 1 used expected, the pool counts 2 free and 0 used",
        ),
        "counts references as blocks": (
            "class Pool(PoolBase):",
            "class Pool(PoolBase):\n        num_used = property(lambda self: sum(self.references))",
            "names_the_same_blocks",
            "sharing takes no block",
        ),
        "takes one by one": (
            "self.take(missing + len(shared))",
            "[self.take(1)[0] for _ in range(missing + len(shared))]",
            "append_refuses_whole",
            "whatever raises must change nothing",
        ),
        "writes on when full": (
            "self.take(missing + len(shared))",
            "self.take(missing + len(shared)) if self.free or missing else list(table)",
            "a_copy_needs_a_block",
            "must raise OutOfBlocks; it returns",
        ),
        "copies between two owners only": (
            "self.references[table[i]] > 1]",
            "self.references[table[i]] == 2]",
            "every_table_reads_its_own",
            "should read back",
        ),
        "shares free blocks": (
            'raise BlockError("a free block holds nothing to share")',
            "pass",
            "a_free_block_cannot_be_shared",
            "must raise BlockError; it returns",
        ),
        "releases nothing": (
            "self.free.append(block)",
            "pass",
            "returns_every_block",
            "nobody holds a block any more",
        ),
        "loses one block": (
            "for block in table:\n                self.references[block] -= 1",
            "for block in table[1:]:\n                self.references[block] -= 1",
            "returns_every_block",
            "nobody holds a block any more",
        ),
        "leaves the table filled": ("table.clear()", "pass", "empties_the_table", "still lists"),
        "frees what others hold": (
            "if self.references[block] == 0:\n                    self.free.append(block)",
            "self.free.append(block)",
            "the_last_owner_frees",
            "still holds its block",
        ),
        "double free": (
            'raise BlockError("released before")',
            "pass",
            "releases_once",
            "must raise BlockError; it returns None",
        ),
        "silent about a double free": (
            'raise BlockError("released before")',
            "return",
            "releases_once",
            "must raise BlockError; it returns None",
        ),
    },
    "kv_bytes_per_token": {
        "only keys": ("2 * config", "config", "a_key_and_a_value", "8 bytes expected, not 4"),
        "bits": ("* bytes_per_value", "* bytes_per_value * 8", "a_key_and_a_value", "not 64"),
        "a fraction": (
            "values * bytes_per_value",
            "values * bytes_per_value / 1024",
            "returns_a_whole_number",
            "a whole number of bytes",
        ),
        "one layer": ("config.num_hidden_layers", "1", "every_layer", "2 layers keep keys"),
        "always float16": ("* bytes_per_value", "* 2", "each_value_has_bytes", "int8 takes 1"),
        "query heads": (
            "config.num_kv_heads",
            "config.num_attention_heads",
            "kv_heads_only",
            "2 query heads share 1 KV heads",
        ),
        "hidden size": (
            "config.num_kv_heads * config.head_dim",
            "config.hidden_size",
            "kv_heads_only",
            "only KV heads are stored",
        ),
        "derived head size": (
            "config.head_dim",
            "(config.hidden_size // config.num_attention_heads)",
            "head_dim_from_the_config",
            "head_dim is 4 here",
        ),
        "keeps 16 bits": (
            "values * bytes_per_value",
            "values * bytes_per_value % 65536",
            "real_models",
            "Llama-2-7B",
        ),
        "forgets to return": (
            "return values",
            "values",
            "returns_a_whole_number",
            "this is None",
        ),
    },
    "paged_attention": {
        "ignores the table": (
            "[block_table]",
            "[:len(block_table)]",
            "follows_the_table",
            "the context lies in blocks [2]",
        ),
        "sorts the table": (
            "[block_table]",
            "[sorted(block_table)]",
            "nothing_beyond_the_context",
            "others hold somebody's leftovers",
        ),
        "reads leftovers": (
            "[:num_context_tokens]",
            "",
            "nothing_beyond_the_context",
            "2 slots, of which 1 hold the context",
        ),
        "one token short": (
            "[:num_context_tokens]",
            "[:max(1, num_context_tokens - 1)]",
            "follows_the_table",
            "expected, got",
        ),
        "no softmax": (
            "torch.softmax(scores, dim=1)",
            "torch.ones_like(scores) / num_context_tokens",
            "weighs_by_score",
            "weigh e : 1",
        ),
        "softmax over heads": (
            "torch.softmax(scores, dim=1)",
            "torch.softmax(scores, dim=0)",
            "follows_the_table",
            "expected, got",
        ),
        "no scale": (" / query.shape[1] ** 0.5", "", "scales", "the score 4 becomes 4 / 2"),
        "divides by head_dim": ("** 0.5", "** 1", "scales", "the score 4 becomes 4 / 2"),
        "heads far apart share": (
            "repeat_interleave(group, dim=1)",
            "repeat(1, group, 1)",
            "groups_of_heads",
            "with 4 heads over 2 KV heads",
        ),
        "overflows": (
            "torch.softmax(scores, dim=1)",
            "scores.exp() / scores.exp().sum(1, keepdim=True)",
            "large_scores",
            "not finite",
        ),
        "changes the cache": (
            "keys = key_cache[block_table]",
            "key_cache[0] = 0; keys = key_cache[block_table]",
            "shape",
            "one of them was changed",
        ),
        "a window of 8": (
            "[:num_context_tokens]",
            "[:min(8, num_context_tokens)]",
            "as_dense",
            "compared with dense attention",
        ),
        "shape turned": (
            "ht,thd->hd",
            "ht,thd->dh",
            "shape",
            "a tensor of shape [2, 3] is wanted, not shape [3, 2]",
        ),
    },
    "preemption": {
        "preempts for nothing": (
            "if num_missing <= 0:",
            "if num_missing < 0:",
            "nobody_for_nothing",
            "no block is missing",
        ),
        "the earliest too": ("by_arrival[1:]", "by_arrival", "the_earliest_stays", "arrived first"),
        "the earliest first": (
            "reversed(by_arrival[1:])",
            "by_arrival",
            "the_earliest_stays",
            "nobody is sure to end",
        ),
        "counts requests": (
            "num_missing -= candidate.num_blocks",
            "num_missing -= 1",
            "nobody_in_vain",
            "thrown away for nothing",
        ),
        "one victim only": (
            "num_missing -= candidate.num_blocks",
            "break",
            "frees_enough",
            "2 blocks are missing, 1 become free",
        ),
        "everybody": (
            "if num_missing <= 0:\n                break",
            "pass",
            "nobody_for_nothing",
            "no block is missing",
        ),
        "trusts the given order": (
            "sorted(running, key=lambda c: c.arrival_s)",
            "list(running)",
            "the_earliest_stays",
            "arrived first",
        ),
        "oldest of the rest first": (
            "reversed(by_arrival[1:])",
            "by_arrival[1:]",
            "the_latest_goes_first",
            "from latest to earliest",
        ),
        "biggest first": (
            "reversed(by_arrival[1:])",
            "sorted(by_arrival[1:], key=lambda c: -c.num_blocks)",
            "the_latest_goes_first",
            "from latest to earliest",
        ),
        "the same twice": (
            "victims.append(candidate.id)",
            "victims += [candidate.id] * 2",
            "nobody_twice",
            "listed twice",
        ),
        "sorts the caller's list": (
            "by_arrival = sorted(running, key=lambda c: c.arrival_s)",
            "running.sort(key=lambda c: c.arrival_s); by_arrival = running",
            "nobody_for_nothing",
            "belongs to the caller",
        ),
    },
}

RIGHT |= variants_engine.RIGHT | variants_load.RIGHT | variants_prefix.RIGHT
RIGHT |= variants_reuse.RIGHT
WRONG |= variants_engine.WRONG | variants_load.WRONG | variants_prefix.WRONG
WRONG |= variants_reuse.WRONG
RIGHT |= variants_admission.RIGHT | variants_jobs.RIGHT
WRONG |= variants_admission.WRONG | variants_jobs.WRONG
