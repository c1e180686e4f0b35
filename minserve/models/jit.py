"""Numba, set up in one place: how kernels are compiled, where they are kept, on how many threads.

Numba turns the Python of a kernel into machine code for the CPU at hand, with its vector units.
Compiling takes seconds, so the result is kept for the next time: under MINSERVE_HOME, or, where
that cannot be written, in a folder of the user's own under the system's temporary one. There each
version of the kernels has a folder, which may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

from minserve.home import home

numba: ModuleType | None
try:
    numba = import_module("numba")
except ImportError:  # a Python or a platform that Numba does not know
    numba = None

SLOW_S = 1.0
"""Compiling for longer than this is announced."""


def is_available() -> bool:
    """Whether kernels can be compiled here."""
    return numba is not None


def require() -> ModuleType:
    """Numba."""
    assert numba is not None, "ask `is_available` first"
    return numba


def kernel(*signatures: str, parallel: bool = True):
    """Compile a function now, for these argument types, as fast as the CPU goes.

    `fastmath` lets sums be reordered, which is what makes them vectors, and assumes that no value
    is NaN: one that is stays in its own row, but may look like a number there.
    """
    folder = folder_for_code(_wanted_folder())
    if folder:
        require().config.CACHE_DIR = folder
    return require().njit(
        list(signatures),
        parallel=parallel,
        fastmath=True,
        nogil=True,
        error_model="numpy",
        cache=folder is not None,
    )


_chosen = threading.local()  # as Numba's own setting: one for each thread


def use_threads(num_threads: int) -> None:
    """Run this thread's next kernels on so many threads."""
    # NOTE: asking Numba each time takes 9 us, as long as a small kernel.
    if getattr(_chosen, "num_threads", None) != num_threads:
        require().set_num_threads(num_threads)
        _chosen.num_threads = num_threads


def max_threads() -> int:
    """As many threads as torch uses, if Numba has them."""
    return min(torch.get_num_threads(), require().config.NUMBA_NUM_THREADS)


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say on standard error that `what` is being compiled, if it takes more than a moment."""
    notice = f"... compiling {what} for this CPU, once"
    timer = threading.Timer(SLOW_S, lambda: print(notice, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@cache
def _wanted_folder() -> str:
    """In NUMBA_CACHE_DIR, or else under MINSERVE_HOME."""
    return str(Path(require().config.CACHE_DIR or home() / "numba", _sources()))


@cache
def _sources() -> str:
    """A name for what kernels are made of. Numba itself would see a change in the file of a kernel,
    and keep one that was made of other files' older text.
    """
    sources = [file.read_bytes() for file in sorted(Path(__file__).parent.rglob("*.py"))]
    return hashlib.sha256(b"".join(text for text in sources if b"numba" in text)).hexdigest()[:16]


@cache
def folder_for_code(wanted: str) -> str | None:
    """Where compiled kernels are kept: `wanted`, or else a temporary folder of the user's own.

    None, where neither can be: kernels are then compiled in each process. Any but the first is
    said on standard error, once.
    """
    if _can_write(wanted):
        return wanted
    private = _private_temporary_folder()
    folder = private and str(Path(private, _sources()))
    what = f"kept in {folder}" if folder else "compiled at every start"
    print(f"... kernels are {what}: {wanted} cannot be written", file=sys.stderr, flush=True)
    return folder


def _private_temporary_folder() -> str | None:
    # NOTE: what lies there is run, so nobody else may have put it there.
    if sys.platform == "win32":
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"minserve-numba-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_safe = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    is_ours = found.st_uid == os.getuid()
    return str(folder) if is_safe and is_ours and _can_write(str(folder)) else None


def _can_write(folder: str) -> bool:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
