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

    def lay_out(
        self, rows: Sequence[Row], block_size: int, device: str, window: int | None = None
    ) -> Any:
        """Whatever `attend` wants to know of the batch's rows, built once per step and window.

        window: how many tokens a query looks at, its own included (sliding window: Beltagy et al.
        2020, Mistral 2023); None for all before it. A model whose layers differ has a layout for
        each window, so `attend` finds the window in its layout. Older keys are masked, and nothing
        more: their blocks stay allocated, and prefix reuse and preemption know of no window.
        """

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, layout: Any) -> Tensor:
        """Let every token attend to its own position and those before, as its window allows.

        queries: `[num_tokens, num_heads, head_dim]`, rows in the order laid out; each reads through
        its row's block table. keys, values: one layer's cache, `[num_blocks, block_size,
        num_kv_heads, head_dim]`, which already holds the batch's own tokens; every value in it is
        finite. Head h reads KV head `h // (num_heads // num_kv_heads)`; scores are scaled by
        `head_dim ** -0.5`.
        Returns the shape of queries. Changes nothing, and keeps nothing it was given.
        """
