"""One Llama-family decoder in plain torch, over a flat batch of tokens and a paged KV cache.

Every weight is a tensor, every layer three lines: project, attend, finish. The architecture is
Llama's (Touvron et al. 2023): RMSNorm before each half, rotary positions (RoFormer, Su 2021),
grouped-query attention (Ainslie 2023), a SwiGLU MLP (Shazeer 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from minserve.models.attention import Attention
from minserve.models.attention.reference import PagedAttention
from minserve.models.batch import TokenBatch
from minserve.models.config import ModelConfig
from minserve.models.weights import Weights


@dataclass(slots=True)
class Layer:
    """One decoder layer. Projections that read the same input are kept as one matrix."""

    config: ModelConfig
    attention_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    out: torch.Tensor  # [hidden, num_heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        """Hidden states `[n, hidden]` to rotated queries `[n, num_heads, head_dim]`, rotated keys
        and values `[n, num_kv_heads, head_dim]`.
        """
        c = self.config
        x = rms_norm(x, (c.hidden_size,), self.attention_norm, c.rms_norm_eps)
        qkv = linear(x, self.qkv).view(len(x), -1, c.head_dim)
        heads, kv_heads = c.num_attention_heads, c.num_kv_heads
        queries_keys, values = qkv.split([heads + kv_heads, kv_heads], 1)
        # Rotate by halves: roll swaps them, and the table's sines carry the sign.
        queries_keys = queries_keys * cos + queries_keys.roll(c.head_dim // 2, -1) * sin
        return *queries_keys.split([heads, kv_heads], 1), values

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add what attention found, `[n, num_heads, head_dim]`, and then the MLP, to `x`."""
        c = self.config
        x = x + linear(attended.flatten(1), self.out)
        gate, up = linear(
            rms_norm(x, (c.hidden_size,), self.mlp_norm, c.rms_norm_eps), self.gate_up
        ).chunk(2, -1)
        return x + linear(silu(gate) * up, self.down)


class Decoder:
    """The model. Call it with a batch and the KV cache to get logits.

    `attention` is the backend; `by_tile` is how functions of single tokens are called: all tokens
    at once here, in tiles of one fixed shape in batch-invariant mode (`minserve.models.invariant`).
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
        heads, kv_heads = c.num_attention_heads * c.head_dim, c.num_kv_heads * c.head_dim
        hidden, inner = c.hidden_size, c.intermediate_size

        def layer(i: int) -> Layer:
            def w(name: str, *shape: int) -> torch.Tensor:
                return take(f"model.layers.{i}.{name}.weight", *shape)

            return Layer(
                config=c,
                attention_norm=w("input_layernorm", hidden),
                qkv=torch.cat(
                    [
                        w("self_attn.q_proj", heads, hidden),
                        w("self_attn.k_proj", kv_heads, hidden),
                        w("self_attn.v_proj", kv_heads, hidden),
                    ]
                ),
                out=w("self_attn.o_proj", hidden, heads),
                mlp_norm=w("post_attention_layernorm", hidden),
                gate_up=torch.cat(
                    [w("mlp.gate_proj", inner, hidden), w("mlp.up_proj", inner, hidden)]
                ),
                down=w("mlp.down_proj", hidden, inner),
            )

        self.embeddings = take("model.embed_tokens.weight", c.vocab_size, hidden)
        self.layers = [layer(i) for i in range(c.num_hidden_layers)]
        self.norm = take("model.norm.weight", hidden)
        self.vocabulary = (
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

    def to_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden]` to `[n, vocab]`."""
        c = self.config
        x = rms_norm(x, (c.hidden_size,), self.norm, c.rms_norm_eps)
        return linear(x, self.vocabulary)

    @torch.inference_mode()
    def __call__(
        self, batch: TokenBatch, kv_cache: torch.Tensor, wanted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a batch; write its keys and values to their slots.

        kv_cache: `[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]`, changed.
        wanted: `[m]` int64, which tokens of the batch need logits; the projection onto the
        vocabulary, the widest of all, is done for no other.
        Returns logits `[m, vocab]` float32 and `[num_tokens]` bool, False where a token's hidden
        state is not finite.
        """
        x = embedding(batch.token_ids, self.embeddings)
        cos, sin = self.cos[batch.positions, None], self.sin[batch.positions, None]
        for layer, (keys, values) in zip(self.layers, kv_cache, strict=True):
            q, k, v = self.by_tile(layer.project, x, cos, sin)
            keys.view(-1, *k.shape[1:]).index_copy_(0, batch.slots, k)
            values.view(-1, *v.shape[1:]).index_copy_(0, batch.slots, v)
            attended = self.attention.attend(q, keys, values, batch.layout)
            x = self.by_tile(layer.finish, x, attended)
        logits = self.by_tile(self.to_logits, x[wanted])
        return logits.float(), x.isfinite().all(-1)


def _all_at_once(function: Callable, *rows: torch.Tensor):
    return function(*rows)


def rotary_table(config: ModelConfig, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines, `[length, head_dim]` float32, for positions 0 to `length` - 1."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if scaling := config.rope_scaling:
        # Llama 3.1: slow waves are stretched, fast ones kept, those between blended.
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = keep * frequencies + (1 - keep) * frequencies / scaling.factor
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
