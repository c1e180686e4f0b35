"""Weight-only int8: a byte per weight and a scale per output, and activations as they were.

A weight is rounded to the nearest of 255 steps, of which the largest weight of its output is the
127th (absmax scaling by rows: LLM.int8(), Dettmers et al. 2022). Decoding one token reads every
weight once and does little else, so fewer bytes are fewer microseconds; many tokens at once are
bound by arithmetic, which stays in floats here.

Norms, biases and the embedding table keep their type. Here is the plain way to multiply, for any
device; `minserve.models.cpu_linear` has the fast one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from minserve.models.decoder import Decoder


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[out, in]` to int8 `[out, in]` and float32 scales `[out]`."""
    weight = weight.float()
    scales = weight.abs().amax(1) / 127
    steps = weight / scales.where(scales > 0, 1)[:, None]
    return steps.round().to(torch.int8), scales


def dequantise(values: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `quantise` kept."""
    return (values * scales[:, None]).to(dtype)


class Int8Linear:
    """As torch's `linear`, for the int8 weight that `scales`, `[out]`, belong to."""

    def __init__(self, scales: Tensor) -> None:
        self.scales = scales

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, dequantise(weight, self.scales, x.dtype), bias)


@torch.inference_mode()
def quantise_weights(decoder: Decoder) -> None:
    """Keep the projections of `decoder`, the one onto the vocabulary too, in int8."""
    for projection in (*decoder.projections(), decoder.vocabulary):
        projection.weight, scales = quantise(projection.weight)
        projection.multiply = Int8Linear(scales)
