"""Products with weights of any type: exact to rounding, and the same bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from minserve.models import jit
from minserve.models.quantization import Int8Linear, quantise

if not jit.is_available():
    pytest.skip("needs numba", allow_module_level=True)

from minserve.models.cpu_linear import PanelLinear, to_panels
from minserve.models.micro_kernel import MOST_ROWS, PANEL
from minserve.models.vectors import WIDENS_FLOAT16

FLOATS = [torch.float32, torch.bfloat16, *[torch.float16] * WIDENS_FLOAT16]
SHAPES = [(80, 48), (PANEL, 33), (PANEL + 1, 50), (1, 7)]
NUM_ROWS = (0, 1, 2, MOST_ROWS - 1, MOST_ROWS, MOST_ROWS + 1, 3 * MOST_ROWS - 1, 200)


def weights(shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows(num_rows, size, dtype=torch.float32):
    return weights((num_rows, size), dtype, seed=1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_what_linear_makes_of_the_same_values(shape, has_bias, dtype):
    weight, bias = weights(shape, dtype), weights((shape[0],)) if has_bias else None
    multiply, panels = PanelLinear(shape[0], dtype), to_panels(weight)
    for num_rows in NUM_ROWS:
        x = rows(num_rows, shape[1])
        got, expected = multiply(x, panels, bias), linear(x, weight.float(), bias)
        assert got.shape == expected.shape and got.is_contiguous()
        assert ((got - expected).abs() <= 1e-4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_weights_multiply_as_their_plain_way_does(shape, has_bias, dtype):
    values, scales = quantise(weights(shape))
    bias = weights((shape[0],), dtype) if has_bias else None
    fast, plain = PanelLinear(shape[0], torch.int8, scales), Int8Linear(scales)
    for num_rows in NUM_ROWS:
        x = rows(num_rows, shape[1], dtype)
        got, expected = fast(x, to_panels(values), bias), plain(x, values, bias)
        assert got.shape == expected.shape and got.dtype == dtype
        close = 1e-4 if dtype == torch.float32 else 0.15  # bfloat16's step at 16 to 32
        assert ((got - expected).abs() <= close).all()


def test_a_row_has_the_same_bits_in_any_company():
    multiply, panels = PanelLinear(80, FLOATS[-1]), to_panels(weights((80, 48), FLOATS[-1]))
    x = rows(200, 48)
    whole = multiply(x, panels)
    for num_rows in NUM_ROWS:
        assert torch.equal(multiply(x[:num_rows], panels), whole[:num_rows])


def test_a_value_that_is_not_finite_spoils_its_own_row_alone():
    multiply, panels = PanelLinear(80, torch.float32), to_panels(weights((80, 48)))
    x = rows(9, 48)
    clean = multiply(x, panels)
    x[4, 7] = float("nan")
    got = multiply(x, panels)
    assert not got[4].isfinite().any()
    others = [i for i in range(9) if i != 4]
    assert torch.equal(got[others], clean[others])
