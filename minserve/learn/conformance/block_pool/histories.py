"""Every short sequence of calls, played on a pool with tokens in its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from minserve.learn.conformance.block_pool.tried import Tried, blocks_for

CALLS = (
    *(("allocate", n) for n in (1, 3)),
    *(("append", which) for which in (0, 1)),
    *(("share", which) for which in (0, 1)),
    *(("release", which) for which in (0, 1)),
)


def sequences(length: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """All sequences of so many calls; each begins with an allocation, for there is no table yet."""
    for calls in product(CALLS, repeat=length):
        if calls[0][0] == "allocate":
            yield calls


def play(make, num_blocks: int, size: int, calls: tuple[tuple[str, int], ...]) -> None:
    """Carry the calls out with tokens in the blocks; refused ones are skipped."""
    t = Tried(make, num_blocks, size)
    memory = [[""] * size for _ in range(num_blocks)]
    texts: dict[str, list[str]] = {}

    def write(name: str, start: int, num_new: int) -> None:
        for position in range(start, start + num_new):
            token = f"{name}{position}"
            texts[name].append(token)
            memory[t.tables[name][position // size]][position % size] = token

    for number, (kind, argument) in enumerate(calls):
        live = list(texts)
        used = len({block for name in live for block in t.tables[name]})
        free = num_blocks - used
        if kind == "allocate":
            if blocks_for(argument, size) > free:
                continue
            name = "abcdef"[number]
            t.allocate(name, argument)
            texts[name] = []
            write(name, 0, argument)
        elif argument >= len(live):
            return  # the same as a shorter sequence
        elif kind == "append":
            name = live[argument]
            held, table = len(texts[name]), t.tables[name]
            others = {b for other in live if other != name for b in t.tables[other]}
            is_shared = bool(held % size) and table[held // size] in others
            if blocks_for(held + 1, size) - len(table) + is_shared > free:
                continue
            for copy in t.append(name, held, 1):
                memory[copy.target] = list(memory[copy.source])
            write(name, held, 1)
        elif kind == "share":
            name = "abcdef"[number]
            t.share(name, live[argument])
            texts[name] = list(texts[live[argument]])
        else:
            t.release(live[argument])
            del texts[live[argument]]
        for name, text in texts.items():
            read = [memory[t.tables[name][p // size]][p % size] for p in range(len(text))]
            if read != text:
                t.fail(f"table {name} should read back {text}, and reads {read}")
        held_blocks = {block for name in texts for block in t.tables[name]}
        t.expect(num_blocks - len(held_blocks), "counting the blocks in live tables")
