"""The fast decoder is the plain one, faster."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import generate, row, write_checkpoint

from minserve.execution.torch_executor import TorchExecutor
from minserve.models import cpu
from minserve.models.batch import TokenBatch
from minserve.models.decoder import Decoder
from minserve.models.kv_cache import allocate

PROMPTS = ([(7 * i + 3) % 290 for i in range(90)], [(5 * i + 1) % 290 for i in range(21)])
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 24},
}


@pytest.mark.parametrize("num_rows", [1, 2, 64, 65, 200])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_weights_multiply_as_linear_does(num_rows, has_bias):
    random_ = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 48, generator=random_) for n in (80, num_rows))
    bias = torch.randn(80, generator=random_) if has_bias else None
    packed = cpu.pack(weight)
    if packed is None:
        pytest.skip("this torch has no oneDNN")
    expected = torch.nn.functional.linear(x, weight, bias)
    got = packed[1](x, packed[0], bias)
    assert got.shape == expected.shape and (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_plain_decoder(tmp_path, family):
    folder = write_checkpoint(tmp_path, family=family, **FAMILIES[family])
    results = []
    for fast in (False, True):
        decoder = Decoder.load(folder)
        if fast:
            if not cpu.is_supported(decoder):
                pytest.skip("needs numba")
            cpu.make_fast(decoder, torch.float32)
        cache, c = allocate(decoder.config, 16, 16, torch.float32), decoder.config
        for step in (
            [row(PROMPTS[0][:50], range(8))],
            [row(PROMPTS[0][50:], range(8), 50), row(PROMPTS[1], range(8, 16))],
            [row([3], range(8), 90), row([4], range(8, 16), 21)],
        ):
            batch = TokenBatch.of(step, 16, decoder.attention, "cpu", c.windows)
            logits, finite = decoder(batch, cache, batch.ends - 1)
            assert finite.all()
            results.append(logits)
    for plain, quick in zip(results[:3], results[3:], strict=True):
        assert (plain - quick).abs().max() < 1e-4


def test_a_table_is_kept_in_16_bits_only_where_that_loses_nothing():
    table = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        exact = table.to(dtype).float() * (1e6 if dtype == torch.bfloat16 else 1)
        exact = exact.to(dtype).float()
        small = cpu.halved(exact)
        assert small.dtype == dtype and torch.equal(small.float(), exact)
    exact[4999, 7] = 1 / 3
    assert cpu.halved(exact) is exact


def test_nano_keeps_its_table_in_16_bits_and_its_logits():
    executors = [TorchExecutor("nano", num_blocks=8, fast=fast) for fast in (True, False)]
    if not cpu.is_supported(executors[1].decoder):
        pytest.skip("needs numba")
    assert [e.decoder.embeddings.dtype for e in executors] == [torch.float16, torch.float32]
    quick, plain = (generate(e, range(100, 150), range(8), 20) for e in executors)
    assert quick == plain
