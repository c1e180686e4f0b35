"""The `minserve` command, each time in a process of its own that need not import it anew.

One process imports the command line, and forks for each call. A child has its own folder,
environment, files and exit code: it does all that a typed command does, but for the importing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "120",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


class CommandLine:
    """`run("models", "--json")` is `minserve models --json`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=os.environ | SETTINGS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, input: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. `env` is added to the environment of this process."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("in", "out", "err")]
            for file, text in zip(files, (input, "", ""), strict=True):
                file.write_text(text, encoding="utf-8")
            order = {
                "arguments": arguments,
                "environment": os.environ | SETTINGS | (env or {}),
                "files": list(map(str, files)),
            }
            print(json.dumps(order), file=self._process.stdin, flush=True)
            if not select.select([self._process.stdout], [], [], TIMEOUT_S)[0]:
                self.close()
                raise TimeoutError(f"still running after {TIMEOUT_S} s: minserve {arguments}")
            code = int(self._process.stdout.readline())
            out, err = (file.read_text(encoding="utf-8") for file in files[1:])
        return subprocess.CompletedProcess(arguments, code, out, err)

    def close(self) -> None:
        """End the process that forks, and a child that still runs."""
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.communicate()


def serve() -> None:
    """Fork for each order, a line of JSON; tell its exit code in a line."""
    import numpy  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from minserve.cli.main import main

    orders, told = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in orders:
        if not (child := os.fork()):
            order = json.loads(line)
            os.environ.clear()
            os.environ.update(order["environment"])
            for number, path in enumerate(order["files"]):
                os.dup2(os.open(path, os.O_RDWR), number)
            sys.argv = ["minserve", *order["arguments"]]
            main()  # ends by SystemExit
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=told, flush=True)


if __name__ == "__main__":
    serve()
