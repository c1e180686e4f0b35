"""Memory in pages of 2 MB, for what every step reads from end to end: KV cache, panels of weights.

Of each page that it reads a CPU looks up where it lies. There are 500 times as many of the usual 4
kB, and their list does not fit its caches. Linux gives large pages to those who ask ("Transparent
Hugepage Support", the kernel's administration guide); elsewhere this is memory like any other.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
SLAB_BYTES = 64 << 20
CACHE_LINE_BYTES = 64


class HugePages:
    """Hands out memory of slabs, front to back. A slab lives as long as a tensor of it does."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy."""
        num_bytes = tensor.numel() * tensor.itemsize
        taken = num_bytes + -num_bytes % CACHE_LINE_BYTES
        if taken > len(self._free):
            self._free = zeros((max(taken, SLAB_BYTES),), torch.uint8)
        mine, self._free = self._free[:num_bytes], self._free[taken:]
        return mine.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """As torch's, of at least one element; the memory is not taken before it is written to.

    Raises `MemoryError` where there is no such memory.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, **_OPTIONS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no {num_bytes:,} bytes: {error}") from None
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % PAGE_BYTES
    # Whole pages only, lest more memory is taken than was asked for.
    if _ADVICE is not None and (length := num_bytes - num_bytes % PAGE_BYTES):
        with suppress(OSError):  # a kernel without them
            memory.madvise(_ADVICE, start, length)
    flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start)
    return flat.view(tuple(shape))


_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
# Not mmap's default, which is shared with a forked process, and gets no huge pages.
_OPTIONS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
