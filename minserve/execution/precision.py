"""In what precision a model runs: what is asked for, and what suits the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minserve.errors import ConfigError
from minserve.execution import cuda

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""A CPU with one of these multiplies bfloat16 in hardware; others are slower at it than float32."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What is kept in which type.

    dtype: activations, and all weights that are not quantised. quantization: `none`, or `int8`:
    the projections' weights are a byte each. kv_cache: `auto` (as dtype) or `int8`.
    """

    dtype: str
    quantization: str = "none"
    kv_cache: str = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("quantization", self.quantization, ("none", "int8")),
            ("kv_cache_dtype", self.kv_cache, ("auto", "int8")),
        ):
            if value not in known:
                raise ConfigError(f"{name} {value!r} is unknown", f"use {' or '.join(known)}")

    @property
    def kv_dtype(self) -> str:
        """The KV cache's type, as `KVShape.bytes_per_token` takes it."""
        return self.dtype if self.kv_cache == "auto" else self.kv_cache

    def __str__(self) -> str:
        """`float32`, `bfloat16, int8 weights, int8 KV`: everything that changes a logit."""
        parts = (self.quantization, "weights"), (self.kv_cache, "KV")
        return ", ".join([self.dtype, *(f"int8 {what}" for how, what in parts if how == "int8")])


def choose_dtype(
    asked: str | None, device: str, has: Mapping[str, bool | int | str] | None = None
) -> str:
    """The dtype to run: the one asked for by name; `auto` for the fastest that is safe, which on a
    CPU is bfloat16 where it has BFLOAT16_FLAGS, else float32; None for float32 on any CPU. Without
    a name a GPU decides by itself.

    has: what the CPU can do, as `torch.cpu.get_capabilities` says it; by default this CPU. Raises
    `ConfigError` for a device that is unknown or absent.
    """
    cuda.check_device(device)
    if asked not in (None, "auto"):
        return asked
    if torch.device(device).type == "cuda":
        return cuda.default_dtype(device)
    return "bfloat16" if asked and multiplies_bfloat16(has) else "float32"


def multiplies_bfloat16(has: Mapping[str, bool | int | str] | None = None) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; `has` as in `choose_dtype`."""
    has = torch.cpu.get_capabilities() if has is None else has
    return any(has.get(flag) for flag in BFLOAT16_FLAGS)
