"""What the C library does with freed memory: give it back while loading, keep it while serving."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES, _KEEP_BYTES = 1 << 20, 1 << 30
_MOST_IN_OLD_GLIBC_BYTES = 32 << 20  # before 2.35


@contextmanager
def loading() -> Iterator[None]:
    """Let glibc return memory of 1 MiB or more to the kernel as soon as it is freed, and afterwards
    keep up to 1 GiB of what is freed then. For the whole process; without glibc nothing is done.

    Loading needs more than serving does. What it left behind would be holes, and every buffer might
    go to another of them: up to 150 MB more in use. But a step allocates and frees buffers of
    megabytes in every layer. By default each may be mapped afresh, and the page faults of first
    touching them took most of the time of a 32-row decode step (48 of 59 ms became 9 of 18 on a
    virtual machine).
    """
    _set_threshold(_LARGE_BYTES)
    try:
        yield
    finally:
        if trim := _glibc("malloc_trim"):
            trim(ctypes.c_size_t(0))
        _set_threshold(_KEEP_BYTES)


def _set_threshold(num_bytes: int) -> None:
    if mallopt := _glibc("mallopt"):
        mallopt(_M_TRIM_THRESHOLD, num_bytes)
        if not mallopt(_M_MMAP_THRESHOLD, num_bytes):
            mallopt(_M_MMAP_THRESHOLD, _MOST_IN_OLD_GLIBC_BYTES)


def _glibc(function: str) -> Callable | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL("libc.so.6"), function)
    except (OSError, AttributeError):  # another C library, such as musl
        return None
