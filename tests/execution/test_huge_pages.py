"""Memory in huge pages: the same values, no more of it than was asked for."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest
import torch

from minserve.execution.huge_pages import CACHE_LINE_BYTES, PAGE_BYTES, SLAB_BYTES, HugePages, zeros

SMAPS = Path("/proc/self/smaps")


def test_copies_hold_the_values_apart_from_each_other():
    memory = HugePages()
    originals = [torch.randn(7, 3), torch.randn(5, 8).bfloat16().T, torch.arange(3).to(torch.int8)]
    copies = [memory.copy(tensor) for tensor in originals]
    for copy, original in zip(copies, originals, strict=True):
        assert torch.equal(copy, original) and copy.dtype == original.dtype
        assert copy.is_contiguous() and copy.data_ptr() % CACHE_LINE_BYTES == 0
    copies[0].zero_()
    assert torch.equal(copies[1], originals[1])


def test_a_tensor_outlives_who_handed_it_out_and_may_be_larger_than_a_slab():
    copy = HugePages().copy(torch.ones(SLAB_BYTES + 1, dtype=torch.int8))
    assert copy.sum(dtype=torch.int64) == SLAB_BYTES + 1


def test_zeros_take_no_more_than_was_asked_for_and_begin_with_a_page():
    tensor = zeros((3, PAGE_BYTES // 4), torch.float16)
    assert tensor.untyped_storage().nbytes() == 3 * PAGE_BYTES // 2
    assert tensor.data_ptr() % PAGE_BYTES == 0
    assert not tensor.any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_the_kernel_is_asked_for_the_whole_pages_only():
    if not Path("/sys/kernel/mm/transparent_hugepage").exists() or not SMAPS.exists():
        pytest.skip("this kernel has no transparent huge pages")
    tensor = zeros((2 * PAGE_BYTES + 4096,), torch.uint8)
    first = tensor.data_ptr()
    flags = {}
    for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text()):
        start, end = (int(x, 16) for x in area.split(maxsplit=1)[0].split("-"))
        for place in (first, first + 2 * PAGE_BYTES - 1, first + 2 * PAGE_BYTES):
            if start <= place < end:
                flags[place - first] = "hg" in re.search(r"VmFlags: (.*)", area)[1].split()
    assert flags == {0: True, 2 * PAGE_BYTES - 1: True, 2 * PAGE_BYTES: False}


def test_memory_that_cannot_be_had_is_an_error():
    for num_bytes in (1 << 62, 1 << 70):
        with pytest.raises(MemoryError):
            zeros((num_bytes,), torch.int8)
