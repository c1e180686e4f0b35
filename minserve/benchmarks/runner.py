"""An engine in a process of its own, which waits idle while another one is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from minserve.errors import ConfigError, MinserveError

FOLDER = Path(__file__).parent / "runners"
MARK = "@@minserve "
PEERS = {
    "transformers": "run_transformers.py",
    "transformers-cb": "run_transformers_cb.py",
    "vllm": "run_vllm.py",
}


class Runner:
    """Starts `script` under `python` and loads the model; a context manager that ends it.

    Raises `MinserveError`, with the process's last words, if it dies or does not answer.
    """

    def __init__(
        self, name: str, script: str, settings: dict[str, Any], python: str = sys.executable
    ) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        # NOTE: threads that spin would slow whoever is measured while this one waits.
        quiet = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}
        threads = {"OMP_NUM_THREADS": str(settings["threads"])}
        try:
            self._process = subprocess.Popen(
                [python, str(FOLDER / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **quiet, **threads},
            )
        except OSError as error:
            raise ConfigError(
                f"{python} could not be started for {name}: {error}",
                f"give its Python: --peer-python {name}=/path/to/venv/bin/python",
            ) from None
        self.about = self._ask(settings)

    def run(self, prompts, max_tokens) -> dict[str, Any]:
        """Serve all requests at once; returns the outputs, `total_s` and `peak_rss_bytes`."""
        return self._ask({"prompts": prompts, "max_tokens": max_tokens})

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def _ask(self, content: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    return json.loads(line[len(MARK) :])
        except BrokenPipeError:
            pass
        self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().strip().splitlines()[-1:] or ["nothing"]
        raise MinserveError(
            f"{self.name} ended with code {self._process.returncode}, saying: {said[0][:200]}",
            "see docs/benchmarks.md for how its environment is made",
        )
