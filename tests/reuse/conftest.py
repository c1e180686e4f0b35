"""A store of every kind, each empty; Redis is a real server, started once."""

from __future__ import annotations

import subprocess
import time

import pytest

from minserve.reuse.stores import MemoryStore, RedisStore, SqliteStore

KINDS = ("memory", "sqlite", "redis")


@pytest.fixture(scope="session")
def redis_url(require_debian, tmp_path_factory):
    """A redis-server of this test run's own, on a Unix socket, without a file on disk."""
    import redis

    binary = require_debian("redis-server", "redis-server")
    folder = tmp_path_factory.mktemp("redis")
    socket = folder / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert server.poll() is None, "redis-server did not start"
                time.sleep(0.02)
        yield f"unix://{socket}"
    finally:
        client.close()
        server.terminate()
        server.wait(10)


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
