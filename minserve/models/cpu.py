"""The fast way on a CPU: compiled attention, products and small operations.

`make_fast` does for speed what `minserve.models.invariant.make_invariant` does for bits: it
exchanges parts of a decoder, and the plain ones stay the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from minserve.execution.huge_pages import HugePages
from minserve.execution.precision import multiplies_bfloat16
from minserve.models import jit
from minserve.models.decoder import Decoder
from minserve.models.projection import Projection

HALVES = (torch.float16, torch.bfloat16)
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
    from minserve.models.cpu_layer import FusedLayers, can_fuse
    from minserve.models.cpu_linear import PanelLinear, PanelTable
    from minserve.models.cpu_ops import CpuOps

    c = decoder.config
    decoder.attention = CpuPagedAttention(c.num_attention_heads, c.num_kv_heads, c.head_dim, cached)
    decoder.use_ops(CpuOps(cached))
    memory, is_tied = HugePages(), decoder.vocabulary.weight is decoder.embeddings
    for projection in (*decoder.projections(), decoder.vocabulary):
        lay_out(projection, memory)
    if can_fuse(decoder):
        decoder.run_layers = FusedLayers(decoder, cached)
    if is_tied and isinstance(decoder.vocabulary.multiply, PanelLinear):
        decoder.embeddings = PanelTable(decoder.vocabulary.weight, c.vocab_size)
    else:
        decoder.embeddings = halved(decoder.embeddings)


def lay_out(projection: Projection, memory: HugePages | None = None) -> None:
    """Keep its weight as it is fastest to multiply by, in `memory` where that is ours to choose."""
    from minserve.models.cpu_linear import PanelLinear, to_panels
    from minserve.models.vectors import WIDENS_FLOAT16

    weight, scales = projection.weight, getattr(projection.multiply, "scales", None)
    is_in_hardware = weight.dtype == torch.bfloat16 and multiplies_bfloat16()
    if is_in_hardware and (packed := pack(weight)) is not None:
        projection.weight, projection.multiply = packed, packed_linear
        return
    if weight.dtype == torch.float32:
        weight = halved(weight, HALVES if WIDENS_FLOAT16 else (torch.bfloat16,))
    projection.multiply = PanelLinear(len(weight), weight.dtype, scales)
    projection.weight = to_panels(weight, memory)


def halved(weight: Tensor, into: Sequence[torch.dtype] = HALVES) -> Tensor:
    """The same values in 16 bits where these hold all of them, as most checkpoints' do."""
    for dtype in into:
        if all(torch.equal(part.to(dtype).to(part.dtype), part) for part in weight.split(4096)):
            return weight.to(dtype)
    return weight


def pack(weight: Tensor) -> Tensor | None:
    """A bfloat16 weight, `[out, in]`, in oneDNN's blocked layout; None where torch has no such."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        packed_linear(weight.new_zeros(1, weight.shape[1]), packed)
    except (AttributeError, RuntimeError):
        return None
    return packed


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's `linear`, for a weight that `pack` laid out."""
    num_rows = len(x)
    extra = -num_rows % ROWS_STEP if num_rows > EXACT_ROWS else 0
    if extra:
        x = pad(x, (0, 0, 0, extra))
    y = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y[:num_rows] if extra else y
