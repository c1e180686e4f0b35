"""The grader's end of the line to the learner's code.

Everything that decides a score (clock, traffic, block pool, comparison) runs on this side. What
comes back is parsed strictly; a child that dies, hangs or talks nonsense ends in one typed error.
"""

from __future__ import annotations

import builtins
import json
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from autograder import sandbox
from minserve import errors
from minserve.errors import MinserveError

Cells = Sequence[tuple[str, str]]
LINE_LIMIT = 4 * 2**20  # bytes
SENT_LIMIT = 16 * 2**20  # bytes that one child may send; the solutions send 0.15 MB at most
LOOK_EVERY_S = 0.2
ENDED = "ended the process (exit, signal or out of memory)"
ANSWER_LIMIT = 20_000  # messages within one call


class ChildError(MinserveError):
    """The learner's process cannot go on. `status` is the word for the report."""

    status = "crashed"

    @property
    def told(self) -> str:
        """What the learner reads."""
        return str(self)


class ChildCrashed(ChildError):
    """It ended by itself: os._exit, a signal, out of memory."""


class ChildTimedOut(ChildError):
    """It used up its time, or its share of what can be sent."""

    status = "timed_out"


class ChildMisbehaved(ChildError):
    """It sent what no honest notebook sends."""

    status = "tampered"

    @property
    def told(self) -> str:
        return "sent the grader what no honest notebook sends"  # NOTE: its words may be anything


class Raised(MinserveError):
    """The learner's code raised: `kind` is the exception's type, `place` cell and line.

    NOTE: what it says of itself is nobody's but the instructor's: `raise ValueError(tokens)` would
    carry hidden values to the feedback page. So its text is the kind alone, and that only if the
    kind is known; the place is checked by `Child`. What a cell raises while it is loaded is
    told in full: no hidden value is in the process by then.
    """

    def __init__(self, kind: str, message: str, place: str) -> None:
        super().__init__(kind if _is_known(kind) else "an exception of your own")
        self.kind, self.message, self.place = kind, message, place


def _is_known(kind: str) -> bool:
    found = getattr(builtins, kind, None) or getattr(errors, kind, None)
    return isinstance(found, type) and issubclass(found, BaseException)


class RemoteError(Exception):
    """Raised by a `serve` function to have the learner's code see an exception of that name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


Serve = Callable[[str, str, list[Any]], Any]


def refuse(name: str, method: str, args: list[Any]) -> Any:
    """The `serve` of calls that have nothing to ask."""
    raise ChildMisbehaved(f"asked for {name}.{method} when there was nothing to ask")


class Child:
    """One sandboxed process that has run the notebook's cells. Use it in a `with`."""

    def __init__(self, cells: Cells, limits: sandbox.Limits, level: str) -> None:
        self._limits = limits
        self._buffer = b""
        self._num_bytes = 0
        self._left_s = limits.session_s
        self._looked_s = time.monotonic()
        self._cpu_before_s = 0.0  # what loading the cells has cost: calls have as much again
        self._num_lines = {name: source.count("\n") + 1 for name, source in cells}
        self._process = sandbox.start(limits, level)
        try:
            loaded = self._talk({"load": [list(cell) for cell in cells]}, refuse)
            self.cells: dict[str, dict[str, Any]] = _checked_cells(loaded, cells)
            self.names: set[str] = {n for n in _list_of(loaded.get("names")) if type(n) is str}
            self._cpu_before_s = sandbox.used(self._process)[0]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        sandbox.stop(self._process)

    @property
    def waited_s(self) -> float:
        """How long the grader has waited for its answers, in seconds."""
        return self._limits.session_s - self._left_s

    def new(self, class_name: str, args: list[Any], serve: Serve) -> None:
        """Make the object under test."""
        self._talk({"new": class_name, "args": args}, serve)

    def call(self, method: str, args: list[Any], serve: Serve) -> Any:
        """Call a method of the object under test; returns plain values. Raises `Raised`."""
        return self._talk({"call": method, "args": args}, serve)

    def test(self, function: str, args: list[Any], serve: Serve) -> None:
        """Call a function of the notebook, which may use the grader's objects."""
        self._talk({"test": function, "args": args}, serve)

    def _talk(self, message: dict[str, Any], serve: Serve) -> Any:
        started_s = time.monotonic()
        try:
            return self._exchange(message, serve)
        finally:
            self._left_s -= time.monotonic() - started_s

    def _exchange(self, message: dict[str, Any], serve: Serve) -> Any:
        self._end_s = time.monotonic() + self._left_s
        self._send(message)
        for _ in range(ANSWER_LIMIT):
            answer = self._receive()
            if set(answer) == {"ask", "method", "args"}:
                self._send(self._served(answer, serve))
            elif set(answer) == {"return"}:
                return answer["return"]
            elif set(answer) == {"raise", "message", "line"}:
                kind, message, place = (_text(answer[key]) for key in ("raise", "message", "line"))
                raise Raised(kind, message, self._place(place))
            else:
                raise ChildMisbehaved("sent a message of an unknown kind")
        raise ChildTimedOut(f"asked the grader more than {ANSWER_LIMIT} times within one call")

    def _place(self, told: str) -> str:
        """`told` if it is a line that the notebook has: it could carry anything else."""
        name, _, number = told.rpartition(", line ")
        are_digits = number.isascii() and number.isdigit() and len(number) < 6
        is_real = are_digits and 0 < int(number) <= self._num_lines.get(name, 0)
        return told if is_real else "outside of your cells"

    @staticmethod
    def _served(answer: dict[str, Any], serve: Serve) -> dict[str, Any]:
        name, method, args = answer["ask"], answer["method"], answer["args"]
        if type(name) is not str or type(method) is not str or type(args) is not list:
            raise ChildMisbehaved("sent a question of the wrong shape")
        try:
            return {"return": serve(name, method, args)}
        except RemoteError as error:
            return {"raise": error.kind, "message": str(error)}

    def _send(self, message: dict[str, Any]) -> None:
        """NOTE: never blocks for long: a child may ask and ask without reading the answers."""
        data = json.dumps(message).encode() + b"\n"
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        deadline_s = time.monotonic() + self._limits.wall_s
        while data:
            self._check_time(deadline_s)
            if not select.select([], [pipe], [], LOOK_EVERY_S)[1]:
                continue
            try:
                data = data[os.write(pipe, data[:4096]) :]
            except OSError:
                raise ChildCrashed(ENDED) from None

    def _receive(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + self._limits.wall_s
        while b"\n" not in self._buffer:
            self._check_time(deadline_s)
            if not select.select([self._process.stdout], [], [], LOOK_EVERY_S)[0]:
                continue
            data = self._process.stdout.read1(65536)
            if not data:
                raise ChildCrashed(ENDED)
            self._buffer += data
            self._num_bytes += len(data)
            if len(self._buffer) > LINE_LIMIT:
                raise ChildMisbehaved(f"sent a line of more than {LINE_LIMIT} bytes")
            if self._num_bytes > SENT_LIMIT:
                raise ChildTimedOut(f"sent more than {SENT_LIMIT} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if type(message) is not dict:
            raise ChildMisbehaved("sent a line that is no message")
        return message

    def _check_time(self, deadline_s: float) -> None:
        """NOTE: counted in processor time, so that a busy machine changes nobody's score; and
        looked at whether or not something comes, else a child that always sends is never late."""
        now_s = time.monotonic()
        if now_s >= self._end_s:
            raise ChildTimedOut(f"took more than {self._limits.session_s:g} s in all")
        if now_s >= deadline_s:
            raise ChildTimedOut(f"gave no answer for {self._limits.wall_s:g} s")
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            cpu_s, memory_mb = sandbox.used(self._process)
            if cpu_s - self._cpu_before_s >= self._limits.cpu_s:
                raise ChildTimedOut(f"used more than {self._limits.cpu_s} s of processor time")
            if memory_mb > self._limits.memory_mb:
                raise ChildCrashed(f"used more than {self._limits.memory_mb} MB of memory")


def _checked_cells(loaded: Any, cells: Cells) -> dict[str, dict[str, Any]]:
    """What each cell printed and raised, as plain text."""
    if type(loaded) is not dict or type(loaded.get("cells")) is not dict:
        raise ChildMisbehaved("sent no list of cells")
    checked = {}
    for name, _ in cells:
        told = loaded["cells"].get(name)
        told = told if type(told) is dict else {}
        error = told.get("error")
        checked[name] = {
            "printed": _text(told.get("printed", "")),
            "error": None,
        }
        if type(error) is dict:
            kind, message = _text(error.get("raise", "")), _text(error.get("message", ""))
            checked[name]["error"] = f"{kind}: {message} ({_text(error.get('line', ''))})"
    return checked


def _list_of(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _text(value: Any) -> str:
    """Printable text, bounded: it goes into reports."""
    text = value if type(value) is str else ""
    return "".join(c for c in text[:2_000] if c.isprintable() or c == "\n")
