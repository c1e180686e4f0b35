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
CHECKPOINTS = {
    "grouped heads": {},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "one KV head, odd head size": {"num_key_value_heads": 1, "head_dim": 24},
    "llama3 rotary": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
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
        batch = TokenBatch.of([row(chunk, blocks, start)], BLOCK_SIZE, decoder.attention)
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


@pytest.mark.parametrize("attention", [PagedAttention(), InvariantPagedAttention(4)])
@pytest.mark.parametrize("overrides", CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_logits_equal_transformers_on_a_random_checkpoint(tmp_path, overrides, attention):
    folder = write_checkpoint(tmp_path, **overrides)
    tokens = torch.randint(0, 300, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    assert difference(folder, tokens, attention) < TOLERANCE


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
