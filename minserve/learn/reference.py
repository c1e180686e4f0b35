"""The reference of each part whose place in the engine is a plain function.

`block_pool` has its reference in the engine itself: `minserve.kv.blocks.BlockPool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from minserve.models.config import ModelConfig


def roofline(
    flops: float, num_bytes: float, peak_flops: float, bytes_per_s: float
) -> tuple[float, str]:
    """The least time that work can take on a machine, in seconds, and what sets it.

    Arithmetic and memory traffic overlap, so the slower one decides: "compute" or "memory"
    (Williams, Waterman and Patterson, *Roofline*, 2009).
    """
    compute_s, memory_s = flops / peak_flops, num_bytes / bytes_per_s
    return (compute_s, "compute") if compute_s > memory_s else (memory_s, "memory")


def kv_bytes_per_token(config: ModelConfig, bytes_per_value: int) -> int:
    """Bytes that one token's keys and values take in all layers.

    The 2 is one key and one value. Only KV heads count: with grouped-query attention (Ainslie et
    al., 2023) several query heads read the same one.
    """
    values = 2 * config.num_hidden_layers * config.num_kv_heads * config.head_dim
    return values * bytes_per_value


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Sequence[int],
    num_context_tokens: int,
) -> Tensor:
    """One token's attention over its own context, read through its block table.

    Args:
        query: `[num_heads, head_dim]`.
        key_cache: `[num_blocks, block_size, num_kv_heads, head_dim]`.
        value_cache: As key_cache.
        block_table: Block ids; position p lies in `block_table[p // block_size]`,
            slot `p % block_size`. May be longer than the context needs.
        num_context_tokens: Positions 0 up to this (exclusive) are attended to.

    Returns `[num_heads, head_dim]` in query's dtype: softmax(q k / sqrt(head_dim)) v, where head h
    reads KV head `h // (num_heads // num_kv_heads)`. Source: PagedAttention (Kwon et al., 2023).
    """
    num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    table = list(block_table)[: -(-num_context_tokens // block_size)]
    keys = key_cache[table].flatten(0, 1)[:num_context_tokens]
    values = value_cache[table].flatten(0, 1)[:num_context_tokens]
    group = num_heads // num_kv_heads
    keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
    scores = (query * keys).sum(-1) / head_dim**0.5  # [num_context_tokens, num_heads]
    return (scores.softmax(0)[..., None] * values).sum(0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running request that could be preempted: who it is, since when, and what it holds."""

    id: str
    arrival_s: float
    num_blocks: int


def make_room(running: Sequence[Candidate], num_missing: int) -> list[str]:
    """Whom to preempt, in order, so that at least `num_missing` blocks become free.

    The latest to arrive goes first, nobody goes in vain, and the earliest never goes: it always
    makes progress, so everybody ends some day. If that cannot free enough, whoever may go does.
    """
    victims: list[str] = []
    by_arrival = sorted(running, key=lambda candidate: candidate.arrival_s)
    for candidate in reversed(by_arrival[1:]):
        if num_missing <= 0:
            break
        victims.append(candidate.id)
        num_missing -= candidate.num_blocks
    return victims
