"""The rules of `kv_bytes_per_token(config, bytes_per_value)`, each tried on the smallest shapes."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing
from minserve.models.config import ModelConfig

Estimate = Callable[[ModelConfig, int], int]


def config_of(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    """A model's config with nothing but the shape that matters here."""
    return ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "vocab_size": 256,
        }
    )


# Shapes as published in each model's config.json: layers, query heads, KV heads, head dim, hidden.
MODELS = {
    "SmolLM2-135M": (30, 9, 3, 64, 576),
    "Llama-2-7B": (32, 32, 32, 128, 4096),
    "Llama-3.1-8B": (32, 32, 8, 128, 4096),
}


def _expect(estimate: Estimate, shape: tuple[int, ...], bytes_per_value: int, why: str) -> None:
    layers, heads, kv_heads, head_dim, hidden = shape
    right = 2 * layers * kv_heads * head_dim * bytes_per_value
    example = [
        f"num_hidden_layers = {layers}, num_attention_heads = {heads}, num_kv_heads = {kv_heads}, "
        f"head_dim = {head_dim}, hidden_size = {hidden}",
        f"kv_bytes_per_token(config, bytes_per_value={bytes_per_value})",
    ]
    with showing(example):
        result = estimate(config_of(*shape), bytes_per_value)
    if isinstance(result, bool) or not isinstance(result, Integral):
        what = f"a whole number of bytes (an int) is wanted; this is {returned(result)}"
        raise BrokenRule(what, example)
    if result != right:
        raise BrokenRule(f"{why}: {right:,} bytes expected, not {result:,}", example)


def _returns_a_whole_number(estimate: Estimate) -> None:
    example = ["kv_bytes_per_token(config, bytes_per_value=2)"]
    result = estimate(config_of(1, 1, 1, 2, 2), 2)
    if isinstance(result, bool) or not isinstance(result, Integral):
        what = f"a whole number of bytes (an int) is wanted; this is {returned(result)}"
        raise BrokenRule(what, example)


def _a_key_and_a_value(estimate: Estimate) -> None:
    why = "1 layer, 1 KV head: a key of 2 numbers and a value of 2 numbers, of 2 bytes each"
    _expect(estimate, (1, 1, 1, 2, 2), 2, why)


def _every_layer(estimate: Estimate) -> None:
    for layers in (2, 3):
        _expect(estimate, (layers, 1, 1, 2, 2), 2, f"{layers} layers keep keys and values each")


def _kv_heads_only(estimate: Estimate) -> None:
    for heads, kv_heads in ((2, 2), (2, 1), (4, 2)):
        why = f"{heads} query heads share {kv_heads} KV heads, and only KV heads are stored"
        _expect(estimate, (1, heads, kv_heads, 2, 2 * heads), 1, why)


def _head_dim_from_the_config(estimate: Estimate) -> None:
    why = "head_dim is 4 here, and not hidden_size // num_attention_heads = 2: some models differ"
    _expect(estimate, (1, 2, 1, 4, 4), 1, why)


def _each_value_has_bytes(estimate: Estimate) -> None:
    for size, name in ((1, "int8"), (2, "float16"), (4, "float32")):
        _expect(estimate, (1, 1, 1, 2, 2), size, f"{name} takes {size} bytes per value, not bits")


def _real_models(estimate: Estimate) -> None:
    for name, shape in MODELS.items():
        for size in (2, 4):
            _expect(estimate, shape, size, f"{name} at {size} bytes per value")


_STEP = "estimate"
RULES = (
    Rule(
        "returns_a_whole_number",
        _STEP,
        "The result is a whole number of bytes.",
        "Multiply; no division is needed, so no fraction can arise.",
        _returns_a_whole_number,
    ),
    Rule(
        "a_key_and_a_value",
        _STEP,
        "Every token stores a key AND a value, and the unit is bytes.",
        "There is a factor 2 in front; bits and kilobytes do not enter.",
        _a_key_and_a_value,
    ),
    Rule(
        "every_layer",
        _STEP,
        "Every layer stores its own keys and values.",
        "Multiply by num_hidden_layers.",
        _every_layer,
    ),
    Rule(
        "each_value_has_bytes",
        _STEP,
        "The precision of the cache counts: bytes_per_value is an argument.",
        "Do not assume 2 bytes.",
        _each_value_has_bytes,
    ),
    Rule(
        "kv_heads_only",
        _STEP,
        "Only KV heads are stored; query heads are computed and thrown away.",
        "Use num_kv_heads: with grouped-query attention it is smaller than num_attention_heads.",
        _kv_heads_only,
    ),
    Rule(
        "head_dim_from_the_config",
        _STEP,
        "The size of a head is config.head_dim.",
        "hidden_size // num_attention_heads is right for many models, and wrong for some.",
        _head_dim_from_the_config,
    ),
    Rule(
        "real_models",
        _STEP,
        "It agrees with models that exist.",
        "Compare your formula with the one above, factor by factor.",
        _real_models,
    ),
)

SUITE = Suite(
    "kv_bytes_per_token",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
one token, 2 layers, 2 KV heads, head dim 3

             KV head 0        KV head 1
  layer 0    key   [v v v]    [v v v]
             value [v v v]    [v v v]
  layer 1    key   [v v v]    [v v v]         count the v's: 2 x 2 x 2 x 3 = 24
             value [v v v]    [v v v]         then times the bytes of one v""",
            pseudocode="2 x layers x KV heads x head dim x bytes per value",
            near_miss="""\
- 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * bytes_per_value
+ 2 * config.num_hidden_layers * config.num_kv_heads        * config.head_dim * bytes_per_value""",
        )
    },
)
