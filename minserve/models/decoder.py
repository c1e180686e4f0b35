"""One decoder for Llama, Mistral, Qwen2 and Qwen3: a flat batch of tokens over a paged KV cache.

Every layer is four lines: project, rotate and store, attend, finish. The architecture is Llama's
(Touvron et al. 2023): RMSNorm before each half, rotary positions (RoFormer, Su 2021), grouped-query
attention (Ainslie 2023), a SwiGLU MLP (Shazeer 2020). What the others add is small, and
`ModelConfig` says which of it there is: biases, a norm of queries and keys (Qwen3), a sliding
window (Mistral).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding

from minserve.models.attention import Attention
from minserve.models.attention.reference import PagedAttention
from minserve.models.batch import TokenBatch
from minserve.models.config import ModelConfig
from minserve.models.ops import TORCH_OPS, TorchOps
from minserve.models.projection import Projection, Segment
from minserve.models.rotary import rotary_table
from minserve.models.weights import Weights


@dataclass(slots=True)
class Layer:
    """One decoder layer. Projections that read the same input are kept as one matrix."""

    config: ModelConfig
    window: int | None  # tokens that a query looks at; None: all
    attention_norm: torch.Tensor  # [hidden]
    qkv: Projection  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    qk_norm: torch.Tensor | None  # [num_heads + num_kv_heads, head_dim]
    out: Projection  # num_heads * head_dim -> hidden
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Projection  # hidden -> 2 * intermediate
    down: Projection  # intermediate -> hidden

    ops: TorchOps = TORCH_OPS

    def project(self, x: torch.Tensor, segments: Sequence[Segment] = ()) -> torch.Tensor:
        """Hidden states `[n, hidden]` to queries, keys and values, not rotated yet,
        `[n, num_heads + 2 * num_kv_heads, head_dim]`.
        """
        c = self.config
        x = self.ops.rms_norm(x, self.attention_norm, c.rms_norm_eps)
        qkv = self.qkv(x, segments).view(len(x), -1, c.head_dim)
        if self.qk_norm is not None:
            queries_keys, values = qkv.tensor_split([-c.num_kv_heads], 1)
            normed = self.ops.rms_norm(queries_keys, None, c.rms_norm_eps)
            qkv = torch.cat([normed * self.qk_norm, values], 1)
        return qkv

    def finish(
        self, x: torch.Tensor, attended: torch.Tensor, segments: Sequence[Segment] = ()
    ) -> torch.Tensor:
        """Add what attention found, `[n, num_heads, head_dim]`, and then the MLP, to `x`."""
        x = x + self.out(attended.flatten(1), segments)
        normed = self.ops.rms_norm(x, self.mlp_norm, self.config.rms_norm_eps)
        gate_up = self.gate_up(normed, segments)
        return x + self.down(self.ops.silu_and_multiply(gate_up), segments)


class Decoder:
    """The model. Call it with a batch and the KV cache to get logits.

    `attention` is the backend; `by_tile` is how functions of single tokens are called: all tokens
    at once here, in tiles of one fixed shape in batch-invariant mode (`minserve.models.invariant`).
    `run_layers` does what `each_layer` does, for batches without adapters: on some devices in fewer
    calls (`minserve.models.cpu_layer`), which go well with no tiles.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        max_model_len: int | None = None,
        attention: Attention | None = None,
    ) -> None:
        c, take = config, weights.take
        self.config = config
        self.attention = attention or PagedAttention()
        self.by_tile: Callable = _all_at_once
        self.ops = TORCH_OPS
        self.run_layers: Callable = each_layer
        heads, kv_heads = c.num_attention_heads * c.head_dim, c.num_kv_heads * c.head_dim
        hidden, inner = c.hidden_size, c.intermediate_size

        def layer(i: int) -> Layer:
            name = f"model.layers.{i}"

            def norm(part: str, size: int) -> torch.Tensor:
                return take(f"{name}.{part}.weight", size)

            def projection(parts: dict[str, int], num_in: int, has_bias: bool) -> Projection:
                """One matrix of the parts that read the same input; `parts` are output sizes."""
                parts = {f"{name}.{part}": size for part, size in parts.items()}
                weights = [take(f"{part}.weight", n, num_in) for part, n in parts.items()]
                biases = [take(f"{part}.bias", n) for part, n in parts.items() if has_bias]
                bias = torch.cat(biases) if has_bias else None
                return Projection(torch.cat(weights), bias, parts)

            qkv = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
            qkv["self_attn.v_proj"] = kv_heads
            qk_norm = None
            if c.qk_norm:
                q_norm = norm("self_attn.q_norm", c.head_dim).expand(c.num_attention_heads, -1)
                k_norm = norm("self_attn.k_norm", c.head_dim).expand(c.num_kv_heads, -1)
                qk_norm = torch.cat([q_norm, k_norm])
            return Layer(
                config=c,
                window=c.windows[i],
                attention_norm=norm("input_layernorm", hidden),
                qkv=projection(qkv, hidden, c.qkv_bias),
                qk_norm=qk_norm,
                out=projection({"self_attn.o_proj": hidden}, heads, c.out_bias),
                mlp_norm=norm("post_attention_layernorm", hidden),
                gate_up=projection(
                    {"mlp.gate_proj": inner, "mlp.up_proj": inner}, hidden, c.mlp_bias
                ),
                down=projection({"mlp.down_proj": hidden}, inner, c.mlp_bias),
            )

        # `[vocab, hidden]`, or what gives rows as such a tensor does.
        self.embeddings: Any = take("model.embed_tokens.weight", c.vocab_size, hidden)
        self.layers = [layer(i) for i in range(c.num_hidden_layers)]
        self.norm = take("model.norm.weight", hidden)
        self.vocabulary = Projection(
            self.embeddings
            if c.tie_word_embeddings
            else take("lm_head.weight", c.vocab_size, hidden)
        )
        cos, sin = rotary_table(c, max_model_len or c.max_position_embeddings)
        self.cos, self.sin = cos.to(self.embeddings), sin.to(self.embeddings)

    @classmethod
    def load(
        cls, folder: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu", **options
    ) -> Decoder:
        """Read config and weights of `folder`. Raises as `ModelConfig` and `Weights` do."""
        with Weights(folder, dtype, device) as weights:
            return cls(ModelConfig.from_folder(folder), weights, **options)

    def use_ops(self, ops: TorchOps) -> None:
        """Let `ops` do the small operations, here and in every layer."""
        self.ops = ops
        for layer in self.layers:
            layer.ops = ops

    def projections(self) -> Iterator[Projection]:
        """The projections of every layer: what adapters may change."""
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)

    def to_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden]` to `[n, vocab]`."""
        return self.vocabulary(self.ops.rms_norm(x, self.norm, self.config.rms_norm_eps))

    @torch.inference_mode()
    def __call__(
        self, batch: TokenBatch, kv_cache: torch.Tensor, wanted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a batch; write its keys and values to their slots.

        kv_cache: `[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]`, changed; an
        int8 cache has its scales in two more bytes per head.
        wanted: `[m]` int64, which tokens of the batch need logits; the projection onto the
        vocabulary, the widest of all, is done for no other.
        Returns logits `[m, vocab]` float32 and `[num_tokens]` bool, False where a token's hidden
        state is not finite.
        """
        table = self.embeddings
        found = (
            embedding(batch.token_ids, table)
            if isinstance(table, torch.Tensor)
            else table[batch.token_ids]
        )
        x = found.to(self.norm.dtype)
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        run = each_layer if batch.segments else self.run_layers
        x = run(self, x, cos, sin, batch, kv_cache)
        logits = self.by_tile(self.to_logits, x[wanted])
        return logits.float(), x.isfinite().all(-1)


def each_layer(
    decoder: Decoder,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    batch: TokenBatch,
    kv_cache: torch.Tensor,
) -> torch.Tensor:
    """Hidden states `[n, hidden]` before the first layer of `decoder` to those behind the last."""
    for layer, (keys, values) in zip(decoder.layers, kv_cache, strict=True):
        qkv = decoder.by_tile(partial(layer.project, segments=batch.segments), x)
        q = decoder.ops.rotate_and_store(qkv, cos, sin, batch.slots, keys, values)
        attended = decoder.attention.attend(q, keys, values, batch.layouts[layer.window])
        x = decoder.by_tile(partial(layer.finish, segments=batch.segments), x, attended)
    return x


def _all_at_once(function: Callable, *rows: torch.Tensor):
    return function(*rows)
