"""Attention backends against dense attention, on any device. Run as a program, it checks the
Triton kernel through Triton's interpreter: TRITON_INTERPRET=1 python tests/paged_cases.py
"""

from __future__ import annotations

import itertools

import torch
from tiny_llama import row
from torch.nn.functional import scaled_dot_product_attention

SHAPES = ((4, 2, 16, 64), (3, 1, 4, 24), (9, 3, 5, 16), (2, 2, 256, 32))
WINDOWS = (None, 1, 7, 64, 500)
CONTEXTS = ((1, 1), (5, 5), (130, 1), (129, 40), (64, 64), (200, 3))  # tokens, of which new
DECODES = ((1, 1), (77, 1), (64, 1), (200, 1))


def largest_error(attention, shape, window, contexts, dtype=torch.float32, device="cpu") -> float:
    """How far paged attention is from dense attention, on random numbers."""
    heads, kv_heads, block_size, head_dim = shape
    random = torch.Generator().manual_seed(0)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random).to(device, dtype)

    num_blocks = sum(-(-tokens // block_size) for tokens, _ in contexts)
    free = torch.randperm(num_blocks, generator=random).tolist()
    keys, values = torch.full((2, num_blocks, block_size, kv_heads, head_dim), 50.0).to(
        device, dtype
    )
    rows, queries, expected = [], [], []
    for tokens, new in contexts:
        table = [free.pop() for _ in range(-(-tokens // block_size))]
        q, k, v = numbers(new, heads, head_dim), *numbers(2, tokens, kv_heads, head_dim)
        for p in range(tokens):
            keys[table[p // block_size], p % block_size] = k[p]
            values[table[p // block_size], p % block_size] = v[p]
        distance = torch.arange(tokens - new, tokens)[:, None] - torch.arange(tokens)
        looks = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        dense = scaled_dot_product_attention(
            *(x.transpose(0, 1).float() for x in (q, k, v)),
            attn_mask=looks.to(device),
            enable_gqa=True,
        )
        rows.append(row((0,) * new, table, tokens - new))
        queries.append(q)
        expected.append(dense.transpose(0, 1))
    before = keys.clone(), values.clone()
    layout = attention.lay_out(rows, block_size, device, window)
    found = attention.attend(torch.cat(queries), keys, values, layout)
    assert found.dtype == dtype
    assert torch.equal(before[0], keys) and torch.equal(before[1], values)
    return (found.float() - torch.cat(expected)).abs().max().item()


def cases():
    return itertools.product(SHAPES, WINDOWS, (CONTEXTS, DECODES))


if __name__ == "__main__":
    from minserve.models.attention.triton import TritonAttention

    worst = max(
        largest_error(TritonAttention(shape[0] // shape[1]), shape, window, contexts)
        for shape, window, contexts in cases()
    )
    print(f"{len(list(cases()))} cases, largest error {worst:.1e}")
    assert worst < 1e-5, worst
