"""Time as an argument: a wall clock, a virtual clock, and the one event queue that drives either.

The same program runs on both. On the wall clock the loop sleeps until the next event is due; on
the virtual clock it jumps there, so an hour of traffic takes as long as its events take to handle.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from minserve.errors import ConfigError


class Clock(Protocol):
    """Seconds since the clock's own start."""

    def now_s(self) -> float: ...

    def wait_until(self, time_s: float, woken: threading.Event) -> None:
        """Return once it is `time_s`, or earlier if `woken` is set."""


class VirtualClock:
    """Stands still, except that waiting for a time makes it that time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, time_s: float, woken: threading.Event) -> None:
        if not woken.is_set():
            self._now_s = max(self._now_s, time_s)


class WallClock:
    """The machine's monotonic clock."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def wait_until(self, time_s: float, woken: threading.Event) -> None:
        while not woken.is_set() and (left_s := time_s - self.now_s()) > 0:
            woken.wait(min(left_s, threading.TIMEOUT_MAX))


class EventLoop:
    """Calls what is scheduled, in order of time; equal times in the order they were scheduled.

    One thread runs it. `post` is the only method that other threads may call.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._woken = threading.Event()

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Have `call()` called at `time_s`; a time that has passed means: next."""
        heapq.heappush(self._heap, (time_s, next(self._order), call))

    def post(self, call: Callable[[], None]) -> None:
        """Have `call()` called as soon as possible. Safe from any thread."""
        self._posted.append(call)
        self._woken.set()

    def run(self, is_done: Callable[[], bool] = lambda: False, forever: bool = False) -> None:
        """Handle events until `is_done()`, or (unless `forever`) until none is left."""
        if forever and isinstance(self.clock, VirtualClock):
            raise ConfigError("a virtual clock cannot wait for posts", "run until nothing is left")
        while not is_done():
            self._woken.clear()
            while self._posted:
                self.at(self.clock.now_s(), self._posted.popleft())
            if not self._heap:
                if not forever:
                    return
                self._woken.wait()
                continue
            self.clock.wait_until(self._heap[0][0], self._woken)
            if not self._woken.is_set():
                heapq.heappop(self._heap)[2]()
