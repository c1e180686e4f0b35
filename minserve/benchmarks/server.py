"""A `minserve serve` in a process of its own, for whoever measures it from outside."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from minserve.errors import ConfigError
from minserve.serving.identity import ApiKey, write_keys


@dataclass(frozen=True, slots=True)
class Site:
    """A server that is ready. `pid` is its process's."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds that it has used; 0 outside Linux."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            return 0.0

    def rss_bytes(self) -> int:
        """Memory that it holds; 0 outside Linux."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, AttributeError):
            return 0


@contextlib.contextmanager
def running(model: str, options: Iterable[object] = (), keys: Iterable[ApiKey] = ()):
    """Start it, wait until it is ready, and end it: an iterator of one `Site`.

    Raises `ConfigError` if it does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = list(options)
        if keys := list(keys):
            write_keys(path := Path(folder) / "keys.json", keys)
            options += ["--keys", path]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        options += ["--port", port, "--model", model, "--log-level", "error"]
        command = [sys.executable, "-m", "minserve", "serve", *map(str, options)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _await(url, process)
            yield Site(url, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(url: str, process: subprocess.Popen, seconds: float = 120) -> None:
    import httpx

    end_s = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end_s:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready", timeout=10).status_code == 200:
                return
        time.sleep(0.1)
    raise ConfigError("the server does not start", "try `minserve serve` with the same --model")
