"""A block pool under test, and the words for what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minserve.errors import MinserveError
from minserve.kv.blocks import BlockCopy
from minserve.learn.conformance import BrokenRule, returned, showing


class Tried:
    """A pool under test. Writes every call down, so that a broken rule can show the way there."""

    def __init__(self, make: Callable[[int, int], Any], num_blocks: int, block_size: int) -> None:
        self.lines = [f"pool = BlockPool(num_blocks={num_blocks}, block_size={block_size})"]
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tables: dict[str, list[int]] = {}
        self.pool = self._call(lambda: make(num_blocks, block_size))

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)

    def allocate(self, name: str, num_tokens: int) -> list[int]:
        """`name = pool.allocate(num_tokens)`, which must succeed."""
        self.lines.append(f"{name} = pool.allocate({num_tokens})")
        table = self._must(lambda: self.pool.allocate(num_tokens))
        self._note(table)
        return self._new_table(name, table)

    def append(self, name: str, held: int, new: int) -> list[BlockCopy]:
        """`copies = pool.append(name, held, new)`, which must succeed."""
        self.lines.append(f"copies = pool.append({name}, num_held={held}, num_new={new})")
        table = self.tables[name]
        copies = self._must(lambda: self.pool.append(table, held, new))
        self.lines[-1] += f"   # {name} is now {table}"
        if copies is None or not isinstance(copies, (list, tuple)):
            self.fail(f"a list of copies is wanted, often empty; append returns {returned(copies)}")
        return list(copies)

    def share(self, name: str, of: str) -> list[int]:
        """`name = pool.share(of)`, which must succeed."""
        self.lines.append(f"{name} = pool.share({of})")
        table = self._must(lambda: self.pool.share(self.tables[of]))
        self._note(table)
        return self._new_table(name, table)

    def release(self, name: str) -> None:
        """`pool.release(name)`, which must succeed."""
        self.lines.append(f"pool.release({name})")
        self._must(lambda: self.pool.release(self.tables[name]))

    def refuses(self, error: type[Exception], call: str, why: str, **names: Any) -> None:
        """The call must raise `error` and change nothing."""
        before, tables = self.counts(), {k: list(v) for k, v in self.tables.items()}
        self.lines.append(call)
        scope = {"pool": self.pool, **self.tables, **names}
        try:
            result = self._call(lambda: eval(call, scope))  # our own text, never the learner's
        except error:
            self.lines[-1] += f"   # {error.__name__}, as it should"
        except NotImplementedError:
            raise
        except Exception as other:
            self.fail(
                f"{why}, so this must raise {error.__name__}; it raises "
                f"{type(other).__name__}: {other}"
            )
        else:
            self.fail(f"{why}, so this must raise {error.__name__}; it returns {result!r}")
        if self.counts() != before:
            self.fail(
                f"the call raises, yet free/used blocks went from {before} to {self.counts()}: "
                "whatever raises must change nothing"
            )
        for name, table in tables.items():
            if self.tables[name] != table:
                self.fail(
                    f"the call raises, yet table {name} went from {table} to {self.tables[name]}"
                )

    def counts(self) -> tuple[int, int]:
        """Free and used blocks, as the pool counts them."""
        return self._call(lambda: (self.pool.num_free, self.pool.num_used))

    def expect(self, free: int, because: str) -> None:
        """The pool must count `free` free blocks, and the rest as used."""
        counted = self.counts()
        if counted != (free, self.num_blocks - free):
            self.fail(
                f"{because}: {free} free and {self.num_blocks - free} used expected, "
                f"the pool counts {counted[0]} free and {counted[1]} used"
            )

    def _new_table(self, name: str, table: Any) -> list[int]:
        if not isinstance(table, list):
            self.fail(f"a table must be a list of block ids; this is {returned(table)}")
        self.tables[name] = table
        return table

    def _note(self, result: Any) -> None:
        self.lines[-1] += f"   # -> {result!r}"

    def _must(self, call: Callable[[], Any]) -> Any:
        try:
            return self._call(call)
        except MinserveError as error:
            self.fail(f"this must succeed, but raises {type(error).__name__}: {error}")

    def _call(self, call: Callable[[], Any]) -> Any:
        with showing(self.lines):
            return call()


def blocks_for(num_tokens: int, size: int) -> int:
    """Blocks of `size` that `num_tokens` fill, the last one perhaps in part."""
    return -(-num_tokens // size)
