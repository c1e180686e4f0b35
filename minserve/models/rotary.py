"""Rotary positions (RoFormer: Su et al. 2021), and how models stretch them to longer contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minserve.models.config import LinearScaling, Llama3Scaling, ModelConfig, YarnScaling


def rotary_table(config: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, `[length, head_dim]` float32, for positions 0 to `length` - 1.

    Signed, so that rotating by halves is `x * cos + x.roll(head_dim // 2) * sin`.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    gain = 1.0
    match config.rope_scaling:
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case Llama3Scaling() as scaling:
            frequencies = _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            frequencies = _yarn(frequencies, scaling, config.rope_theta)
            gain = scaling.attention_factor
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos() * gain, angles.sin() * gain
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Slow waves are stretched, fast ones kept, those between blended by their turns."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling.factor


def _yarn(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """As llama3, but blended by the dimension at which a wave makes so many turns."""
    dim = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretch = (torch.arange(dim // 2) - low) / max(high - low, 0.001)
    stretch = stretch.clamp(0, 1)
    return (1 - stretch) * frequencies + stretch * frequencies / scaling.factor
