"""A matrix that activations are multiplied by: the seam for layouts, kernels and adapters.

The decoder only ever calls a projection; how the weight lies in memory, which kernel multiplies,
and what an adapter adds is settled here.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import linear


@dataclass(slots=True)
class Projection:
    """`x @ weight.T + bias`; weight is `[out, in]`, bias `[out]` or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`[num_tokens, in]` to `[num_tokens, out]`, in the dtype of `x`."""
        return linear(x, self.weight, self.bias)
