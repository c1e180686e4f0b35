"""The compiled kernels agree with the plain-torch reference, whatever the rows look like."""

from __future__ import annotations

import random

import pytest
import torch
from attention_cases import HEADS, SHAPES, attention, batch, tensors

from minserve.models import jit
from minserve.models.attention.reference import PagedAttention

pytestmark = pytest.mark.skipif(not jit.is_available(), reason="needs numba")


@pytest.fixture(scope="module", params=HEADS.values(), ids=HEADS.keys())
def heads(request):
    return request.param


@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_it_agrees_with_the_reference(heads, shapes, block_size, window):
    rows, num_blocks = batch(random.Random(block_size), shapes, block_size)
    num_tokens = sum(len(row.token_ids) for row in rows)
    q, k, v = tensors(heads, num_tokens, num_blocks, block_size, seed=1)
    results = []
    for backend in (PagedAttention(), attention(heads)):
        layout = backend.lay_out(rows, block_size, "cpu", window)
        results.append(backend.attend(q, k, v, layout))
    assert (results[0] - results[1]).abs().max() < 1e-5


def test_large_scores_overflow_nowhere():
    heads = HEADS["GQA of 2"]
    rows, num_blocks = batch(random.Random(0), [(400, 1), (0, 90)], 16)
    q, k, v = tensors(heads, 91, num_blocks, 16, seed=2)
    reference, ours = PagedAttention(), attention(heads)
    expected = reference.attend(q * 300, k, v, reference.lay_out(rows, 16, "cpu"))
    got = ours.attend(q * 300, k, v, ours.lay_out(rows, 16, "cpu"))
    assert got.isfinite().all() and (got - expected).abs().max() < 1e-3


def test_bfloat16_is_read_as_it_is():
    heads = HEADS["GQA of 2"]
    rows, num_blocks = batch(random.Random(0), [(400, 1), (0, 90)], 16)
    q, k, v = (t.bfloat16() for t in tensors(heads, 91, num_blocks, 16, seed=3))
    reference, ours = PagedAttention(), attention(heads, torch.bfloat16)
    layout = reference.lay_out(rows, 16, "cpu")
    expected = reference.attend(q.float(), k.float(), v.float(), layout)
    got = ours.attend(q, k, v, ours.lay_out(rows, 16, "cpu"))
    assert got.dtype == torch.bfloat16 and (got - expected).abs().max() < 0.02


@pytest.mark.parametrize("num_threads", [1, 2])
def test_company_and_threads_change_no_bit(num_threads):
    heads = HEADS["GQA of 2"]
    rng = random.Random(4)
    rows, num_blocks = batch(rng, [(600, 1), (0, 50), (80, 1), (300, 30)], 16)
    q, k, v = tensors(heads, 82, num_blocks, 16, seed=5)
    ours = attention(heads)
    together = ours.attend(q, k, v, ours.lay_out(rows, 16, "cpu")).split([1, 50, 1, 30])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for row, own, expected in zip(rows, q.split([1, 50, 1, 30]), together, strict=True):
            alone = ours.attend(own.contiguous(), k, v, ours.lay_out([row], 16, "cpu"))
            assert torch.equal(alone, expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_compiled_kernels_are_kept_and_found_again():
    from minserve.models.attention.cpu_kernels import kernels

    for _ in range(2):
        found = kernels.__wrapped__(8, 1)
    assert all(sum(kernel.stats.cache_hits.values()) == 1 for kernel in found)
