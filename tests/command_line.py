"""The `minserve` command, each time in a process of its own that need not import it anew.

One process imports the command line, and forks for each call. A child has an environment, files
and an exit code of its own: it does all that a typed command does, but for the importing.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
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

    import minserve.cli.main  # noqa: F401

    gc.freeze()  # a child need not look at all of this, which would copy it
    for line in os.fdopen(os.dup(0)):
        child = multiprocessing.get_context("fork").Process(target=obey, kwargs=json.loads(line))
        child.start()
        child.join()
        print(child.exitcode, flush=True)


def obey(arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    """Be the command: ends by SystemExit."""
    from minserve.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.stdin = os.fdopen(0)
    sys.argv = ["minserve", *arguments]
    main()


if __name__ == "__main__":
    serve()
