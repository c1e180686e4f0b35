"""Runs learners' code inside a server: whatever it does, the server lives and can say which part.

A call that raises is a `PartFailed`. One that does not end is interrupted in its own thread, so
that it becomes one too. Code that cannot be interrupted (a long call into C) is reported as stuck.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minserve.errors import ExecutorFailed, MinserveError
from minserve.learn.conformance import line_in

LIMIT_S = 5.0
LOOKS = 4
"""The watch looks so often within the limit, and counts: a process that was suspended, and whose
clock has jumped, blames nobody."""


class Reason(str):
    """Why a request failed, as its client is told; `code` is the error's name for machines."""

    code = "part_failed"


class PartFailed(MinserveError):
    """A learner's part raised, did not end, or answered nonsense; `part` is its name."""

    part = ""

    def __str__(self) -> Reason:
        return Reason(super().__str__())  # so it keeps its code wherever it is passed on as text


class _Stopped(BaseException):
    """Thrown into code that runs for too long. No `except Exception` of a learner's catches it."""


@dataclass(slots=True, eq=False)
class _Call:
    part: str
    num_looks: int = 0


class Guard:
    """`call(part, function, ...)` runs a learner's function for at most `limit_s` seconds.

    `on_failed(failure)` is told of each failure where it happens, before it goes on;
    `on_stuck(part)` of code that does not stop when it is interrupted, on a thread of the guard's.
    """

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        on_failed: Callable[[PartFailed], None] = lambda failure: None,
        on_stuck: Callable[[str], None] = lambda part: None,
    ) -> None:
        self.limit_s = limit_s
        self.on_failed, self.on_stuck = on_failed, on_stuck
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        threading.Thread(
            target=_watch, args=(weakref.ref(self), limit_s / LOOKS), daemon=True
        ).start()

    def call(self, part: str, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """What `function` returns. Raises `PartFailed`; a lost executor's error goes through."""
        thread = threading.get_ident()
        outer, call = self._calls.get(thread), _Call(part)
        error: BaseException
        try:
            try:
                with self._lock:
                    self._calls[thread] = call
                return function(*args, **settings)
            finally:
                self._leave(thread, call, outer)
        except (PartFailed, ExecutorFailed):
            raise
        except _Stopped as stopped:
            self._leave(thread, call, outer)
            error, what = stopped, f"it still ran after {self.limit_s:g} s, so it was stopped"
        except (Exception, SystemExit) as raised:
            error, what = raised, f"{type(raised).__name__}: {raised}"
        line = line_in(error, getattr(getattr(function, "__code__", None), "co_filename", ""))
        raise self.failed(part, what + (f" (line {line})" if line else "")) from error

    def failed(self, part: str, what: str) -> PartFailed:
        """The failure to raise, of which everybody concerned has been told."""
        advice = f"mend it, or run the reference: minserve parts use {part} reference"
        failure = PartFailed(f"your part {part} failed: {what}; {advice}")
        failure.part = part
        self.on_failed(failure)
        return failure

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What a learner's code calls back into takes none of its time."""
        thread = threading.get_ident()
        with self._lock:
            call = self._calls.pop(thread, None)
        try:
            yield
        finally:
            if call:
                call.num_looks = 0
                with self._lock:
                    self._calls[thread] = call

    def _leave(self, thread: int, call: _Call, outer: _Call | None) -> None:
        with self._lock:
            if call.num_looks > LOOKS:
                _throw(thread, None)  # it ended just now: take the interruption back
            if outer is None:
                self._calls.pop(thread, None)
            else:
                outer.num_looks = 0
                self._calls[thread] = outer

    def look(self) -> None:
        """Interrupt what has run for too long."""
        stuck = []
        with self._lock:
            for thread, call in self._calls.items():
                call.num_looks += 1
                if call.num_looks > LOOKS:
                    _throw(thread, _Stopped)
                if call.num_looks == 2 * LOOKS:
                    stuck.append(call.part)
        for part in stuck:
            self.on_stuck(part)


def stop(thread: int) -> None:
    """Interrupt whatever a thread is doing."""
    _throw(thread, _Stopped)


def _throw(thread: int, kind: type[BaseException] | None) -> None:
    # NOTE: a debugger's door: the exception is raised in that thread at its next line of Python.
    value = ctypes.py_object(kind) if kind else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)


def _watch(guard: weakref.ref[Guard], every_s: float) -> None:
    while (watched := guard()) is not None:
        watched.look()
        del watched
        time.sleep(every_s)
