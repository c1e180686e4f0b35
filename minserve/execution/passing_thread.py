"""Computing on a thread that ends, so that the thread that computes from then on is the only one.

Torch's OpenMP (libgomp) raises a team of helpers for each thread that computes, and keeps it as
long as that thread lives. Between two products the helpers spin for a moment, ready for the next,
unless there are more of them than cores: then they sleep at once, and every product has to wake
them. A model that is loaded on the main thread and served on another has two teams, and each
matrix product of the second pays for the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def on_a_passing_thread(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, called on a thread of its own, which is over, with its team, once it returns."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        with ThreadPoolExecutor(1, "passing") as pool:
            return pool.submit(function, *args, **options).result()

    return call
