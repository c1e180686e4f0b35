"""What a model's shape is, read from its `config.json`. No torch: estimates need only this."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from minserve.errors import ModelNotFound, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Family:
    """Where an architecture differs from Llama, and what its config means where it is silent."""

    name: str
    qkv_bias: bool = False
    """Queries, keys and values have a bias whatever the config says."""
    reads_attention_bias: bool = False
    """`attention_bias` puts one on all four projections of attention."""
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    """Every head's queries and keys pass an RMSNorm before they are rotated (Henry et al. 2020)."""
    head_dim: int | None = None
    """Where the config names none; None: hidden size over heads."""
    sliding: str = "never"
    """Which layers look through a window: "never", "all", or "listed" in the config."""


FAMILIES = {
    "LlamaForCausalLM": Family("Llama", reads_attention_bias=True, reads_mlp_bias=True),
    "MistralForCausalLM": Family("Mistral", sliding="all"),
    "Qwen2ForCausalLM": Family("Qwen2", qkv_bias=True, sliding="listed"),
    "Qwen3ForCausalLM": Family(
        "Qwen3", reads_attention_bias=True, qk_norm=True, head_dim=128, sliding="listed"
    ),
}


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every rotary frequency divided by `factor` (position interpolation: Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """How Llama 3.1 and later stretch their rotary frequencies (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): slow waves interpolated, fast ones kept, attention sharpened.

    `beta_fast` and `beta_slow` are turns within the original context; `attention_factor`
    multiplies the rotated queries and keys; `truncate` rounds the blend's ends to whole dimensions.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama-like decoder. Sizes are counts of elements, not bytes."""

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
    rope_scaling: RopeScaling | None = None
    dtype: str = "float32"
    """The precision of the weights as shipped; the engine may run another."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    """For each layer, how many tokens a query looks at, its own included; None: all before it."""

    @property
    def family(self) -> str:
        """What people call the architecture: Llama, Mistral, Qwen2 or Qwen3."""
        return FAMILIES[self.architecture].name

    @property
    def num_parameters(self) -> int:
        """Weights in all; tied embeddings count once."""
        hidden, inner = self.hidden_size, self.intermediate_size
        heads = self.num_attention_heads * self.head_dim
        kv_heads = self.num_kv_heads * self.head_dim
        attention = hidden * (2 * heads + 2 * kv_heads)
        attention += self.qkv_bias * (heads + 2 * kv_heads) + self.out_bias * hidden
        attention += self.qk_norm * 2 * self.head_dim
        mlp = 3 * hidden * inner + self.mlp_bias * (2 * inner + hidden)
        layers = self.num_hidden_layers * (attention + mlp + 2 * hidden)
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return layers + embeddings + hidden

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
        family = FAMILIES.get(architecture)
        if family is None:
            raise UnsupportedModel(
                f"{source} is a {architecture}, which minserve does not run",
                f"choose a model of {' or '.join(FAMILIES)}, such as smollm2",
            )
        _refuse_variants(config, family, source)
        read = _Fields(config, source)
        heads, hidden = read.count("num_attention_heads"), read.count("hidden_size")
        attention_bias = family.reads_attention_bias and read.flag("attention_bias")
        # transformers 5 writes rope_parameters; before, rope_theta and rope_scaling.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise read.wrong("rope_parameters", rope)
        rope = _Fields({"rope_theta": config.get("rope_theta", 10000.0)} | rope, source)
        context = read.count("max_position_embeddings", 2048)
        scaling = _rope_scaling(rope, context)
        if isinstance(scaling, YarnScaling):
            # NOTE: Qwen's configs keep the context they were trained on and only add the factor.
            stretched = round(scaling.factor * scaling.original_max_position_embeddings)
            context = max(context, stretched)
        num_layers = read.count("num_hidden_layers")
        shape = cls(
            architecture=architecture,
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_kv_heads=read.count("num_key_value_heads", heads),
            head_dim=read.count("head_dim", family.head_dim or max(1, hidden // heads)),
            hidden_size=hidden,
            intermediate_size=read.count("intermediate_size"),
            vocab_size=read.count("vocab_size"),
            max_position_embeddings=context,
            rope_theta=rope.number("rope_theta"),
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            tie_word_embeddings=read.flag("tie_word_embeddings"),
            eos_token_ids=_ids(read),
            rope_scaling=scaling,
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
            qkv_bias=family.qkv_bias or attention_bias,
            out_bias=attention_bias,
            mlp_bias=family.reads_mlp_bias and read.flag("mlp_bias"),
            qk_norm=family.qk_norm,
            windows=_windows(read, family, num_layers),
        )
        if heads % shape.num_kv_heads:
            raise UnsupportedModel(
                f"{source} has num_attention_heads {heads} over {shape.num_kv_heads} KV heads",
                "the first must be a multiple of num_key_value_heads",
            )
        if shape.head_dim % 2:
            raise UnsupportedModel(
                f"{source} has head_dim {shape.head_dim}", "rotary embedding needs an even one"
            )
        return shape


@dataclass(frozen=True, slots=True)
class _Fields:
    """A config's values, each checked as it is read. Null counts as absent."""

    values: dict[str, Any]
    source: str

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._value(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            raise self.wrong(name, value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value)
        return value

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise UnsupportedModel(
                f"the config of {self.source} lacks {name!r}", "check that config.json is complete"
            )
        return default

    def wrong(self, name: str, value: Any) -> UnsupportedModel:
        return UnsupportedModel(
            f"the config of {self.source} holds a value of the wrong type or size: {name} is "
            f"{value!r}",
            "check that config.json is the model's own",
        )


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


def _ids(read: _Fields) -> frozenset[int]:
    value = read.values.get("eos_token_id")
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) for i in ids):
        raise read.wrong("eos_token_id", value)
    return frozenset(ids)


def _refuse_variants(config: dict[str, Any], family: Family, source: str) -> None:
    wanted: dict[str, str | bool] = {"hidden_act": "silu"}
    if not family.reads_attention_bias and not family.qkv_bias:
        wanted["attention_bias"] = False
    if not family.reads_mlp_bias:
        wanted["mlp_bias"] = False
    for field, value in wanted.items():
        found = config.get(field, value)
        if found != value:
            raise UnsupportedModel(
                f"{source} sets {field} to {found!r}; minserve runs a {family.name} with {value!r}",
                f"choose a plain {family.name} model",
            )
    if config.get("quantization_config"):
        raise UnsupportedModel(
            f"{source} holds quantized weights (quantization_config)",
            "use its float16 or bfloat16 version",
        )


def _windows(read: _Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    everywhere = (None,) * num_layers
    if family.sliding == "never":
        return everywhere
    if family.sliding == "all":
        # Absent is not null: transformers takes 4096 for a Mistral that does not say.
        if "sliding_window" in read.values and read.values["sliding_window"] is None:
            return everywhere
        return (read.count("sliding_window", 4096),) * num_layers
    if not read.flag("use_sliding_window") or read.values.get("sliding_window", 4096) is None:
        return everywhere
    first = read.values.get("max_window_layers", 28)
    kinds = read.values.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(num_layers)
    ]
    known = {"full_attention": None, "sliding_attention": read.count("sliding_window", 4096)}
    if len(kinds) != num_layers or not set(kinds) <= set(known):
        raise read.wrong("layer_types", kinds)
    return tuple(known[kind] for kind in kinds)


def _rope_scaling(rope: _Fields, context: int) -> RopeScaling | None:
    values = rope.values
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            f"{rope.source} rotates part of each head (partial_rotary_factor)",
            "choose a model that rotates whole heads",
        )
    kind = values.get("rope_type") or values.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            rope.number("factor"),
            rope.number("low_freq_factor"),
            rope.number("high_freq_factor"),
            rope.count("original_max_position_embeddings", context),
        )
    if kind == "yarn":
        factor = rope.number("factor")
        return YarnScaling(
            factor,
            rope.count("original_max_position_embeddings", context),
            rope.number("attention_factor", _yarn_attention_factor(rope, factor)),
            rope.number("beta_fast", 32.0),
            rope.number("beta_slow", 1.0),
            rope.flag("truncate", True),
        )
    raise UnsupportedModel(
        f"{rope.source} scales its rotary embedding by rope_type {kind!r}",
        "minserve knows default, linear, llama3 and yarn: choose a model that uses one of them",
    )


def _yarn_attention_factor(rope: _Fields, factor: float) -> float:
    """The paper's 0.1 ln(factor) + 1, or DeepSeek's ratio of two of them."""

    def sharpen(scale: float) -> float:
        return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0

    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return sharpen(rope.number("mscale")) / sharpen(rope.number("mscale_all_dim"))
    return sharpen(1.0)
