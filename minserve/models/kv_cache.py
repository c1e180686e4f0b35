"""The tensor that holds keys and values, whole or in int8.

In int8 a token's head takes `head_dim` bytes and two more, the bfloat16 scale that they are to be
multiplied by: 66 bytes where 16-bit values take 128. One scale per token and head is enough because
a token is written once and alone; a scale for a whole block would change with every token.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minserve.errors import ConfigError
from minserve.execution import huge_pages
from minserve.models.config import ModelConfig

SCALE_BYTES = 2


def allocate(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: str = "cpu"
) -> Tensor:
    """`[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]`, zeros; int8 has
    SCALE_BYTES more in the last dimension. Raises `ConfigError` where there is no such memory.
    """
    width = config.head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)
    shape = (config.num_hidden_layers, 2, num_blocks, block_size, config.num_kv_heads, width)
    # Zeros, not empty: attention multiplies masked values by 0, and 0 * NaN is NaN. On a CPU they
    # are written, so that all of the memory is had now or never.
    try:
        if torch.device(device).type == "cpu":
            return huge_pages.zeros(shape, dtype).zero_()
        return torch.zeros(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError):  # RuntimeError also when the size overflows
        gb = math.prod(shape) * dtype.itemsize / 1e9
        raise ConfigError(
            f"a KV cache of {num_blocks:,} blocks takes {gb:,.1f} GB, more than can be had here",
            "use fewer blocks, or less memory for them",
        ) from None


def quantise(x: Tensor) -> Tensor:
    """`[..., head_dim]` float32 to `[..., head_dim + 2]` int8: what the kernels write."""
    # A little more than max / 127, so that rounding the scale to bfloat16 lets no value exceed 127.
    scale = (x.abs().amax(-1, keepdim=True) * (1.00392157 / 127)).bfloat16()
    values = torch.where(scale > 0, x * (1 / scale.float()), 0).round().to(torch.int8)
    return torch.cat([values, scale.view(torch.int8)], -1)


def dequantise(cached: Tensor) -> Tensor:
    """What `quantise` kept, as float32."""
    values, scale = cached[..., :-SCALE_BYTES], cached[..., -SCALE_BYTES:]
    return values.float() * scale.contiguous().view(torch.bfloat16).float()
