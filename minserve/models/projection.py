"""A matrix that activations are multiplied by: the seam for layouts, kernels and adapters.

The decoder only ever calls a projection; how the weight lies in memory, which kernel multiplies,
and what an adapter adds is settled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import linear


class Delta(NamedTuple):
    """What an adapter adds: `x @ down.T @ up.T`; down `[rank, in]`, up `[out, rank]`, scaled."""

    down: Tensor
    up: Tensor


class Segment(NamedTuple):
    """Neighbouring tokens of a batch that run with the same adapter."""

    adapter: str
    tokens: slice


@dataclass(slots=True)
class Projection:
    """`x @ weight.T + bias`, and for the tokens of each segment what its adapter adds.

    weight: `[out, in]`, the parts that read the same input one below the other; bias `[out]` or
    None. parts: the checkpoint's name of each part and how many outputs it has. deltas: what each
    loaded adapter adds here, by the adapter's name; changed only by loading one. multiply: torch's
    `linear`, or the same for a weight laid out otherwise (`minserve.models.cpu`).
    """

    weight: Tensor
    bias: Tensor | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    deltas: dict[str, Delta] = field(default_factory=dict)
    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor] = linear

    def __call__(self, x: Tensor, segments: Sequence[Segment] = ()) -> Tensor:
        """`[num_tokens, in]` to `[num_tokens, out]`, in the dtype of `x`."""
        y = self.multiply(x, self.weight, self.bias)
        for adapter, tokens in segments:
            if delta := self.deltas.get(adapter):
                y[tokens] += linear(linear(x[tokens], delta.down), delta.up)
        return y
