"""Computing on a thread that ends, so that the thread that computes from then on is the only one.

Torch's OpenMP (libgomp) raises a team of helpers for each thread that computes, and keeps it as
long as that thread lives. Between two products the helpers spin for a moment, ready for the next,
unless there are more of them than cores: then they sleep at once, and every product has to wake
them. A model that is loaded on the main thread and served on another has two teams, and each
matrix product of the second pays for the first.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def on_a_passing_thread(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, called on a thread of its own, which is over, with its team, once it returns."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        done: Future[T] = Future()

        def compute() -> None:
            try:
                done.set_result(function(*args, **options))
            except BaseException as error:
                done.set_exception(error)

        # A daemon, so that Ctrl-C need not wait for half a minute of compiling.
        thread = threading.Thread(target=compute, name="passing", daemon=True)
        thread.start()
        wait([done])
        thread.join()
        return done.result()

    return call
