"""GGUF, llama.cpp's file format: converted once to a folder of safetensors, and run from there.

A file holds one model: typed fields (its shape, its tokenizer) and tensors, most of them packed to
a few bits per weight. Conversion unpacks them, so a 4-bit file keeps the quality of 4 bits and
takes the memory of 16. Folders lie under MINSERVE_HOME and are found again by the file's content.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minserve.errors import ConfigError, MinserveError, ModelNotFound, UnsupportedModel
from minserve.home import models_home
from minserve.models.config import Llama3Scaling, ModelConfig
from minserve.models.gguf_tokenizer import end_token_ids, write_tokenizer
from minserve.models.progress import Progress

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # and Mistral
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MANIFEST = "minserve.json"
SHARD_BYTES = 1 << 30
_END_BYTES = 1 << 20
_ANOTHER = "use the model's safetensors, or another GGUF file of it"


def folder_of(file: str | os.PathLike) -> Path:
    """The folder that `file` was converted to; converts it on first use.

    Raises `ModelNotFound` for a file that is no GGUF or is cut short, `UnsupportedModel` for a
    model, a packing or a tokenizer that minserve does not read, `ConfigError` if the disk is full.
    """
    file = Path(file)
    target = models_home() / "gguf" / f"{file.stem}-{_content_key(file)}"
    if not is_whole(target):
        if target.exists():
            shutil.rmtree(target)
        with Progress() as progress:
            make_once(target, lambda folder: convert(file, folder, progress))
    return target


def config_of(file: Path) -> ModelConfig:
    """The shape of the model in `file`, without unpacking it. Raises as `folder_of` does."""
    _, _, config = _read(file)
    return ModelConfig.from_dict(config, source=str(file))


def make_once(target: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a folder, and move it to `target` in one step; leaves nothing half done."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last move is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        folder = Path(scratch) / "model"
        make(folder)
        try:
            os.replace(folder, target)
        except OSError:
            if not (target / "config.json").is_file():  # else another process was first
                raise


def is_whole(folder: Path) -> bool:
    """Whether a converted folder holds every file that its manifest names, in full size."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def convert(file: Path, folder: Path, progress: Progress) -> None:
    """Write the model in `file` to `folder`: config, tokenizer, safetensors and a manifest.

    Weights become float32 if the file holds float32, bfloat16 if it holds that, else float16.
    Raises as `folder_of` does.
    """
    reader, fields, config = _read(file)
    shape = ModelConfig.from_dict(config, source=str(file))
    folder.mkdir(parents=True)
    width = 4 if config["dtype"] == "float32" else 2
    free_bytes = shutil.disk_usage(folder).free
    if width * shape.num_parameters > free_bytes:
        raise ConfigError(
            f"{file.name} unpacks to {width * shape.num_parameters / 1e9:.1f} GB, and "
            f"{free_bytes / 1e9:.1f} GB are free in {models_home()}",
            "make room, or set MINSERVE_HOME to a folder on a larger disk",
        )
    write_tokenizer(fields, file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    progress.stage(f"Converting {file.name} (once)")
    _write_weights(reader.tensors, shape, folder, progress)
    progress.stage(f"Checking {file.name}")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = {"gguf": file.name, "sha256": digest, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def read_config(fields: dict[str, Any], tensors: dict[str, Any], file: Path) -> dict[str, Any]:
    """The `config.json` that says what the GGUF fields say. Raises `UnsupportedModel`."""
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{file} is a {kind!r}, which minserve does not run",
            f"choose a GGUF file of {', '.join(ARCHITECTURES)}",
        )
    if fields.get("split.count", 1) > 1:
        raise UnsupportedModel(
            f"{file} is one of {fields['split.count']} parts",
            "join them with llama.cpp's `llama-gguf-split --merge`",
        )

    def of(name: str, default: Any = None) -> Any:
        return fields.get(f"{kind}.{name}", default)

    if of("expert_count", 0):
        raise UnsupportedModel(f"{file} is a mixture of experts", "choose a dense model")
    heads, hidden = of("attention.head_count"), of("embedding_length")
    head_dim = of("attention.key_length", hidden // heads if hidden and heads else None)
    if of("attention.value_length", head_dim) != head_dim or (
        of("rope.dimension_count", head_dim) != head_dim
    ):
        raise UnsupportedModel(f"{file} has heads of uneven or partly rotated size", _ANOTHER)
    embeddings = tensors.get("token_embd.weight")
    if embeddings is None:
        raise ModelNotFound(f"{file} holds no token_embd.weight", "fetch the file again")
    packing = embeddings.tensor_type.name
    window = of("attention.sliding_window", 0)
    is_mistral = kind == "llama" and window
    return {
        "architectures": ["MistralForCausalLM" if is_mistral else ARCHITECTURES[kind]],
        "model_type": "mistral" if is_mistral else kind,
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_size": hidden,
        "intermediate_size": of("feed_forward_length"),
        "vocab_size": int(embeddings.shape[1]),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(of, tensors, file),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": kind != "qwen2" and "blk.0.attn_q.bias" in tensors,
        "use_sliding_window": bool(window),
        "sliding_window": window or None,
        "max_window_layers": 0,
        "hidden_act": "silu",
        "dtype": {"F32": "float32", "BF16": "bfloat16"}.get(packing, "float16"),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_token_ids(fields),
    }


def _rope(of: Callable, tensors: dict[str, Any], file: Path) -> dict[str, Any]:
    theta = of("rope.freq_base", 10000.0)
    scaling = of("rope.scaling.type", "none")
    factor = of("rope.scaling.factor", 1.0)
    if "rope_freqs.weight" in tensors:
        return {"rope_theta": theta, **_llama3_rope(tensors["rope_freqs.weight"].data, theta, file)}
    if scaling == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    if scaling not in ("linear", "yarn") or of("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            f"{file} scales its rotary embedding by {scaling!r} in a way minserve does not know",
            _ANOTHER,
        )
    rope = {"rope_theta": theta, "rope_type": scaling, "factor": factor}
    if scaling == "yarn":
        original = of("rope.scaling.original_context_length", of("context_length"))
        rope["original_max_position_embeddings"] = original
    return rope


def _llama3_rope(divisors: np.ndarray, theta: float, file: Path) -> dict[str, Any]:
    """llama.cpp keeps what Llama 3 divides each frequency by; find the settings that give it."""
    frequencies = theta ** -(np.arange(len(divisors)) / len(divisors))
    found = Llama3Scaling(round(float(divisors.max()), 3), 1.0, 4.0, 8192)  # as all of them have
    turns = found.original_max_position_embeddings * frequencies / (2 * np.pi)
    keep = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    if not np.allclose(1 / (keep + (1 - keep) / found.factor), divisors, rtol=1e-3):
        raise UnsupportedModel(f"{file} has rotary factors (rope_freqs) of its own", _ANOTHER)
    return {
        "rope_type": "llama3",
        "factor": found.factor,
        "low_freq_factor": found.low_freq_factor,
        "high_freq_factor": found.high_freq_factor,
        "original_max_position_embeddings": found.original_max_position_embeddings,
    }


def _write_weights(tensors: list, shape: ModelConfig, folder: Path, progress: Progress) -> None:
    """Unpack tensor by tensor into shards of about SHARD_BYTES, so that memory stays small."""
    import torch
    from safetensors.torch import save_file

    dtype = getattr(torch, shape.dtype)
    shard, where, size, number = {}, {}, 0, 1
    done, total = 0, sum(int(t.n_bytes) for t in tensors)
    for tensor in tensors:
        done += int(tensor.n_bytes)
        if tensor.name == "rope_freqs.weight":
            continue
        name = _name(tensor.name)
        unpacked = torch.from_numpy(_unpack(tensor, shape)).to(dtype)
        if not unpacked.isfinite().all():
            raise UnsupportedModel(f"{tensor.name} does not fit {shape.dtype}", _ANOTHER)
        shard[name], where[name] = unpacked, f"model-{number:05}.safetensors"
        size += unpacked.nbytes
        progress.bytes(done, total)
        if size >= SHARD_BYTES:
            save_file(shard, folder / where[name], metadata={"format": "pt"})
            shard, size, number = {}, 0, number + 1
    if shard:
        save_file(shard, folder / f"model-{number:05}.safetensors", metadata={"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": where}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _name(name: str) -> str:
    """A tensor's name in Hugging Face's checkpoints."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in TENSORS:
        raise UnsupportedModel(f"tensor {name} is none that minserve knows", _ANOTHER)
    layer = "" if match[1] is None else f"model.layers.{match[1]}."
    return f"{layer}{TENSORS[match[2]]}.{match[3]}"


def _unpack(tensor: Any, shape: ModelConfig) -> np.ndarray:
    """A tensor's values, rows and columns as in Hugging Face's checkpoints."""
    from gguf.quants import dequantize

    try:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except NotImplementedError:
        raise UnsupportedModel(
            f"{tensor.name} is packed as {tensor.tensor_type.name}, which cannot be unpacked here",
            "choose a file of Q4_K_M, Q8_0, F16 or the like",
        ) from None
    # NOTE: for Llama, llama.cpp lays the two halves that rotate together side by side; undone here.
    is_rotated = re.search(r"\.attn_(q|k)\.", tensor.name)
    if is_rotated and shape.family in ("Llama", "Mistral"):
        paired = values.reshape(-1, shape.head_dim // 2, 2, *values.shape[1:])
        values = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)
    return values


def _read(file: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """gguf's reader of the file, its fields, and the config that they make."""
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        return reader, fields, read_config(fields, {t.name: t for t in reader.tensors}, file)
    except MinserveError:
        raise
    except Exception as error:  # the reader raises whatever its memory map does
        raise ModelNotFound(
            f"{file} is not a whole GGUF file: {_what_is_wrong(file)}", "fetch the file again"
        ) from error


def _what_is_wrong(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            start = opened.read(4)
    except OSError as error:
        return str(error)
    if not start:
        return "it is empty"
    return "it ends too early, or is damaged" if start == b"GGUF" else "it does not begin as one"


def _content_key(file: Path) -> str:
    """A short name for the content: size and both ends. The whole is hashed when converting."""
    digest = hashlib.sha256()
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            digest.update(f"{size}\n".encode() + opened.read(_END_BYTES))
            opened.seek(max(0, size - _END_BYTES))
            digest.update(opened.read())
    except OSError as error:
        raise ModelNotFound(f"cannot read {file}: {error}", "check the path") from None
    return digest.hexdigest()[:16]
