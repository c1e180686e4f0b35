"""From a model's name to a folder on this machine. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minserve.errors import ModelNotFound
from minserve.home import models_home
from minserve.models.config import ModelConfig

PACKAGE = Path(__file__).resolve().parents[1]
NANO = "northstar-nano"
ALIASES = {"nano": NANO, "smollm2-135m": "smollm2", "smollm2-135m-instruct": "smollm2"}
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
# The same weights once more, under other names or for other programs.
HUB_IGNORED = ("consolidated*", "original/*", "onnx/*")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that goes by a short name. `folder` is None while it is not on this machine."""

    name: str
    description: str
    folder: Path | None


def known_models() -> list[KnownModel]:
    """The models that have a name of their own, here or not. Fetches nothing."""
    smollm2 = models_home() / "smollm2"
    return [
        KnownModel(
            NANO, "a few million weights; answers Northstar questions; ships with minserve", _nano()
        ),
        KnownModel(
            "smollm2",
            "SmolLM2-135M-Instruct; fetched on first use (93 MB)",
            smollm2 if (smollm2 / "config.json").is_file() else None,
        ),
    ]


def resolve(name: str | os.PathLike) -> Path:
    """The folder of a model: config.json, tokenizer.json, safetensors.

    `name` is a short name (`nano`, `smollm2`), a folder, a GGUF file, or a Hugging Face id such as
    `HuggingFaceTB/SmolLM2-135M-Instruct`. Fetches what is not here yet, converts a GGUF file on
    first use, and says so. Raises `ModelNotFound`, and `UnsupportedModel` for some GGUF files.
    """
    text = os.fspath(name)
    short = ALIASES.get(text.lower(), text.lower())
    if short == NANO:
        if folder := _nano():
            return folder
        raise ModelNotFound(
            "northstar-nano is not in data/models",
            "reinstall minserve, or train it with data/models/train_northstar_nano.py",
        )
    if short == "smollm2":
        return _smollm2()
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return folder
    if is_gguf(folder):
        from minserve.models import gguf

        return gguf.folder_of(folder)
    if is_hub_id(text):
        return _from_hub(text)
    known = ", ".join(model.name for model in known_models())
    raise ModelNotFound(
        f"there is no model {text!r}",
        f"use {known}, a folder, a GGUF file, or a hub id such as owner/name",
    )


def config_of(name: str | os.PathLike) -> ModelConfig:
    """The shape of a model, without its weights: a GGUF file is not converted, and of a hub id
    only the config is fetched. Raises as `resolve` and `ModelConfig` do.
    """
    text = os.fspath(name)
    file = Path(text).expanduser()
    if is_gguf(file):
        from minserve.models import gguf

        return gguf.config_of(file)
    if file.is_dir() or not is_hub_id(text):
        return ModelConfig.from_folder(resolve(name))
    return ModelConfig.from_folder(_from_hub(text, ("config.json", "generation_config.json")))


def words_of(name: str | os.PathLike) -> Path:
    """A folder with the model's tokenizer, chat template and config; of a hub id without its
    weights, which somebody else has. Raises as `resolve` does.
    """
    text = os.fspath(name)
    if not Path(text).expanduser().is_dir() and is_hub_id(text):
        return _from_hub(text, ("*.json", "*.jinja"))
    return resolve(name)


def is_gguf(file: Path) -> bool:
    """Whether it is taken for a GGUF file."""
    return file.suffix == ".gguf" and file.is_file()


def is_hub_id(text: str) -> bool:
    """Whether it reads `owner/name`; what else is no folder is a mistake worth naming early."""
    return text.count("/") == 1 and not text.startswith(("/", ".", "~")) and "\\" not in text


def _nano() -> Path | None:
    # The first is an installed wheel, the second a checkout.
    for models in (PACKAGE / "_data" / "models", PACKAGE.parent / "data" / "models"):
        if (models / NANO / "config.json").is_file():
            return models / NANO
    return None


def _smollm2() -> Path:
    from minserve.models import smollm2

    folder = models_home() / "smollm2"
    if (folder / "config.json").is_file():
        return folder
    try:
        return _from_hub(smollm2.HUB_ID)
    except ModelNotFound:
        smollm2.fetch(folder)
        return folder


def _from_hub(repo_id: str, patterns: Sequence[str] = HUB_PATTERNS) -> Path:
    """The folder of a snapshot in Hugging Face's own cache: safetensors and JSON, no code.

    huggingface_hub shows a progress bar for each file, and resumes what was interrupted.
    """
    # Imported here: it takes a while, and nano never needs it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                repo_id,
                allow_patterns=list(patterns),
                ignore_patterns=list(HUB_IGNORED),
                etag_timeout=5,
            )
        )
    except RepositoryNotFoundError:
        reason = "the hub knows no such model, or wants you to log in"
    except LocalEntryNotFoundError:
        reason = "the hub is not reachable, and the model is not in its cache"
    except Exception as error:  # connection errors come from whatever client the hub library uses
        reason = f"{type(error).__name__}: {error}"
    raise ModelNotFound(
        f"{repo_id} could not be fetched: {reason}",
        "check the name and the connection, or give a folder that holds the model",
    )
