"""The rules of a block pool, method by method.

The last rule of each step is the strongest: on every short sequence of calls, each table must read
back exactly the tokens that were written through it.
"""

from __future__ import annotations

from itertools import product

from minserve.errors import BlockError, OutOfBlocks
from minserve.learn.conformance import Rules
from minserve.learn.conformance.block_pool.histories import play, sequences
from minserve.learn.conformance.block_pool.tried import Tried, blocks_for

RULES = Rules()
rule = RULES.add


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


# -- allocate


@rule(
    "allocate",
    "A new table has just enough blocks: tokens divided by the block size, rounded up.",
    "4 tokens fill one block of 4 exactly; the 5th needs a second block.",
)
def _just_enough_blocks(make) -> None:
    for size, tokens in product((1, 2, 4), range(10)):
        t = Tried(make, 10, size)
        table = t.allocate("a", tokens)
        if len(table) != blocks_for(tokens, size):
            t.fail(
                f"{tokens} tokens need {_blocks(blocks_for(tokens, size))} of {size}; "
                f"the table has {len(table)}"
            )


@rule(
    "allocate",
    "A block belongs to one owner: no id twice, and every id from 0 to num_blocks - 1.",
    "Take a block out of the free list when you hand it out.",
)
def _one_owner_per_block(make) -> None:
    for first, second in product((1, 2), (1, 2)):
        t = Tried(make, 5, 1)
        ids = [*t.allocate("a", first), *t.allocate("b", second)]
        if len(set(ids)) != len(ids):
            twice = min(block for block in ids if ids.count(block) > 1)
            t.fail(f"block {twice} was handed out twice")
        if not all(isinstance(b, int) and 0 <= b < 5 for b in ids):
            t.fail(f"block ids of a pool of 5 are 0 to 4; these are {ids}")


@rule(
    "allocate",
    "Free and used blocks always add up to the pool.",
    "num_free must fall by as many blocks as the table got.",
)
def _counts_add_up(make) -> None:
    for tokens in (1, 2):
        t = Tried(make, 3, 1)
        t.expect(3, "nothing is allocated yet")
        t.allocate("a", tokens)
        t.expect(3 - tokens, f"a table of {_blocks(tokens)} was made")


@rule(
    "allocate",
    "Every block can be had, the last one too.",
    "Compare with `>`, not `>=`: asking for exactly what is free is fine.",
)
def _the_last_block_can_be_had(make) -> None:
    for blocks in (1, 2):
        t = Tried(make, blocks, 2)
        t.allocate("a", 2 * blocks)
        t.expect(0, "the whole pool was asked for")


@rule(
    "allocate",
    "Asking for more than is free raises OutOfBlocks, and changes nothing.",
    "Count what is needed and compare with what is free BEFORE you take the first block.",
)
def _refuses_whole(make) -> None:
    for blocks in (1, 2):
        t = Tried(make, blocks, 1)
        why = f"free: {_blocks(blocks)}, needed: {blocks + 1}"
        t.refuses(OutOfBlocks, f"pool.allocate({blocks + 1})", why)
        t.allocate("a", blocks)


# -- append


@rule(
    "append",
    "Tokens go into the empty slots of the last block first.",
    "Work out the blocks needed for num_held + num_new, and subtract those the table has.",
)
def _fills_the_last_block(make) -> None:
    for size, held in product((2, 4), range(1, 4)):
        for new in range(1, size - held % size + 1 if held % size else 1):
            t = Tried(make, 4, size)
            before = list(t.allocate("a", held))
            t.append("a", held, new)
            if t.tables["a"] != before:
                t.fail(
                    f"the last block has {size - held % size} empty slots, enough for {new}; "
                    f"the table went from {before} to {t.tables['a']}"
                )


@rule(
    "append",
    "The same list grows at its end; blocks that hold tokens stay where they are.",
    "Use table.extend(...): `table = table + [...]` makes a list that the caller never sees.",
)
def _grows_in_place(make) -> None:
    for size, held, new in product((1, 2), range(3), range(1, 4)):
        t = Tried(make, 6, size)
        before = list(t.allocate("a", held))
        copies = t.append("a", held, new)
        table = t.tables["a"]
        if len(table) != blocks_for(held + new, size):
            t.fail(
                f"{held} + {new} tokens need {_blocks(blocks_for(held + new, size))} of {size}; "
                f"the table has {len(table)}"
            )
        if table[: len(before)] != before:
            t.fail(f"the table began as {before} and is now {table}")
        if copies:
            t.fail(f"nothing is shared, so nothing is to be copied; copies is {copies}")
        t.expect(6 - len(table), "after the append")


@rule(
    "append",
    "Room that the table already has is used before more is taken.",
    "The engine allocates a prompt at once and writes it in chunks: "
    "ask how many blocks the table has, not how many its tokens fill.",
)
def _uses_room_already_there(make) -> None:
    for held, new in product(range(4), range(1, 4)):
        if held + new > 4:
            continue
        t = Tried(make, 4, 2)
        before = list(t.allocate("a", 4))
        t.append("a", held, new)
        if t.tables["a"] != before:
            t.fail(
                f"table a has room for 4 tokens and holds {held}, so {new} more fit; "
                f"it went from {before} to {t.tables['a']}"
            )


@rule(
    "append",
    "If the blocks do not suffice it raises OutOfBlocks; table and pool stay as they were.",
    "Take all the blocks first, then change the table.",
)
def _append_refuses_whole(make) -> None:
    for blocks in (1, 2):
        t = Tried(make, blocks, 1)
        t.allocate("a", 1)
        why = f"free: {_blocks(blocks - 1)}, needed: {blocks}"
        t.refuses(OutOfBlocks, f"pool.append(a, num_held=1, num_new={blocks})", why)


# -- share


@rule(
    "share",
    "Sharing takes no block: the new table names the same blocks, in the same order.",
    "No block is copied here; only the number of references to each grows.",
)
def _names_the_same_blocks(make) -> None:
    for tokens in (1, 2, 3):
        t = Tried(make, 3, 1)
        table = list(t.allocate("a", tokens))
        shared = t.share("b", "a")
        if shared != table:
            t.fail(f"table a is {table}, its share is {shared}")
        t.expect(3 - tokens, "sharing takes no block")


@rule(
    "share",
    "Each owner has a table of its own.",
    "Return a new list: list(blocks). With one list for two owners, one's append moves both.",
)
def _is_a_list_of_its_own(make) -> None:
    t = Tried(make, 3, 1)
    t.allocate("a", 1)
    t.share("b", "a")
    t.append("b", 1, 1)
    if len(t.tables["a"]) != 1:
        t.fail(f"only b was appended to, yet a is now {t.tables['a']}")


@rule(
    "share",
    "Before a shared, partly filled block is written to, the writer gets a copy.",
    "In append: if the block at num_held // block_size has more than one reference, take a fresh "
    "block, put it in the table and return BlockCopy(source=old, target=fresh).",
)
def _copies_before_writing(make) -> None:
    for size in (2, 3):
        t = Tried(make, 3, size)
        [block] = t.allocate("a", 1)
        t.share("b", "a")
        copies = t.append("b", 1, 1)
        if t.tables["b"] == [block]:
            t.fail(f"a and b both hold block {block}: b's next token would land in a's memory too")
        if t.tables["a"] != [block]:
            t.fail(f"the owner that does not write keeps block {block}; a is now {t.tables['a']}")
        fresh = t.tables["b"]
        if len(fresh) != 1:
            t.fail(f"2 tokens need one block of {size}; b is now {fresh}")
        if [(c.source, c.target) for c in copies] != [(block, fresh[0])]:
            t.fail(
                f"b's first token is still in block {block}: copies must be "
                f"[BlockCopy(source={block}, target={fresh[0]})], it is {copies}"
            )
        t.expect(1, "a's block and b's copy are used")


@rule(
    "share",
    "A full shared block is never written to again, so it is not copied.",
    "Only blocks from num_held // block_size on are written to.",
)
def _full_blocks_stay_shared(make) -> None:
    for size in (1, 2):
        t = Tried(make, 4, size)
        [block] = t.allocate("a", size)
        t.share("b", "a")
        copies = t.append("b", size, 1)
        if copies or t.tables["b"][0] != block:
            t.fail(
                f"block {block} is full, b's next token goes into a new block; "
                f"copies is {copies} and b is {t.tables['b']}"
            )
        t.expect(2, "the shared block and b's new one are used")


@rule(
    "share",
    "After the copy, the writer no longer holds the old block.",
    "Take one reference off the source of each copy: the last owner may then write without one.",
)
def _gives_up_the_source(make) -> None:
    t = Tried(make, 3, 2)
    [block] = t.allocate("a", 1)
    t.share("b", "a")
    t.append("b", 1, 1)
    copies = t.append("a", 1, 1)
    if copies or t.tables["a"] != [block]:
        t.fail(
            f"b left block {block} for its copy, so a is alone on it and may write; "
            f"copies is {copies} and a is {t.tables['a']}"
        )


@rule(
    "share",
    "A copy needs a block too: without a free one, append raises and changes nothing.",
    "Add the copies to the number of blocks that you check for and take.",
)
def _a_copy_needs_a_block(make) -> None:
    t = Tried(make, 1, 2)
    t.allocate("a", 1)
    t.share("b", "a")
    why = "b's block is shared, its copy needs a block, and none is free"
    t.refuses(OutOfBlocks, "pool.append(b, num_held=1, num_new=1)", why)

    t = Tried(make, 2, 2)
    t.allocate("a", 1)
    t.share("b", "a")
    why = "b needs a copy and two more blocks, and one is free"
    t.refuses(OutOfBlocks, "pool.append(b, num_held=1, num_new=4)", why)


@rule(
    "share",
    "Only blocks that somebody holds can be shared.",
    "A free block holds nobody's tokens: raise BlockError.",
)
def _a_free_block_cannot_be_shared(make) -> None:
    t = Tried(make, 2, 1)
    table = t.allocate("a", 1)
    other = 1 - table[0]
    t.refuses(BlockError, f"pool.share([{other}])", f"nobody holds block {other}")


# -- release


@rule(
    "release",
    "Released blocks are free again, all of them.",
    "Put each block back into the free list when its last reference goes.",
)
def _returns_every_block(make) -> None:
    for tokens in (1, 2, 3):
        t = Tried(make, 3, 1)
        t.allocate("a", tokens)
        t.release("a")
        t.expect(3, "nobody holds a block any more")
        t.allocate("b", 3)


@rule(
    "release",
    "The table is empty afterwards, so that nobody reads through it by mistake.",
    "Call table.clear(), or pop each block.",
)
def _empties_the_table(make) -> None:
    t = Tried(make, 2, 1)
    t.allocate("a", 2)
    t.release("a")
    if t.tables["a"]:
        t.fail(f"a was released, yet it still lists {t.tables['a']}")


@rule(
    "release",
    "A shared block stays used until its last owner lets go.",
    "Take one reference off; the block is free only at 0.",
)
def _the_last_owner_frees(make) -> None:
    for first, last in (("a", "b"), ("b", "a")):
        t = Tried(make, 2, 1)
        t.allocate("a", 1)
        t.share("b", "a")
        t.release(first)
        t.expect(1, f"{last} still holds its block")
        t.release(last)
        t.expect(2, "nobody holds a block any more")


@rule(
    "release",
    "Releasing twice raises BlockError, and changes nothing.",
    "Check that every block of the table is held before you change the first one.",
)
def _releases_once(make) -> None:
    for tokens in (1, 2):
        t = Tried(make, 2, 1)
        t.allocate("a", tokens)
        t.lines.append("stale = list(a)")
        stale = list(t.tables["a"])
        t.release("a")
        t.refuses(BlockError, "pool.release(stale)", f"{stale} was released before", stale=stale)
    t = Tried(make, 2, 1)
    held, gone = t.allocate("a", 1), t.allocate("b", 1)
    t.lines.append("stale = a + b")
    stale = held + gone
    t.release("b")
    why = f"block {stale[1]} was released before"
    t.refuses(BlockError, "pool.release(stale)", why, stale=stale)


@rule(
    "release",
    "Whatever the order of calls, every table reads back its own tokens.",
    "Follow the lines above with pen and paper: who holds which block after each?",
)
def _every_table_reads_its_own(make) -> None:
    for length in range(1, 6):
        for num_blocks, size in ((2, 1), (3, 2)):
            for calls in sequences(length):
                play(make, num_blocks, size, calls)
