"""The fast decoder is the plain one, faster."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import generate, row, write_checkpoint

from minserve.execution.torch_executor import TorchExecutor
from minserve.models import cpu, jit
from minserve.models.batch import TokenBatch
from minserve.models.decoder import Decoder, each_layer
from minserve.models.kv_cache import allocate
from minserve.models.projection import Projection

PROMPTS = ([(7 * i + 3) % 290 for i in range(90)], [(5 * i + 1) % 290 for i in range(21)])
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 24},
}


@pytest.mark.parametrize("num_rows", [1, 2, 64, 65, 200])
@pytest.mark.parametrize("has_bias", [False, True])
def test_bfloat16_packed_for_onednn_multiplies_as_linear_does(num_rows, has_bias):
    random_ = torch.Generator().manual_seed(0)
    weight, x, bias = (
        torch.randn(*shape, generator=random_).bfloat16()
        for shape in ((80, 48), (num_rows, 48), (80,))
    )
    bias = bias if has_bias else None
    packed = cpu.pack(weight)
    if packed is None:
        pytest.skip("this torch has no oneDNN")
    expected = torch.nn.functional.linear(x, weight, bias)
    got = cpu.packed_linear(x, packed, bias)
    assert got.shape == expected.shape and (got - expected).abs().max() <= 0.15


@pytest.mark.parametrize("in_hardware", [False, True])
def test_bfloat16_goes_to_onednn_only_where_the_cpu_multiplies_it(monkeypatch, in_hardware):
    if not jit.is_available():
        pytest.skip("needs numba")
    monkeypatch.setattr(cpu, "multiplies_bfloat16", lambda: in_hardware)
    weight = torch.randn(80, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    projection, x = Projection(weight), torch.ones(3, 48, dtype=torch.bfloat16)
    expected = projection(x)
    cpu.lay_out(projection)
    assert (projection.multiply is cpu.packed_linear) == in_hardware
    got = projection(x)
    assert got.dtype == torch.bfloat16 and (got - expected).abs().max() <= 0.15


def test_weights_are_kept_in_the_16_bits_that_hold_their_values():
    if not jit.is_available():
        pytest.skip("needs numba")
    weight = torch.randn(80, 48, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    for kept, expected in ((weight * 2**-20, torch.bfloat16), (weight / 3, torch.float32)):
        projection = Projection(kept)
        cpu.lay_out(projection)
        assert projection.weight.dtype == expected


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cached", [torch.float32, torch.int8])
def test_a_layer_in_two_calls_has_the_bits_of_its_parts(tmp_path, monkeypatch, family, cached):
    monkeypatch.setattr("minserve.models.cpu_layer.ROWS_AT_ONCE", 50)
    decoder = Decoder.load(write_checkpoint(tmp_path, family=family, **FAMILIES[family]))
    if not cpu.is_supported(decoder):
        pytest.skip("needs numba")
    cpu.make_fast(decoder, cached)
    assert decoder.run_layers is not each_layer
    # Biases, and norms of queries and keys, are for the parts.
    assert all(
        bool(start) == (family in ("Llama", "Mistral")) for start in decoder.run_layers._starts
    )
    batch = TokenBatch.of(
        [row(PROMPTS[0], range(8)), row(PROMPTS[1], range(8, 16))],
        16,
        decoder.attention,
        "cpu",
        decoder.config.windows,
    )
    results = []
    for _ in range(2):
        cache = allocate(decoder.config, 16, 16, cached)
        logits, _ = decoder(batch, cache, batch.ends - 1)
        results.append((logits, cache))
        decoder.run_layers = each_layer
    assert all(torch.equal(fused, parts) for fused, parts in zip(*results, strict=True))


def test_a_table_is_kept_in_16_bits_only_where_that_loses_nothing():
    table = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        exact = table.to(dtype).float() * (1e6 if dtype == torch.bfloat16 else 1)
        exact = exact.to(dtype).float()
        small = cpu.halved(exact)
        assert small.dtype == dtype and torch.equal(small.float(), exact)
    exact[4999, 7] = 1 / 3
    assert cpu.halved(exact) is exact


def test_nano_keeps_its_tied_table_once_in_16_bits_and_its_tokens():
    executors = [TorchExecutor("nano", num_blocks=8, fast=fast) for fast in (True, False)]
    if not cpu.is_supported(executors[1].decoder):
        pytest.skip("needs numba")
    from minserve.models.vectors import WIDENS_FLOAT16

    fast, plain = (e.decoder for e in executors)
    assert (fast.vocabulary.weight.dtype == torch.float16) == WIDENS_FLOAT16
    assert not isinstance(fast.embeddings, torch.Tensor)
    rows = torch.tensor([0, 31, 32, 5, 31, plain.config.vocab_size - 1])
    assert torch.equal(fast.embeddings[rows].float(), plain.embeddings[rows])
    for wrong in (-1, plain.config.vocab_size):
        with pytest.raises(IndexError):
            fast.embeddings[torch.tensor([0, wrong])]
    outputs = [generate(e, range(100, 150), range(8), 20) for e in executors]
    assert outputs[0] == outputs[1]


def test_a_table_beside_int8_weights_is_kept_for_itself():
    quick = TorchExecutor("nano", num_blocks=8, quantization="int8").decoder
    plain = TorchExecutor("nano", num_blocks=8, fast=False).decoder
    assert quick.embeddings.dtype in (torch.float16, torch.float32)
    assert torch.equal(quick.embeddings.float(), plain.embeddings)
