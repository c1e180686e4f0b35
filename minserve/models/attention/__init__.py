"""Attention over a paged KV cache: backends behind one protocol.

`reference.PagedAttention` is the plain, fast one; `invariant.InvariantPagedAttention` gives a token
the same bits whatever else is in the batch. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from minserve.execution.executor import Row


class Attention(Protocol):
    """A backend: once per step it lays out the rows, then attends in every layer."""

    def lay_out(self, rows: Sequence[Row], block_size: int, device: str) -> Any:
        """Whatever `attend` wants to know of the batch's rows, built once per step."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: Any) -> Tensor:
        """Let every token attend to positions 0 up to its own, through its row's block table.

        queries: `[num_tokens, num_heads, head_dim]`, rows in the order laid out. keys, values:
        one layer's cache, `[num_blocks, block_size, num_kv_heads, head_dim]`, which already holds
        the batch's own tokens; every value in it is finite. Head h reads KV head
        `h // (num_heads // num_kv_heads)`; scores are scaled by `head_dim ** -0.5`.
        Returns the shape of queries. Changes nothing.
        """
