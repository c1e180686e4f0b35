"""LoRA adapters (Hu et al. 2021) in PEFT's format: small matrices added to some projections.

An adapter is `W + scale * B A` with A `[rank, in]` and B `[out, rank]`. W is shared, so many
adapters are served by one set of weights, and the rows of one step may have different ones: each
adapter's tokens are one segment of the batch (Punica: Chen et al. 2023).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minserve.errors import ConfigError, ModelNotFound, UnsupportedModel, WeightsMissing
from minserve.models.decoder import Decoder
from minserve.models.projection import Delta, Projection

# What says how an adapter was trained or found, and changes nothing of what it computes.
HARMLESS = {
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
}
# Other ways to begin (PiSSA, OLoRA, CorDA, LoftQ) change the base model as well.
PLAIN_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


def load_adapter(decoder: Decoder, name: str, folder: str | os.PathLike) -> None:
    """Load the PEFT folder `folder` into `decoder` as adapter `name`. Changes all or nothing.

    Reads `adapter_config.json` and `adapter_model.safetensors`; never a pickle. Raises
    `ConfigError` for a name that is empty or taken (a cached prefix is known by the adapter's
    name, so a name keeps its weights for good), `ModelNotFound` or `WeightsMissing` for files that
    are absent or damaged, `UnsupportedModel` for an option that the decoder does not have.
    """
    if not name or name in adapters(decoder):
        raise ConfigError(
            f"an adapter named {name!r} is loaded already" if name else "an adapter has no name",
            "give every adapter a name of its own",
        )
    folder = Path(folder).expanduser()
    config = _config(folder)
    tensors = _tensors(folder)
    scaled = {part: _scale(config, down) for part, (down, _) in tensors.items()}
    deltas, used = [], set()
    for projection in decoder.projections():
        parts = [part for part in projection.parts if part in tensors]
        if parts:
            used.update(parts)
            delta = _delta(projection, tensors, scaled, folder)
            deltas.append((projection, Delta(*(part.to(decoder.norm) for part in delta))))
    if unknown := sorted(set(tensors) - used):
        raise UnsupportedModel(
            f"the adapter in {folder} changes {unknown[0]}, which minserve does not adapt",
            "train it on the projections of attention and MLP, for the model that is served",
        )
    for projection, delta in deltas:
        projection.deltas[name] = delta


def adapters(decoder: Decoder) -> frozenset[str]:
    """Names of the adapters that `decoder` holds."""
    return frozenset(name for p in decoder.projections() for name in p.deltas)


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(
            f"there is no adapter_config.json in {folder}",
            "give the folder of a PEFT adapter; PEFT's save_pretrained writes one",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"cannot read {file}: {error}", "fetch the adapter again") from None
    if not isinstance(config, dict):
        raise ModelNotFound(f"{file} is not a JSON object", "fetch the adapter again")

    def refuse(field: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"the adapter in {folder} sets {field} to {config.get(field)!r}",
            "minserve runs plain LoRA: train it without this option, or merge it into the model",
        )

    if config.get("peft_type") != "LORA":
        raise refuse("peft_type")
    if config.get("bias", "none") != "none":
        raise refuse("bias")
    beginning = config.get("init_lora_weights", True)
    if not any(beginning is plain or beginning == plain for plain in PLAIN_BEGINNINGS):
        raise refuse("init_lora_weights")
    for field in sorted(set(config) - HARMLESS - {"bias", "init_lora_weights"}):
        if config[field]:
            raise refuse(field)
    alpha = config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise refuse("lora_alpha")
    return config


def _tensors(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of every adapted part, by the part's name in the checkpoint; float32."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        has_pickle = (folder / "adapter_model.bin").is_file()
        raise WeightsMissing(
            f"{file} is missing" + (", and a pickle (.bin) is not read" if has_pickle else ""),
            "save the adapter with safe_serialization=True" if has_pickle else "fetch it again",
        )
    found: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                part, _, kind = key.removeprefix("base_model.model.").partition(".lora_")
                found.setdefault(part, {})[kind] = opened.get_tensor(key).float()
    except (SafetensorError, OSError) as error:
        raise WeightsMissing(f"{file} is not whole: {error}", "fetch the adapter again") from None
    for part, pair in found.items():
        if set(pair) != {"A.weight", "B.weight"}:
            kinds = ", ".join(sorted(kind or "a tensor that is no LoRA" for kind in pair))
            raise UnsupportedModel(
                f"the adapter in {folder} holds {kinds} for {part}", "plain LoRA is one A and one B"
            )
        if not all(tensor.isfinite().all() for tensor in pair.values()):
            raise WeightsMissing(f"{part} in {file} is not finite", "train or fetch it again")
    return {part: (pair["A.weight"], pair["B.weight"]) for part, pair in found.items()}


def _scale(config: dict[str, Any], down: Tensor) -> float:
    """alpha / rank; with rank-stabilised LoRA (Kalajdzievski 2023) alpha / sqrt(rank)."""
    rank = max(1, len(down))
    return config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)


def _delta(
    projection: Projection,
    tensors: dict[str, tuple[Tensor, Tensor]],
    scales: dict[str, float],
    folder: Path,
) -> Delta:
    """One delta for a projection of several parts: As one below the other, Bs on a diagonal.
    float32, on the CPU.
    """
    downs, ups = [], []
    for part, num_out in projection.parts.items():
        if part not in tensors:
            ups.append(torch.zeros(num_out, 0))
            continue
        down, up = tensors[part]
        num_in = projection.weight.shape[1]
        if down.shape != (len(down), num_in) or up.shape != (num_out, len(down)):
            raise WeightsMissing(
                f"{part} in {folder} is {tuple(down.shape)} and {tuple(up.shape)}; the model wants "
                f"(rank, {num_in}) and ({num_out}, rank)",
                "the adapter was trained for another model",
            )
        downs.append(down)
        ups.append(up * scales[part])
    return Delta(torch.cat(downs), torch.block_diag(*ups))
