from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from live_server import Live, wait_for

from minserve.request import WorkloadClass
from minserve.serving.identity import ApiKey, Quota, hash_of, write_keys


@pytest.fixture(scope="module")
def live():
    """A quick server that tests share as long as they leave it as they found it."""
    with Live() as server:
        yield server
        server.wait_idle()


class Process:
    """`minserve serve`, or another server, in a process of its own, with keys of two tenants."""

    def __init__(self, folder: Path, *options: str, command: str = "serve") -> None:
        self.keys = folder / "keys.json"
        self.write_keys("kestrel", "alder", "operator")
        start = [sys.executable, "-m", "minserve", command, "--port", "0", "--log-format", "json"]
        self.process = subprocess.Popen(
            [*start, "--keys", str(self.keys), *options], stderr=subprocess.PIPE, text=True
        )
        self.log: list[dict] = []
        threading.Thread(target=self._read, daemon=True).start()
        wait_for(lambda: self._listening() or self.process.poll() is not None, 120)
        assert self._listening(), self.log
        self.url = self._listening()[0]["url"]

    def write_keys(self, *tenants: str, **more) -> None:
        """Let in these tenants; the key of `name` is `key-of-name`."""
        write_keys(
            self.keys,
            [
                ApiKey(
                    name,
                    hash_of(f"key-of-{name}"),
                    name,
                    "someone",
                    roles=("operator",) if name == "operator" else (),
                    workload_class=WorkloadClass.INTERACTIVE,
                    quota=Quota(**more),
                )
                for name in tenants
            ],
        )

    def client(self, name: str = "kestrel", **more):
        """OpenAI's own client."""
        from openai import OpenAI

        options = {"max_retries": 0, "timeout": 60, **more}
        return OpenAI(base_url=f"{self.url}/v1", api_key=f"key-of-{name}", **options)

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def lines(self, event: str) -> list[dict]:
        return [line for line in list(self.log) if line.get("event") == event]

    def stop(self) -> int:
        """Ask it to stop and wait; its exit code."""
        if self.process.poll() is None:
            self.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def _listening(self) -> list[dict]:
        return self.lines("listening")

    def _read(self) -> None:
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"raw": line})


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """The real command, serving northstar-nano."""
    process = Process(tmp_path_factory.mktemp("nano"))
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="session")
def gateway(nano, tmp_path_factory):
    """The real gateway before `nano`, which knows it by one key; with tenants of its own."""
    folder = tmp_path_factory.mktemp("gateway")
    secret = folder / "upstream-key"
    secret.write_text("key-of-operator\n")
    process = Process(
        folder,
        *("--upstream", nano.url, "--model", "nano", "--upstream-key-file", str(secret)),
        *("--response-cache", "memory"),
        command="gateway",
    )
    yield process
    assert process.stop() == 0


@pytest.fixture
def start_process(tmp_path):
    """Starts servers of a test's own, and stops them."""
    started = []

    def start(*options: str) -> Process:
        started.append(Process(tmp_path, *options))
        return started[-1]

    yield start
    for process in started:
        process.stop()
