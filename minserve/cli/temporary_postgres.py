"""A PostgreSQL server of one's own for a test or a measurement, from Debian's binaries."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from minserve.errors import ConfigError


def binaries() -> Path | None:
    """The folder of `initdb` and `pg_ctl` of the newest version installed, or None."""
    found = sorted(
        glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda p: int(p.split("/")[4])
    )
    return Path(found[-1]).parent if found else None


class TemporaryPostgres:
    """A server in a folder of its own, gone at the end of the `with` block.

    PostgreSQL refuses to run as root: then it runs as the user `postgres`. `fsync=False` is for
    tests that need no durability. Raises `ConfigError` where PostgreSQL is not installed.
    """

    def __init__(self, *, fsync: bool = True) -> None:
        bin_dir = binaries()
        if bin_dir is None:
            raise ConfigError("PostgreSQL is not installed", "apt-get install postgresql")
        self._bin, self._fsync = bin_dir, fsync
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def __enter__(self) -> TemporaryPostgres:
        self.folder = Path(tempfile.mkdtemp(prefix="minserve-pg-"))
        if self._as_user:
            shutil.chown(self.folder, "postgres", "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        try:
            self._run("initdb", "-A", "trust", "-U", "app", "--no-sync", "-D", self._data)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"postgresql://app@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        options += f" -c max_connections=200 -c fsync={'on' if self._fsync else 'off'}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", self._data, "-w", "-l", log, "-o", options, "start")

    def restart(self) -> None:
        """Stop at once, as a crash does, and start again: it recovers from its log."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        # NOTE: no pipe: the server would inherit it, and reading it would never end.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [*self._as_user, str(self._bin / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
            if check and done.returncode:
                said.seek(0)
                raise ConfigError(
                    f"{program} failed: {said.read().decode(errors='replace')[-500:]}"
                )
