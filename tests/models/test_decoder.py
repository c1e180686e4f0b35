from __future__ import annotations

import os
import random

import pytest
import torch
from tiny_llama import row, write_checkpoint

from minserve.errors import ModelNotFound
from minserve.models.attention.invariant import InvariantPagedAttention
from minserve.models.attention.reference import PagedAttention
from minserve.models.batch import TokenBatch
from minserve.models.decoder import Decoder
from minserve.models.registry import resolve

TOLERANCE = 1e-3
BLOCK_SIZE = 16


def rope(kind: str, **settings) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
CHECKPOINTS = {
    "grouped heads": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "one KV head, odd head size": {"num_key_value_heads": 1, "head_dim": 24},
    "Llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rotary": rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "linear rotary": rope("linear", factor=4.0),
    "yarn": rope("yarn", **YARN),
    "yarn with every setting": rope(
        "yarn", beta_fast=16.0, beta_slow=2.0, attention_factor=1.3, truncate=False, **YARN
    ),
    "yarn of DeepSeek": rope("yarn", mscale=0.7, mscale_all_dim=1.4, **YARN),
    "Mistral, window of 20": {"family": "Mistral", "sliding_window": 20},
    "Mistral, window of 1": {"family": "Mistral", "sliding_window": 1},
    "Mistral without a window": {"family": "Mistral", "sliding_window": None},
    "Qwen2": {"family": "Qwen2"},
    "Qwen2 tied, windows above the first layer": {
        "family": "Qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 33,
        "max_window_layers": 1,
    },
    "Qwen3, a head size of its own": {"family": "Qwen3", "head_dim": 32},
    "Qwen3 tied, one KV head, biases": {
        "family": "Qwen3",
        "head_dim": 16,
        "tie_word_embeddings": True,
        "num_key_value_heads": 1,
        "attention_bias": True,
    },
    "Qwen3, layers by name": {
        "family": "Qwen3",
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def our_logits(folder, tokens, attention=None) -> torch.Tensor:
    """All logits of one sequence, in chunks of uneven size and blocks in disorder."""
    decoder = Decoder.load(folder, attention=attention)
    c = decoder.config
    num_blocks = len(tokens) // BLOCK_SIZE + 1
    blocks = random.Random(0).sample(range(1, num_blocks + 1), num_blocks)
    kv = torch.zeros(c.num_hidden_layers, 2, num_blocks + 1, BLOCK_SIZE, c.num_kv_heads, c.head_dim)
    logits, start = [], 0
    for size in (len(tokens) // 2, 7, 1, len(tokens)):
        chunk = tokens[start : start + size]
        batch = TokenBatch.of(
            [row(chunk, blocks, start)], BLOCK_SIZE, decoder.attention, windows=c.windows
        )
        computed, finite = decoder(batch, kv, torch.arange(len(chunk)))
        assert finite.all()
        logits.append(computed)
        start += len(chunk)
    return torch.cat(logits)


def their_logits(folder, tokens) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def difference(folder, tokens, attention=None) -> float:
    ours = our_logits(folder, tokens, attention)
    return (ours - their_logits(folder, tokens)).abs().max().item()


@pytest.mark.parametrize("overrides", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_logits_equal_transformers_on_a_random_checkpoint(tmp_path, overrides):
    folder = write_checkpoint(tmp_path, **overrides)
    tokens = torch.randint(0, 300, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    theirs = their_logits(folder, tokens)
    for attention in (PagedAttention(), InvariantPagedAttention(4)):
        assert (our_logits(folder, tokens, attention) - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("window", [1, 3, 4, 9, 50])
@pytest.mark.parametrize("attention", [PagedAttention(), InvariantPagedAttention(2)])
def test_a_window_masks_old_keys_and_nothing_else(attention, window):
    """Attention through blocks is dense attention over the last `window` tokens, chunked or not."""
    torch.manual_seed(0)
    context, chunks = 23, (10, 1, 7, 1, 4)
    queries, keys, values = torch.randn(3, context, 2, 8)
    positions = torch.arange(context)
    distance = positions[:, None] - positions
    sees = (distance >= 0) & (distance < window)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (queries, keys, values)), attn_mask=sees
    ).transpose(0, 1)
    table = (5, 1, 7, 3, 0, 2)
    cache = torch.full((2, 8, 4, 2, 8), 1e4)
    for p in range(context):
        cache[0, table[p // 4], p % 4], cache[1, table[p // 4], p % 4] = keys[p], values[p]
    rows, start = [], 0
    for size in chunks:
        rows.append(row((0,) * size, table, start))
        start += size
    attended = attention.attend(queries, *cache, attention.lay_out(rows, 4, "cpu", window))
    assert (attended - dense).abs().max() < 1e-5


def test_logits_equal_transformers_on_nano():
    try:
        folder = resolve("nano")
    except ModelNotFound:
        pytest.skip("data/models/northstar-nano is not trained yet")
    tokens = torch.randint(5, 1000, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    assert difference(folder, tokens) < TOLERANCE


@pytest.mark.slow
def test_logits_and_greedy_tokens_equal_transformers_on_smollm2():
    try:
        folder = resolve("smollm2")
    except ModelNotFound as error:
        if os.environ.get("MINSERVE_CI"):
            raise
        pytest.skip(str(error))
    tokens = torch.randint(5, 49000, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    ours, theirs = our_logits(folder, tokens), their_logits(folder, tokens)
    assert (ours - theirs).abs().max() < TOLERANCE
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_stays_near_float32(tiny_folder, dtype):
    tokens = list(range(1, 60))
    decoder = Decoder.load(tiny_folder, dtype)
    c = decoder.config
    kv = torch.zeros(c.num_hidden_layers, 2, 4, BLOCK_SIZE, c.num_kv_heads, c.head_dim, dtype=dtype)
    batch = TokenBatch.of([row(tokens, range(4))], BLOCK_SIZE, decoder.attention)
    logits, finite = decoder(batch, kv, torch.arange(len(tokens)))
    assert finite.all() and logits.dtype == torch.float32
    assert (logits - our_logits(tiny_folder, tokens)).abs().mean() < 0.05


def test_attention_sees_its_own_blocks_only():
    """Changing any block outside a row's table, or any slot past its end, changes nothing."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 12, 4, 2, 8)
    rows = [row((0,), (3, 7), 5), row((0, 0, 0), (1, 9), 4), row((0,), (2,), 0)]
    queries = torch.randn(5, 4, 8)
    for attention in (PagedAttention(), InvariantPagedAttention(2)):
        layout = attention.lay_out(rows, 4, "cpu")
        before = attention.attend(queries, keys, values, layout)
        mine = {(3, i) for i in range(4)} | {(7, 0), (7, 1), (2, 0)}
        mine |= {(1, i) for i in range(4)} | {(9, i) for i in range(3)}
        k, v = keys.clone(), values.clone()
        for block in range(12):
            for slot in range(4):
                if (block, slot) not in mine:
                    k[block, slot], v[block, slot] = 1e3, -1e3
        assert torch.equal(attention.attend(queries, k, v, layout), before)
