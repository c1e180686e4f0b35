"""northstar-nano's architecture and its first weights; names as in Hugging Face's Llama."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

PAD, END = 0, 4
CONFIG = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=1536,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    hidden_act="silu",
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    attention_bias=False,
    mlp_bias=False,
    attention_dropout=0.0,
    initializer_range=0.02,
    tie_word_embeddings=True,
    use_cache=True,
    pad_token_id=PAD,
    bos_token_id=None,
    eos_token_id=END,
    torch_dtype="float16",
)


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, CONFIG["rms_norm_eps"])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, dim = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.heads, self.kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, n, -1).transpose(1, 2)
            for p, n in (
                (self.q_proj, self.heads),
                (self.k_proj, self.kv_heads),
                (self.v_proj, self.kv_heads),
            )
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        # NOTE: on a CPU, plain bmm and softmax are several times faster here than the fused
        # F.scaled_dot_product_attention, whose backward is slow for short sequences.
        q, k, v = (t.reshape(-1, length, t.shape[-1]) for t in (q, k, v))
        mask = torch.full((length, length), -1e4, dtype=q.dtype).triu(1).expand(q.shape[0], -1, -1)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        y = torch.bmm(scores.softmax(-1, dtype=q.dtype), v).view(batch, self.heads, length, -1)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.post_attention_layernorm = RMSNorm(CONFIG["hidden_size"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Nano(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Block() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = RMSNorm(CONFIG["hidden_size"])
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 0.02
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    scale /= math.sqrt(2 * CONFIG["num_hidden_layers"])
                nn.init.normal_(weight, std=scale)

        with torch.no_grad():
            start_as_reader(self)

    def forward(self, ids, wanted):
        """ids [batch, length]; logits [wanted.sum(), vocab] at the wanted positions."""
        half = CONFIG["head_dim"] // 2
        frequencies = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = torch.arange(ids.shape[1])[:, None] * frequencies
        cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x[wanted]), self.embed_tokens.weight)


SHIFTS, MATCH_LAYER, MATCH_LOGIT, COPY, SHARP = 8, 3, 2.5, 3.0, 5.0


def start_as_reader(model: Nano) -> None:
    """Set initial weights so that look-up in the prompt (an induction head; Elhage et al., 2021,
    Olsson et al., 2022) works roughly from the first step. Training then has to refine it, not to
    find it, which took too long on two shared cores. Everything stays trainable.

    Dimensions 0-127 of the residual hold the token, the last one a constant, 128-254 eight blocks:
    layers 0 and 1 copy a 15-dimensional sketch of the token d places back into block d (a head
    can look d places back because the constant and RoPE give it a bias to that distance). In
    layer 3 a position looks for places whose eight tokens before it equal its own last eight, and
    copies the token that stands there.
    """
    hidden, dim = CONFIG["hidden_size"], CONFIG["head_dim"]
    half, token, size, std, constant = dim // 2, hidden // 2, 15, 0.04, 0.3
    sketch = torch.randn(size, token) / token**0.5  # sketch of unit tokens: unit entries
    frequencies = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    embedding = model.embed_tokens.weight
    embedding.zero_()
    embedding[:, :token].normal_(std=std)
    embedding[:, -1] = constant
    square = token * std**2 + constant**2  # of the residual, summed over dimensions
    for layer in model.layers:  # the rest begins small
        for weight in (layer.mlp.down_proj.weight, layer.self_attn.o_proj.weight):
            weight *= 0.1
    block = lambda d: slice(token + (d - 1) * size, token + d * size)  # noqa: E731

    for layer in (0, 1):
        rms = (square / hidden) ** 0.5
        attention = model.layers[layer].self_attn
        kv_heads, group = attention.kv_heads, attention.heads // attention.kv_heads
        fast = (torch.arange(half) < 13).float() * (SHARP * dim**0.5) ** 0.5 * rms / constant
        for g in range(kv_heads):
            attention.k_proj.weight[g * dim : (g + 1) * dim] *= 0.1
            attention.k_proj.weight[g * dim : g * dim + half, -1] = fast
            attention.v_proj.weight[g * dim : (g + 1) * dim] *= 0.1
            attention.v_proj.weight[g * dim : g * dim + size, :token] = sketch * rms / std
        for h in range(attention.heads):
            d = layer * attention.heads + h + 1
            attention.q_proj.weight[h * dim : (h + 1) * dim] *= 0.1
            attention.q_proj.weight[h * dim : h * dim + half, -1] = (d * frequencies).cos() * fast
            attention.q_proj.weight[h * dim + half : (h + 1) * dim, -1] = (
                -(d * frequencies).sin() * fast
            )
            attention.o_proj.weight[block(d), h * dim : h * dim + size] = torch.eye(size) * std
        square += attention.heads * size * std**2

    attention = model.layers[MATCH_LAYER].self_attn
    rms = (square / hidden) ** 0.5
    slow = torch.cat((torch.arange(half // 2, half), torch.arange(half // 2, half) + half))
    for g in range(kv_heads):
        mix = [torch.randn(len(slow), size) / len(slow) ** 0.5 for _ in range(SHIFTS)]
        scale = (dim**0.5 * MATCH_LOGIT / size) ** 0.5 * rms / std
        keys = torch.zeros(len(slow), hidden)
        queries = torch.zeros(len(slow), hidden)
        for d in range(1, SHIFTS + 1):
            keys[:, block(d)] = mix[d - 1] * scale
            if d == 1:
                queries[:, :token] = mix[0] @ sketch * scale
            else:
                queries[:, block(d - 1)] = mix[d - 1] * scale
        attention.k_proj.weight[g * dim + slow] += keys
        half_of_token = slice(g * dim, (g + 1) * dim)
        attention.v_proj.weight[g * dim : (g + 1) * dim] *= 0.1
        attention.v_proj.weight[g * dim : (g + 1) * dim, half_of_token] += (
            torch.eye(dim) * rms / std
        )
        for h in range(g * group, (g + 1) * group):
            attention.q_proj.weight[h * dim + slow] += queries
            attention.o_proj.weight[half_of_token, h * dim : (h + 1) * dim] += (
                torch.eye(dim) * COPY * std
            )


def rotate(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)
