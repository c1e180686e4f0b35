"""Weights in int8: within half a step, multiplied alike by every way, and what that costs."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import generate, row, step

from minserve.errors import ConfigError
from minserve.execution.torch_executor import TorchExecutor
from minserve.models.quantization import dequantise, quantise

PROMPT = [(7 * i + 3) % 290 for i in range(90)]


def test_a_weight_comes_back_within_half_a_step_of_its_outputs_largest():
    weight = torch.randn(70, 48, generator=torch.Generator().manual_seed(0))
    weight[0], weight[1, 3] = 0, 1000.0  # nothing at all, and an outlier
    values, scales = quantise(weight)
    assert values.dtype == torch.int8 and values[1:].abs().amax(1).eq(127).all()
    half_step = weight.abs().amax(1, keepdim=True) / 127 / 2
    back = dequantise(values, scales)
    assert ((back - weight).abs() <= half_step * 1.0001).all() and back[0].eq(0).all()


@pytest.fixture(scope="module")
def executor(tiny_folder):
    return TorchExecutor(tiny_folder, num_blocks=32, quantization="int8")


def test_every_projection_takes_a_byte_per_weight(executor):
    decoder = executor.decoder
    for projection in (*decoder.projections(), decoder.vocabulary):
        assert projection.weight.dtype == torch.int8
    assert str(executor.precision) == "float32, int8 weights"


@pytest.mark.parametrize("options", [{"fast": False}, {"batch_invariant": True}])
def test_fast_plain_and_batch_invariant_yield_the_same_tokens(executor, tiny_folder, options):
    other = TorchExecutor(tiny_folder, num_blocks=32, quantization="int8", **options)
    expected = generate(other, PROMPT, range(8), 20)
    assert generate(executor, PROMPT, range(8), 20) == expected
    # And in company, in chunks.
    step(executor, row(PROMPT[:40], range(8, 16), sample=False), row(PROMPT, range(16, 24)))
    rest = row(PROMPT[40:], range(8, 16), 40)
    assert step(executor, row([5] * 30, range(24, 32)), rest).token_ids[1] == (expected[0],)


def test_a_prefix_in_one_precision_is_never_reused_in_another(tiny_folder):
    names = {
        TorchExecutor(tiny_folder, num_blocks=1, **options).cache_namespace
        for options in ({}, {"quantization": "int8"}, {"kv_cache_dtype": "int8"})
    }
    assert len(names) == 3


def test_settings_that_cannot_be_are_refused(tiny_folder):
    with pytest.raises(ConfigError, match="int4") as error:
        TorchExecutor(tiny_folder, num_blocks=4, quantization="int4")
    assert error.value.hint
