"""Keep the C library from giving memory back between steps."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory instead of returning it to the kernel.

    A step allocates and frees buffers of megabytes in every layer. By default each may be mapped
    afresh, and the page faults of first touching them took most of the time of a 32-row decode
    step (48 of 59 ms became 9 of 18 on a virtual machine). For the whole process; does nothing
    where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
