"""Help with each method of a block pool, rung by rung."""

from minserve.learn.conformance import Ladder

LADDERS = {
    "allocate": Ladder(
        drawing="""\
pool of 4 blocks, 4 slots each          allocate(5): 5 / 4, rounded up = 2 blocks

  free  [0] [1] [2] [3]        ->         free  [2] [3]
                                          table [0: t t t t] [1: t . . .]
                                                         3 slots wasted, at most --'-'-'""",
        pseudocode="""\
needed = number of blocks for num_tokens, rounded up
if more are needed than are free: raise OutOfBlocks      (nothing has changed yet)
take that many blocks out of the free list
note one reference to each
return them""",
        near_miss="""\
- blocks = []
- for _ in range(needed):
-     if not self.free: raise OutOfBlocks(...)      # some blocks are already gone: a leak
-     blocks.append(self.free.pop())
+ if needed > len(self.free): raise OutOfBlocks(...)
+ blocks = [self.free.pop() for _ in range(needed)]""",
    ),
    "append": Ladder(
        drawing="""\
block_size 4, table [7 2], num_held = 6, num_new = 3

  before   [7: t t t t] [2: t t . .]
  after    [7: t t t t] [2: t t N N] [5: N . . .]        6 + 3 = 9 tokens: 3 blocks, 1 is new""",
        pseudocode="""\
missing = blocks for (num_held + num_new), less those the table has, but never below 0
take `missing` blocks (all or none: raises OutOfBlocks)
put them at the end of the same list
return the copies to be made: none, until blocks can be shared""",
        near_miss="""\
- missing = self.blocks_for(num_new)                   # forgets the empty slots it has
+ missing = max(0, self.blocks_for(num_held + num_new) - len(table))
- table = table + blocks                               # a new list: the caller keeps the old one
+ table.extend(blocks)""",
    ),
    "share": Ladder(
        drawing="""\
a = [3: t t . .]     b = share(a)          then append(b, num_held=2, num_new=1)

  a --.                                     a ----> [3: t t . .]
       >--> [3: t t . .]  2 references
  b --'                                     b ----> [8: t t N .]   BlockCopy(source=3, target=8)""",
        pseudocode="""\
share:   refuse blocks that nobody holds
         one more reference to each; return a list of your own

append:  the first block written to is number num_held // block_size
         every block of the table from there on with more than 1 reference needs a copy
         take blocks for the copies too, in the same all-or-nothing step
         per copy: one reference less to the old block, the fresh one takes its place,
         and BlockCopy(old, fresh) goes into the list that you return""",
        near_miss="""\
- if self.references[table[-1]] > 1:                   # a full last block is not written to
+ first = num_held // self.block_size
+ shared = [i for i in range(first, len(table)) if self.references[table[i]] > 1]
  ...
  table[i] = fresh
+ self.references[old] -= 1                            # or the old block never becomes free""",
    ),
    "release": Ladder(
        drawing="""\
a = [0 1]   b = [0 2]      references: block 0: 2, block 1: 1, block 2: 1

  release(a)               references: block 0: 1, block 1: 0 -> free, block 2: 1
  release(b)               references: block 0: 0 -> free,             block 2: 0 -> free""",
        pseudocode="""\
if any block of the table has no reference: raise BlockError    (nothing has changed yet)
for each block: one reference less; at 0 it goes back to the free list
empty the table""",
        near_miss="""\
  for block in table:
-     self.free.append(block)                          # others may still hold it
+     self.references[block] -= 1
+     if self.references[block] == 0:
+         self.free.append(block)
+ table.clear()""",
    ),
}
