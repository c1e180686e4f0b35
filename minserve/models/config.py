"""What a model's shape is, read from its `config.json`. No torch: estimates need only this."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minserve.errors import ModelNotFound, UnsupportedModel

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """How Llama 3.1 and later stretch their rotary frequencies (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-family decoder. Sizes are counts of elements, not bytes."""

    architecture: str
    num_hidden_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]
    rope_scaling: Llama3Scaling | None = None
    dtype: str = "float32"
    """The precision of the weights as shipped; the engine may run another."""

    @property
    def num_parameters(self) -> int:
        """Weights in all; tied embeddings count once."""
        heads = self.num_attention_heads * self.head_dim
        kv_heads = self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * heads + 2 * kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        layers = self.num_hidden_layers * (attention + mlp + 2 * self.hidden_size)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return layers + embeddings + self.hidden_size

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Read `config.json`, and the end tokens of `generation_config.json` where it has them.

        Raises `ModelNotFound` if the folder holds no readable config, `UnsupportedModel` if it
        asks for anything that the decoder does not do.
        """
        folder = Path(folder)
        config = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        if generation.is_file():
            end = _read_json(generation).get("eos_token_id")
            if end is not None:
                config = {**config, "eos_token_id": end}
        return cls.from_dict(config, source=str(folder))

    @classmethod
    def from_dict(cls, config: dict[str, Any], source: str = "this config") -> ModelConfig:
        """As `from_folder`, from a parsed `config.json`."""
        architecture = (config.get("architectures") or ["unnamed"])[0]
        if architecture not in SUPPORTED_ARCHITECTURES:
            raise UnsupportedModel(
                f"{source} is a {architecture}, which minserve does not run",
                f"choose a model of {' or '.join(SUPPORTED_ARCHITECTURES)}, such as smollm2",
            )
        _refuse_variants(config, source)
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            # transformers 5 writes rope_parameters; before, rope_theta and rope_scaling.
            rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
            theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
            shape = cls(
                architecture=architecture,
                num_hidden_layers=int(config["num_hidden_layers"]),
                num_attention_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                hidden_size=hidden,
                intermediate_size=int(config["intermediate_size"]),
                vocab_size=int(config["vocab_size"]),
                max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
                rope_theta=float(theta),
                rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                eos_token_ids=_ids(config.get("eos_token_id")),
                rope_scaling=_rope_scaling(rope, source),
                dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            )
        except KeyError as missing:
            raise UnsupportedModel(
                f"the config of {source} lacks {missing}", "check that config.json is complete"
            ) from None
        except (TypeError, ValueError) as error:
            raise UnsupportedModel(
                f"the config of {source} holds a value of the wrong type: {error}",
                "check that config.json is the model's own",
            ) from None
        if shape.num_attention_heads % shape.num_kv_heads or shape.head_dim % 2:
            raise UnsupportedModel(
                f"{source} has {shape.num_attention_heads} heads of {shape.head_dim} over "
                f"{shape.num_kv_heads} KV heads",
                "the heads must be a multiple of the KV heads, and the head size even",
            )
        return shape


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(
            f"there is no {path.name} in {path.parent}",
            "give a folder that holds config.json, tokenizer.json and *.safetensors",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"cannot read {path}: {error}", "fetch the model again") from None
    if not isinstance(value, dict):
        raise ModelNotFound(f"{path} is not a JSON object", "fetch the model again")
    return value


def _ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])


def _refuse_variants(config: dict[str, Any], source: str) -> None:
    wanted = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    for field, value in wanted.items():
        found = config.get(field, value)
        if found != value:
            raise UnsupportedModel(
                f"{source} sets {field} to {found!r}; minserve runs {value!r}",
                "choose a plain Llama model, such as smollm2",
            )
    if config.get("quantization_config"):
        raise UnsupportedModel(
            f"{source} holds quantized weights", "use its float16 or bfloat16 version"
        )


def _rope_scaling(rope: dict[str, Any], source: str) -> Llama3Scaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "llama3":
        return Llama3Scaling(
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(
        f"{source} scales its rotary embedding by {kind!r}",
        "minserve knows 'default' and 'llama3': choose a model that uses one of them",
    )
