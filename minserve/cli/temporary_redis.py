"""A Redis of one's own for a test or a demonstration, from Debian's binary."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from minserve.errors import ConfigError

START_S = 10.0


@contextlib.contextmanager
def temporary_redis() -> Iterator[str]:
    """Its address, on a Unix socket, nothing on disk; empty where Redis is not installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="minserve-redis-") as folder:
        path = f"{folder}/redis.sock"
        command = [binary, "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _await(path, server)
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait(10)


def _await(path: str, server: subprocess.Popen) -> None:
    import redis

    end_s = time.monotonic() + START_S
    with redis.Redis(unix_socket_path=path) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if server.poll() is not None or time.monotonic() > end_s:
                    raise ConfigError("redis-server did not start", "see what it says") from None
                time.sleep(0.02)
