"""Rows on blocks dealt at random, for tests of attention kernels."""

from __future__ import annotations

import random

import torch

from minserve.execution.executor import Row
from minserve.request import SamplingParams

# (query heads, KV heads, head size): grouped, multi-query and plain multi-head attention.
HEADS = {"GQA of 2": (4, 2, 64), "GQA of 3": (9, 3, 48), "MQA": (4, 1, 128), "MHA": (3, 3, 32)}


def attention(heads, cached=torch.float32):
    from minserve.models.attention.cpu import CpuPagedAttention

    return CpuPagedAttention(*heads, cached)


def batch(rng: random.Random, shapes: list[tuple[int, int]], block_size: int):
    """Rows of (start, number of queries) on blocks dealt at random; returns rows and the pool."""
    counts = [-(-(start + size) // block_size) for start, size in shapes]
    num_blocks = sum(counts) + 3
    deck = rng.sample(range(num_blocks), sum(counts))
    rows = []
    for (start, size), count in zip(shapes, counts, strict=True):
        table, deck = tuple(deck[:count]), deck[count:]
        rows.append(Row("r", (1,) * size, start, table, True, 0, SamplingParams()))
    return rows, num_blocks


def tensors(heads, num_tokens: int, num_blocks: int, block_size: int, seed: int):
    num_heads, num_kv_heads, head_dim = heads
    random_ = torch.Generator().manual_seed(seed)
    cache = (2, num_blocks, block_size, num_kv_heads, head_dim)
    keys, values = torch.randn(cache, generator=random_)
    return torch.randn(num_tokens, num_heads, head_dim, generator=random_), keys, values


SHAPES = {
    "decodes": [(0, 1), (15, 1), (16, 1), (255, 1), (256, 1), (700, 1)],
    "chunks": [(0, 5), (0, 33), (30, 100), (200, 64), (63, 2)],
    "both": [(0, 40), (90, 1), (300, 7), (512, 1), (5, 1)],
}
