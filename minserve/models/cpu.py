"""The fast way on a CPU: compiled attention and small operations, weights packed for oneDNN.

`make_fast` does for speed what `minserve.models.invariant.make_invariant` does for bits: it
exchanges parts of a decoder, and the plain ones stay the oracle.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from minserve.models import jit
from minserve.models.decoder import Decoder
from minserve.models.quantization import Int8Linear

EXACT_ROWS, ROWS_STEP = 64, 32
"""oneDNN makes code for each number of rows it meets, a millisecond each: numbers above EXACT_ROWS
are rounded up to a multiple of ROWS_STEP, so that few are met."""


def is_supported(decoder: Decoder) -> bool:
    """Whether the compiled kernels can be had for this model here."""
    like = decoder.embeddings
    is_known = like.dtype in (torch.float32, torch.bfloat16) and decoder.config.head_dim % 4 == 0
    return jit.is_available() and like.device.type == "cpu" and is_known


@torch.inference_mode()
def make_fast(decoder: Decoder, cached: torch.dtype) -> None:
    """Switch `decoder` to the CPU's kernels, with a cache of `cached`; see `is_supported`.

    The first time on a machine some seconds go into compiling; a line on standard error says so.
    """
    from minserve.models.attention.cpu import CpuPagedAttention
    from minserve.models.cpu_int8 import CpuInt8Linear
    from minserve.models.cpu_ops import CpuOps

    c = decoder.config
    decoder.attention = CpuPagedAttention(c.num_attention_heads, c.num_kv_heads, c.head_dim, cached)
    decoder.use_ops(CpuOps(cached))
    for projection in (*decoder.projections(), decoder.vocabulary):
        if isinstance(projection.multiply, Int8Linear):
            projection.multiply = CpuInt8Linear(projection.multiply.scales)
        elif packed := pack(projection.weight):
            projection.weight, projection.multiply = packed
    if decoder.vocabulary.weight is not decoder.embeddings:
        decoder.embeddings = halved(decoder.embeddings)


def halved(table: Tensor) -> Tensor:
    """The same values in 16 bits where these hold all of them, as most checkpoints' do."""
    for dtype in (torch.float16, torch.bfloat16):
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in table.split(4096)):
            return table.to(dtype)
    return table


def pack(weight: Tensor) -> tuple[Tensor, Callable] | None:
    """`weight`, `[out, in]`, in oneDNN's blocked layout, and what multiplies by it.

    oneDNN uses the CPU's widest vectors whoever made it; MKL, which torch's own `linear` calls,
    uses half of them on AMD's. None where this torch has no such thing.
    """
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        packed_linear(weight.new_zeros(1, weight.shape[1]), packed)
    except (AttributeError, RuntimeError):
        return None
    return packed, packed_linear


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's `linear`, for a weight in oneDNN's layout."""
    num_rows = len(x)
    extra = -num_rows % ROWS_STEP if num_rows > EXACT_ROWS else 0
    if extra:
        x = pad(x, (0, 0, 0, extra))
    y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y[:num_rows] if extra else y
