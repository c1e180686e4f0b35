"""Variants of `block_pool`; see `variants` for their form."""

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

RIGHT = ("Pool", {"base class": POOL, "own books": POOL_OF_OWN_BOOKS})
WRONG = {
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
}
