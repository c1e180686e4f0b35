"""A store of every kind, each empty; Redis is a real server, started once."""

from __future__ import annotations

import pytest

from minserve.reuse.redis_store import RedisStore
from minserve.reuse.stores import MemoryStore, SqliteStore

KINDS = ("memory", "sqlite", "redis")


@pytest.fixture
def make_store(request, tmp_path):
    """`make_store(kind, **bounds)`: an empty store."""
    opened = []

    def make(kind: str, **bounds):
        if kind == "memory":
            store = MemoryStore(**bounds)
        elif kind == "sqlite":
            store = SqliteStore(tmp_path / f"cache-{len(opened)}.db", **bounds)
        else:
            url = request.getfixturevalue("redis_url")
            store = RedisStore(url, prefix=f"{{test-{len(opened)}}}", **bounds)
            store._redis.flushall()
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture(params=KINDS)
def new_store(request, make_store):
    """`new_store(**bounds)` of each kind in turn."""
    return lambda **bounds: make_store(request.param, **bounds)
