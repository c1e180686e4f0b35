"""A thread that computes beside the engine's, and gives way to it.

Torch's OpenMP raises a team of helpers for each thread that computes, and with more helpers than
cores those of the engine sleep between products (see `minserve.execution.passing_thread`). So a
thread that computes something else, such as embeddings, does it alone; and, where the system takes
a priority for each thread, when the engine leaves time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from minserve.execution.passing_thread import on_a_passing_thread

NICENESS = 10
"""Beside a thread of the usual 0 it gets about a tenth of a core that both want."""


def compute_aside() -> None:
    """Have the calling thread compute without helpers and after others. Call it there, once.

    The number of helpers of all other threads stays, also of those that begin later. The priority
    is Linux's affair: elsewhere it stays as it is.
    """
    import torch

    number = torch.get_num_threads()
    torch.set_num_threads(1)
    # NOTE: torch keeps the number for the thread that sets it and for those still to begin.
    on_a_passing_thread(torch.set_num_threads)(number)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
