"""The real command in a process of its own: what a user sees."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> dict:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])

    def ok(self) -> Ran:
        assert self.code == 0, self.err
        return self

    def refused(self, *words: str) -> Ran:
        """Exit code 2, one clear line with `words` in it, one hint, no stack trace."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert "Traceback" not in self.out + self.err
        lines = [line for line in self.err.splitlines() if not line.startswith("...")]
        lines = [line for line in lines if line.strip()]
        assert lines[0].startswith("error: ") and len(lines) <= 2, self.err
        assert all(line.startswith("  hint: ") for line in lines[1:]), self.err
        for word in words:
            assert word in self.err, (word, self.err)
        return self


@pytest.fixture
def minserve(command_line, tmp_path) -> Callable[..., Ran]:
    """`minserve("command --option", "one argument")` runs the command, with a home of its own.

    The first text is split at spaces, the others are not; keywords go to `CommandLine.run`.
    """

    def run(command: str, *arguments: str, **options) -> Ran:
        home = {"MINSERVE_HOME": str(tmp_path / "home")}
        return Ran(command_line.run(*command.split(), *arguments, env=home, **options))

    return run
