"""How much memory a KV cache takes, and how many requests fit.

    bytes per token = 2 x layers x KV heads x head dim x bytes per value

The 2 is one key and one value. Grouped-query attention (GQA) has fewer KV heads than query heads,
multi-query attention (MQA) has one; the query heads do not enter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from minserve.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
INT8_SCALE_BYTES = 2  # one bfloat16 scale per token, KV head, and key or value

_UNITS = {"": 1} | {
    name: base**power
    for base, suffix in ((1000, "B"), (1024, "iB"))
    for power, letter in enumerate("KMGT", start=1)
    for name in (letter + suffix,)
}
_UNITS["B"] = 1


@dataclass(frozen=True, slots=True)
class KVShape:
    """What of a model decides the size of its KV cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if min(self.num_layers, self.num_kv_heads, self.head_dim) < 1:
            raise ConfigError(f"{self} has a part that is not positive", "check the model's config")

    def bytes_per_token(self, dtype: str = "float16", num_devices: int = 1) -> int:
        """KV bytes that one token takes, on each of `num_devices` that split the KV heads.

        A device holds whole heads, so with more devices than KV heads some hold a replica.
        int8 counts its scales. Raises `ConfigError` for an unknown dtype.
        """
        if dtype not in DTYPE_BYTES:
            raise ConfigError(
                f"KV dtype {dtype!r} is unknown", f"use one of {', '.join(DTYPE_BYTES)}"
            )
        if num_devices < 1:
            raise ConfigError(f"{num_devices} devices", "use at least one")
        heads = -(-self.num_kv_heads // num_devices)
        per_head = self.head_dim * DTYPE_BYTES[dtype] + (INT8_SCALE_BYTES if dtype == "int8" else 0)
        return 2 * self.num_layers * heads * per_head


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests of `context_tokens` resident tokens fit in `free_bytes`."""

    bytes_per_token: int
    context_tokens: int
    free_bytes: int
    block_size: int = 1

    def __post_init__(self) -> None:
        for name in ("bytes_per_token", "context_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", "use at least 1")
        if self.free_bytes < 0:
            raise ConfigError(f"free_bytes is {self.free_bytes}", "use 0 or more")

    @property
    def bytes_per_request(self) -> int:
        """Whole blocks: the last one may be partly empty."""
        blocks = -(-self.context_tokens // self.block_size)
        return blocks * self.block_size * self.bytes_per_token

    @property
    def total_tokens(self) -> int:
        """Tokens that fit, in whole blocks. KV capacity is counted in tokens, not in requests."""
        return self.free_bytes // (self.block_size * self.bytes_per_token) * self.block_size

    @property
    def concurrent_requests(self) -> int:
        return self.free_bytes // self.bytes_per_request


def parse_bytes(text: str) -> int:
    """Bytes of `24GB` (decimal: 10^9) or `24GiB` (binary: 2^30). Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2] not in _UNITS:
        raise ConfigError(
            f"{text!r} is not a size", "write a number and a unit, such as 128KB, 24GB or 24GiB"
        )
    return round(float(match[1]) * _UNITS[match[2]])
