"""Keep the C library from giving memory back between steps, and have it do so after loading."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory instead of returning it to the kernel.

    A step allocates and frees buffers of megabytes in every layer. By default each may be mapped
    afresh, and the page faults of first touching them took most of the time of a 32-row decode
    step (48 of 59 ms became 9 of 18 on a virtual machine). For the whole process; does nothing
    where there is no glibc.
    """
    if mallopt := _glibc("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


def give_back_freed_memory() -> None:
    """Return what is freed and kept to the kernel, once: after loading, which needs more than
    serving does. Does nothing where there is no glibc.
    """
    if trim := _glibc("malloc_trim"):
        trim(ctypes.c_size_t(0))


def _glibc(function: str) -> Callable | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL("libc.so.6"), function)
    except (OSError, AttributeError):  # another C library, such as musl
        return None
