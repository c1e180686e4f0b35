"""An int8 KV cache: half the bytes, kernels that read it as it lies, and what it costs."""

from __future__ import annotations

import random

import pytest
import torch
from attention_cases import HEADS, SHAPES, attention, batch, tensors
from tiny_llama import generate, row, step

from minserve.errors import ConfigError
from minserve.execution.torch_executor import TorchExecutor
from minserve.kv.estimate import KVShape
from minserve.models import jit
from minserve.models.attention.reference import PagedAttention
from minserve.models.kv_cache import dequantise, quantise

pytestmark = pytest.mark.skipif(not jit.is_available(), reason="needs numba")

PROMPT = [(7 * i + 3) % 290 for i in range(90)]


def test_a_value_comes_back_within_half_a_step_of_its_heads_largest():
    x = torch.randn(500, 3, 64, generator=torch.Generator().manual_seed(0))
    x[0], x[1, 0, 3] = 0, 1000.0  # nothing at all, and an outlier
    back = dequantise(quantise(x))
    step_size = x.abs().amax(-1, keepdim=True) * 1.013 / 127  # bfloat16 rounds by up to 1/256
    assert ((back - x).abs() <= step_size / 2 + 1e-7).all() and (back[0] == 0).all()


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_kernels_read_int8_as_the_reference_reads_what_it_stands_for(shapes):
    heads = HEADS["GQA of 2"]
    rows, num_blocks = batch(random.Random(1), shapes, 16)
    q, k, v = tensors(heads, sum(len(r.token_ids) for r in rows), num_blocks, 16, seed=1)
    k, v = quantise(k), quantise(v)
    reference, ours = PagedAttention(), attention(heads, torch.int8)
    layout = reference.lay_out(rows, 16, "cpu")
    expected = reference.attend(q, dequantise(k), dequantise(v), layout)
    got = ours.attend(q, k, v, ours.lay_out(rows, 16, "cpu"))
    assert (got - expected).abs().max() < 1e-5


@pytest.mark.parametrize("cached", [torch.float32, torch.bfloat16, torch.int8])
def test_fused_operations_rotate_and_store_as_plain_torch_does(cached):
    from minserve.models.cpu_ops import CpuOps
    from minserve.models.ops import TorchOps

    random_ = torch.Generator().manual_seed(0)
    qkv = torch.randn(7, 8, 64, generator=random_)
    angles = torch.randn(7, 32, generator=random_)
    cos, sin = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    slots = torch.tensor([5, 9, 0, 31, 16, 17, 2])
    plain = torch.zeros(2, 2, 16, 2, 64)
    width = 66 if cached == torch.int8 else 64
    stored = torch.zeros(2, 2, 16, 2, width, dtype=cached)
    expected = TorchOps().rotate_and_store(qkv, cos, sin, slots, *plain)
    got = CpuOps(cached).rotate_and_store(qkv, cos, sin, slots, *stored)
    assert (got - expected).abs().max() < 1e-5
    if cached == torch.int8:
        wanted = quantise(plain)
        # The last bit may differ where a rotated value lies between two.
        assert (stored.int() - wanted.int()).abs().max() <= 1
        assert (stored != wanted).float().mean() < 0.01
    else:
        assert (stored.float() - plain.to(cached).float()).abs().max() < 1e-2
        assert (stored.float() - plain).abs().max() < (1e-5 if cached == torch.float32 else 0.02)


@pytest.fixture(scope="module")
def executor(tiny_folder):
    return TorchExecutor(tiny_folder, num_blocks=64, kv_cache_dtype="int8")


def test_the_estimate_knows_the_bytes_and_they_are_little_more_than_half():
    nano = TorchExecutor("nano", num_blocks=8, kv_cache_dtype="int8")
    shape = KVShape(nano.config.num_hidden_layers, nano.config.num_kv_heads, nano.config.head_dim)
    assert nano.kv_bytes_allocated == 8 * 16 * shape.bytes_per_token("int8")
    assert nano.kv_bytes_allocated <= 0.54 * 8 * 16 * shape.bytes_per_token("float16")


def test_company_and_chunks_change_no_token(executor):
    expected = generate(executor, PROMPT, range(8), 20)
    step(executor, row(PROMPT[:40], range(8, 16), sample=False), row(PROMPT, range(16, 24)))
    rest = row(PROMPT[40:], range(8, 16), 40)
    assert step(executor, row([5] * 30, range(24, 32)), rest).token_ids[1] == (expected[0],)
    tokens, others = expected[:1], [5]
    for i in range(1, 20):
        ours = row(tokens[-1:], range(8, 16), 89 + i, position=i)
        other = row(others[-1:], range(24, 32), 29 + i, position=i)
        result = step(executor, ours, other).token_ids
        tokens.append(result[0][0])
        others.append(result[1][0])
    assert tokens == expected


def test_settings_that_cannot_be_are_refused(tiny_folder):
    for wrong in (
        {"kv_cache_dtype": "int4"},
        {"kv_cache_dtype": "int8", "batch_invariant": True},
        {"kv_cache_dtype": "int8", "fast": False},
    ):
        with pytest.raises(ConfigError) as error:
            TorchExecutor(tiny_folder, num_blocks=4, **wrong)
        assert error.value.hint
