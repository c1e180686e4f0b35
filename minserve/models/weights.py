"""Weights from safetensors files, by memory map. Never pickle, never code from the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from minserve.errors import ConfigError, WeightsMissing

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_REFETCH = "fetch the model again, or point to a folder with complete *.safetensors files"


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name. Raises `ConfigError` for one that the engine does not run."""
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown", f"use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, single or sharded. Raises `WeightsMissing`."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        except (ValueError, KeyError, AttributeError) as error:
            raise WeightsMissing(f"{index} is damaged: {error!r}", _REFETCH) from None
        # A shard is a name beside the index, whatever path the index claims.
        files = sorted({folder / Path(shard).name for shard in shards})
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            raise WeightsMissing(f"{file} is missing", _REFETCH)
    return files


class Weights:
    """Named tensors of a model folder. Use as a context manager: it keeps the files mapped.

    `take(name)` copies one tensor to `dtype` and `device`; nothing else is read from disk.
    Raises `WeightsMissing` for an absent or damaged file, a missing tensor or a wrong shape.
    """

    def __init__(self, folder: str | Path, dtype: torch.dtype, device: str = "cpu") -> None:
        self._dtype = dtype
        self._device = device
        self._files = ExitStack()
        self._where = {}
        self.folder = Path(folder)
        for file in weight_files(self.folder):
            try:
                opened = self._files.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._files.close()
                raise WeightsMissing(
                    f"{file} is not a whole safetensors file: {error}", _REFETCH
                ) from None
            self._where.update(dict.fromkeys(opened.keys(), opened))

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`, which must have `shape`."""
        if name not in self._where:
            raise WeightsMissing(f"{self.folder} holds no tensor {name!r}", _REFETCH)
        tensor = self._where[name].get_tensor(name)
        if tensor.shape != shape:
            raise WeightsMissing(
                f"{name} of {self.folder} is {tuple(tensor.shape)}, its config says {shape}",
                "config.json and the weights are of different models: fetch both again",
            )
        # NOTE: copied even where nothing changes, so that no tensor outlives its memory map.
        return tensor.to(self._device, self._dtype, copy=True)
