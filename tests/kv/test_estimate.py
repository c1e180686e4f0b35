"""The KV estimate: the worked figures of the lesson, and what has no meaning is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.errors import ConfigError
from minserve.kv.estimate import DTYPE_BYTES, Capacity, KVShape, parse_bytes


def test_the_worked_example_gives_62_and_65_requests():
    def concurrent(per_token: str, free: str) -> int:
        return Capacity(parse_bytes(per_token), 3_000, parse_bytes(free)).concurrent_requests

    assert concurrent("128KB", "24GB") == 62
    assert concurrent("128KiB", "24GiB") == 65


def test_smollm2_takes_46_080_bytes_per_token_in_float32():
    assert KVShape(num_layers=30, num_kv_heads=3, head_dim=64).bytes_per_token("float32") == 46_080


def test_int8_counts_one_float16_scale_per_token_head_and_side():
    shape = KVShape(num_layers=2, num_kv_heads=3, head_dim=64)
    assert shape.bytes_per_token("int8") == 2 * 2 * 3 * (64 + 2)


@pytest.mark.parametrize(("num_devices", "heads"), [(1, 8), (2, 4), (3, 3), (8, 1), (16, 1)])
def test_a_device_holds_whole_heads(num_devices, heads):
    shape = KVShape(num_layers=4, num_kv_heads=8, head_dim=16)
    assert shape.bytes_per_token("float16", num_devices) == 2 * 4 * heads * 16 * 2


@given(
    per_token=st.integers(1, 10**6),
    context=st.integers(1, 10**5),
    free=st.integers(0, 10**11),
    block_size=st.integers(1, 64),
)
@small(100)
def test_the_requests_that_fit_do_and_one_more_would_not(per_token, context, free, block_size):
    capacity = Capacity(per_token, context, free, block_size)
    fits = capacity.concurrent_requests
    assert fits * capacity.bytes_per_request <= free < (fits + 1) * capacity.bytes_per_request
    assert fits * context <= capacity.total_tokens
    assert capacity.bytes_per_request >= context * per_token


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("7", 7), ("7B", 7), ("128KB", 128_000), ("128KiB", 131_072), ("1.5 GiB", 3 * 2**29)]
    + [("24GB", 24 * 10**9), ("1TiB", 2**40), (" 2MB ", 2_000_000)],
)
def test_sizes_are_read_in_both_unit_systems(text, num_bytes):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "24 gigabytes", "24Gb", "1,5GB", "nan"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ConfigError):
        parse_bytes(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KVShape(0, 1, 1),
        lambda: KVShape(1, -1, 1),
        lambda: Capacity(0, 1, 1),
        lambda: Capacity(1, 0, 1),
        lambda: Capacity(1, 1, -1),
        lambda: Capacity(1, 1, 1, block_size=0),
        lambda: KVShape(1, 1, 1).bytes_per_token("float12"),
        lambda: KVShape(1, 1, 1).bytes_per_token("float16", num_devices=0),
    ],
)
def test_figures_without_meaning_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_every_dtype_has_a_size():
    shape = KVShape(1, 1, 64)
    sizes = [shape.bytes_per_token(dtype) for dtype in DTYPE_BYTES]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 4
