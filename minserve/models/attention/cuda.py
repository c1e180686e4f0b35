"""Attention on a CUDA device: FlashAttention where torch brings it, else Triton, else gather.

Which of them a card, a head size and a block size allow is a matter of versions, so it is tried:
`best_attention` lets each compute a small case and takes the first that agrees with the plain
reference. Never yet run on a GPU; `tests/models/test_cuda.py` checks all of it where one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minserve.execution.executor import Row
from minserve.models.attention import Attention
from minserve.models.attention.layout import PagedRows
from minserve.models.attention.reference import PagedAttention
from minserve.models.config import ModelConfig
from minserve.request import SamplingParams

TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class VarlenAttention:
    """torch's own FlashAttention over block tables (torch 2.13; Dao 2022, 2023)."""

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> PagedRows:
        """See `Attention.lay_out`."""
        return PagedRows.of(rows, block_size, device, window)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: PagedRows) -> Tensor:
        """See `Attention.attend`."""
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(
            queries.contiguous(),
            keys,
            values,
            layout.query_starts,
            layout.context_starts,
            layout.max_queries,
            layout.max_context,
            # How many keys to the left of its own, and to the right.
            window_size=(-1 if layout.window is None else layout.window - 1, 0),
            enable_gqa=True,
            seqused_k=layout.context_lens,
            block_table=layout.block_tables,
        )
        assert isinstance(out, Tensor)  # a tuple only where more is asked for
        return out


def best_attention(
    config: ModelConfig, block_size: int, dtype: torch.dtype, device: str
) -> Attention:
    """The fastest backend that computes right on `device`."""
    for attention in _candidates(config):
        if agrees(attention, config, block_size, dtype, device):
            return attention
    return PagedAttention()


def _candidates(config: ModelConfig) -> Iterator[Attention]:
    yield VarlenAttention()
    try:
        from minserve.models.attention.triton import TritonAttention
    except ImportError:
        return
    yield TritonAttention(config.num_attention_heads // config.num_kv_heads)


@torch.inference_mode()
def agrees(
    attention: Attention, config: ModelConfig, block_size: int, dtype: torch.dtype, device: str
) -> bool:
    """Whether `attention` runs here and gives what the reference gives: a chunk beside two
    decodes, with each of the model's windows.
    """
    random = torch.Generator().manual_seed(0)
    blocks = tuple(range(-(-80 // block_size)))
    shape = (len(blocks), block_size, config.num_kv_heads, config.head_dim)
    keys, values = torch.randn(2, *shape, generator=random).to(device, dtype)
    rows = [
        Row("", (0,) * num_tokens, start, blocks, False, 0, SamplingParams())
        for start, num_tokens in ((0, 1), (43, 37), (79, 1))
    ]
    heads = config.num_attention_heads
    queries = torch.randn(39, heads, config.head_dim, generator=random).to(device, dtype)

    def attended(backend: Attention, window: int | None) -> Tensor:
        layout = backend.lay_out(rows, block_size, device, window)
        return backend.attend(queries, keys, values, layout).float()

    try:
        errors = [
            (attended(attention, window) - attended(PagedAttention(), window)).abs().max().item()
            for window in set(config.windows)
        ]
    except Exception:  # what a kernel cannot do, it says in an error of any type
        return False
    return all(error < TOLERANCE[dtype] for error in errors)
