"""Where cached entries lie: in memory, in a SQLite file, or in Redis. All keep the same promises.

A store knows text, tags and times; what an answer is, and who may have it, is decided above it
(`minserve.reuse.response`). It never looks beyond the partition that it is given.
"""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from cachetools import Cache, LRUCache

from minserve.errors import ConfigError

MAX_ENTRIES = 100_000
MAX_BYTES = 256 << 20
MAX_SWEPT = 8
"""Expired entries that are removed when one is put: more than come, so that they do not pile up."""
MAX_EVENTS = 10_000
"""Tags that a store remembers an event of. Beyond, it forgets, and stores nothing begun before."""


class Store(Protocol):
    """Entries by partition and key, bounded by entries and bytes; the least recent go first.

    Time is the caller's: all who share a store use one clock, in seconds. An entry is not found
    from `expires_s` on, no hit moves that, and it is removed as others are put. Values are text
    (JSON), never pickled objects.

    Events are numbered by the store. `put` says how many there had been when the work on the entry
    began (`since`), and does nothing and returns False if any of its tags had one since then, or if
    the store does not know (it forgot, or was emptied).
    """

    def num_events(self) -> int: ...

    def get(self, partition: str, key: str, now_s: float) -> str | None: ...

    def put(
        self,
        partition: str,
        key: str,
        value: str,
        *,
        tags: Iterable[str],
        expires_s: float,
        now_s: float,
        since: int,
    ) -> bool: ...

    def remove(self, partition: str, key: str) -> None: ...

    def invalidate(self, tags: Iterable[str]) -> int:
        """Note one event for `tags`, remove every entry that carries any; return how many."""

    def size(self) -> tuple[int, int]:
        """Entries and bytes."""

    def close(self) -> None: ...


def open_store(
    where: str, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
) -> Store | None:
    """The store that `where` names: `memory`, `sqlite:PATH`, `redis://...`, or None for `off`."""
    kind, _, rest = where.partition(":")
    if where == "off":
        return None
    if where == "memory":
        return MemoryStore(max_entries, max_bytes)
    if kind == "sqlite" and rest:
        return SqliteStore(rest, max_entries, max_bytes)
    if kind in ("redis", "rediss", "unix") and rest:
        from minserve.reuse.redis_store import RedisStore

        # `redis:redis://host` is taken too: the option's own form with a full URL.
        return RedisStore(rest if "://" in rest else where, max_entries, max_bytes)
    raise ConfigError(
        f"there is no response cache {where!r}", "use memory, sqlite:PATH, redis://HOST:PORT or off"
    )


class MemoryStore:
    """In this process. A look-up costs the same whatever it holds."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._tagged: dict[str, set[tuple[str, str]]] = {}
        self._entries = _Entries(max_bytes, self._tagged)
        self._events: dict[str, int] = {}
        self._num_events = self._forgotten = 0
        self._lock = threading.Lock()

    def num_events(self) -> int:
        return self._num_events

    def get(self, partition: str, key: str, now_s: float) -> str | None:
        with self._lock:
            entry = self._entries.get((partition, key))
            if entry is None:
                return None
            value, _, expires_s = entry
            if now_s < expires_s:
                return value
            del self._entries[partition, key]
            return None

    def put(self, partition, key, value, *, tags, expires_s, now_s, since) -> bool:
        tags = tuple(tags)
        with self._lock:
            if not self._forgotten <= since <= self._num_events:
                return False
            if any(self._events.get(tag, 0) > since for tag in tags):
                return False
            self._entries.sweep(now_s)
            self._entries.pop((partition, key), None)
            entry = (value, tags, expires_s)
            if size_of(entry) > self._entries.maxsize:
                return False
            self._entries[partition, key] = entry
            while len(self._entries) > self._max_entries:
                self._entries.popitem()
            return True

    def remove(self, partition: str, key: str) -> None:
        with self._lock:
            self._entries.pop((partition, key), None)

    def invalidate(self, tags: Iterable[str]) -> int:
        with self._lock:
            self._num_events += 1
            found = set()
            for tag in tags:
                self._events[tag] = self._num_events
                found |= self._tagged.get(tag, set())
            for place in found:
                del self._entries[place]
            if len(self._events) > MAX_EVENTS:
                self._events.clear()
                self._forgotten = self._num_events
            return len(found)

    def size(self) -> tuple[int, int]:
        return len(self._entries), int(self._entries.currsize)

    def close(self) -> None:
        """Nothing is held open."""


class _Entries(LRUCache):
    """Bounded by bytes; keeps the index of tags in step with whatever comes and goes.

    `_ends` is a heap of when entries expire; it may name some that are gone or were replaced.
    """

    def __init__(self, max_bytes: int, tagged: dict[str, set[tuple[str, str]]]) -> None:
        super().__init__(max_bytes, size_of)
        self.tagged = tagged
        self._ends: list[tuple[float, tuple[str, str]]] = []

    def __setitem__(self, place, entry) -> None:
        super().__setitem__(place, entry)
        for tag in entry[1]:
            self.tagged.setdefault(tag, set()).add(place)
        heapq.heappush(self._ends, (entry[2], place))
        if len(self._ends) > 2 * len(self) + 64:
            self._ends = [(self._peek(place)[2], place) for place in self]
            heapq.heapify(self._ends)

    def __delitem__(self, place) -> None:
        _, tags, _ = self._peek(place)
        super().__delitem__(place)
        for tag in tags:
            self.tagged[tag].discard(place)
            if not self.tagged[tag]:
                del self.tagged[tag]

    def sweep(self, now_s: float) -> None:
        """Remove some of what has expired."""
        for _ in range(MAX_SWEPT):
            if not self._ends or self._ends[0][0] > now_s:
                return
            _, place = heapq.heappop(self._ends)
            if place in self and self._peek(place)[2] <= now_s:
                del self[place]

    def _peek(self, place):
        """The entry, without counting as a use of it."""
        return Cache.__getitem__(self, place)


def size_of(entry: tuple[str, tuple[str, ...], float]) -> int:
    """Bytes of an entry: its value in UTF-8, and its tags."""
    return len(entry[0].encode()) + sum(map(len, entry[1]))


class SqliteStore:
    """In one file, shared by the processes of one machine, and there after a restart.

    Recency is kept to `RECENCY_S`, so that a hit is seldom a write.
    """

    RECENCY_S = 60.0

    def __init__(
        self, path: str | Path, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                path, timeout=5.0, isolation_level=None, check_same_thread=False
            )
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigError(
                f"cannot keep a cache in {path}: {error}", "give another path"
            ) from None

    def num_events(self) -> int:
        with self._lock:
            return self._meta("num_events")

    def get(self, partition: str, key: str, now_s: float) -> str | None:
        with self._lock:
            row = self._db.execute(
                "SELECT value, expires_s, used_s FROM entries WHERE partition = ? AND key = ?",
                (partition, key),
            ).fetchone()
            if row is None:
                return None
            value, expires_s, used_s = row
            if now_s >= expires_s:
                self._drop(partition, key)
                return None
            if now_s - used_s >= self.RECENCY_S:
                self._db.execute(
                    "UPDATE entries SET used_s = ? WHERE partition = ? AND key = ?",
                    (now_s, partition, key),
                )
            return value

    def put(self, partition, key, value, *, tags, expires_s, now_s, since) -> bool:
        tags = tuple(tags)
        num_bytes = size_of((value, tags, expires_s))
        with self._lock, _Transaction(self._db):
            places = ",".join("?" * len(tags))
            (last,) = self._db.execute(
                f"SELECT max(number) FROM events WHERE tag IN ({places})", tags
            ).fetchone()
            known = self._meta("forgotten") <= since <= self._meta("num_events")
            if not known or (last or 0) > since:
                return False
            self._db.execute(_SWEEP, (now_s, MAX_SWEPT))
            self._drop(partition, key)
            if num_bytes > self._max_bytes:
                return False
            self._db.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (partition, key, value, expires_s, now_s, num_bytes),
            )
            self._db.executemany(
                "INSERT INTO tags VALUES (?, ?, ?)", [(tag, partition, key) for tag in tags]
            )
            while self._is_over():
                oldest = "SELECT partition, key FROM entries ORDER BY used_s LIMIT 1"
                self._drop(*self._db.execute(oldest).fetchone())
            return True

    def remove(self, partition: str, key: str) -> None:
        with self._lock:
            self._drop(partition, key)

    def invalidate(self, tags: Iterable[str]) -> int:
        found = set()
        with self._lock, _Transaction(self._db):
            number = self._meta("num_events") + 1
            self._db.execute("UPDATE meta SET value = ? WHERE name = 'num_events'", (number,))
            for tag in tags:
                self._db.execute("REPLACE INTO events VALUES (?, ?)", (tag, number))
                found |= set(
                    self._db.execute("SELECT partition, key FROM tags WHERE tag = ?", (tag,))
                )
            for place in found:
                self._drop(*place)
            if self._db.execute("SELECT count(*) FROM events").fetchone()[0] > MAX_EVENTS:
                self._db.execute("DELETE FROM events")
                self._db.execute("UPDATE meta SET value = ? WHERE name = 'forgotten'", (number,))
        with self._lock:  # what was deleted must not live on in the write-ahead log either
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return len(found)

    def size(self) -> tuple[int, int]:
        with self._lock:
            return self._meta("num_entries"), self._meta("num_bytes")

    def close(self) -> None:
        self._db.close()

    def _meta(self, name: str) -> int:
        return self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]

    def _is_over(self) -> bool:
        return (
            self._meta("num_entries") > self._max_entries
            or self._meta("num_bytes") > self._max_bytes
        )

    def _drop(self, partition: str, key: str) -> None:
        self._db.execute("DELETE FROM entries WHERE partition = ? AND key = ?", (partition, key))


class _Transaction:
    """Takes SQLite's write lock at once, so that what was read stays true until the commit."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self.db.execute("ROLLBACK" if error else "COMMIT")


_SWEEP = """
DELETE FROM entries WHERE (partition, key) IN
    (SELECT partition, key FROM entries WHERE expires_s <= ? ORDER BY expires_s LIMIT ?)
"""
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS entries (
    partition TEXT, key TEXT, value TEXT, expires_s REAL, used_s REAL, num_bytes INTEGER,
    PRIMARY KEY (partition, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON entries (used_s);
CREATE INDEX IF NOT EXISTS by_expiry ON entries (expires_s);
CREATE TABLE IF NOT EXISTS tags (
    tag TEXT, partition TEXT, key TEXT, PRIMARY KEY (tag, partition, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_entry ON tags (partition, key);
CREATE TABLE IF NOT EXISTS events (tag TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES
    ('num_events', 0), ('forgotten', 0), ('num_entries', 0), ('num_bytes', 0);
CREATE TRIGGER IF NOT EXISTS came AFTER INSERT ON entries BEGIN
    UPDATE meta SET value = value + 1 WHERE name = 'num_entries';
    UPDATE meta SET value = value + new.num_bytes WHERE name = 'num_bytes';
END;
CREATE TRIGGER IF NOT EXISTS went AFTER DELETE ON entries BEGIN
    DELETE FROM tags WHERE partition = old.partition AND key = old.key;
    UPDATE meta SET value = value - 1 WHERE name = 'num_entries';
    UPDATE meta SET value = value - old.num_bytes WHERE name = 'num_bytes';
END;
"""
