"""The fixed work that every engine is given: random prompts, output lengths forced."""

from __future__ import annotations

import random
from dataclasses import dataclass

from minserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompts` are token ids; request i yields exactly `max_tokens[i]` tokens (ignore_eos)."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.max_tokens)


SHAPES: dict[str, tuple[int, tuple[int, int], tuple[int, int]]] = {
    "single": (1, (128, 128), (128, 128)),
    "16x128/64": (16, (128, 128), (64, 64)),
    "16x512/64": (16, (512, 512), (64, 64)),
    "64 mixed": (64, (32, 512), (16, 256)),
}
"""Name: requests, fewest and most tokens in, fewest and most tokens out."""


def workload(name: str, vocab_size: int, seed: int = 0) -> Workload:
    """The workload of that name; the same for the same seed. Raises `ConfigError`."""
    if name not in SHAPES:
        raise ConfigError(f"workload {name!r} is unknown", f"use {', '.join(SHAPES)}")
    num_requests, tokens_in, tokens_out = SHAPES[name]
    rng = random.Random(f"{name} {seed}")
    prompts, max_tokens = [], []
    for _ in range(num_requests):
        length = rng.randint(*tokens_in)
        prompts.append(tuple(rng.randrange(100, vocab_size) for _ in range(length)))
        max_tokens.append(rng.randint(*tokens_out))
    return Workload(name, tuple(prompts), tuple(max_tokens))
