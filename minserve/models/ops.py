"""The small operations between the projections, in plain torch: what the fast ones must equal."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import rms_norm, silu


class TorchOps:
    """One operation after the other; `minserve.models.cpu_ops.CpuOps` fuses them."""

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """Each row of `x`, `[..., n]`, over its root mean square (Zhang 2019), times `weight`."""
        return rms_norm(x, x.shape[-1:], weight, eps)

    def silu_and_multiply(self, gate_up: Tensor) -> Tensor:
        """`[n, 2 * inner]` to `[n, inner]`: silu(gate) * up."""
        gate, up = gate_up.chunk(2, -1)
        return silu(gate) * up

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Rotate queries and keys; write keys and values to their slots.

        qkv: `[n, num_heads + 2 * num_kv_heads, head_dim]`. cos, sin: `[n, head_dim]`, as in
        `minserve.models.rotary`. slots: `[n]` int64. keys, values: a layer's cache, changed.
        Returns the rotated queries, `[n, num_heads, head_dim]`.
        """
        num_kv_heads, head_dim = keys.shape[2], qkv.shape[2]
        queries_keys, v = qkv[:, :-num_kv_heads], qkv[:, -num_kv_heads:]
        # Rotate by halves: roll swaps them, and the table's sines carry the sign.
        swapped = queries_keys.roll(head_dim // 2, -1)
        queries_keys = queries_keys * cos[:, None] + swapped * sin[:, None]
        q, k = queries_keys[:, :-num_kv_heads], queries_keys[:, -num_kv_heads:]
        keys.flatten(0, 1).index_copy_(0, slots, k)
        values.flatten(0, 1).index_copy_(0, slots, v)
        return q


TORCH_OPS = TorchOps()
