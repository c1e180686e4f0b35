"""The learner's regression test: it must pass right implementations and fail faulty ones.

All of them run in the grader's process, behind the same proxies as everything else, so a test
cannot tell them apart by reading them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring.base import CellScore, Open

MAX_SUBJECTS = 200  # objects that one test may make
MAX_CALLS = 2_000
SHARE_OF_ALL = 10  # so many calls may have the most values


def num_values(value: Any) -> int:
    """How many values a list or dictionary holds, itself included, however deep."""
    total, left = 0, [value]
    while left:
        value = left.pop()
        total += 1
        if type(value) in (list, dict):
            left += value.values() if type(value) is dict else value
    return total


@dataclass(frozen=True)
class Interface:
    """What a test may use. `make(subject, *args)` checks `args` and returns the objects of one
    fresh bench, by kind; it raises `RemoteError` for arguments that make no sense. The test gets a
    list of them, or the one that there is.

    `methods` and `properties` say per kind what can be called and read, `maker` is the spec of the
    remote function that the test is given. `max_values` bounds what the arguments of one call hold:
    implementations run in the grader's process, and some take time or memory as its square.
    """

    maker: dict[str, Any]
    make: Callable[..., dict[str, Any]]
    methods: Mapping[str, Mapping[str, Sequence[str]]]
    properties: Mapping[str, Sequence[str]]
    max_values: int = 5_000


class Host:
    """Serves the maker, and the objects that it makes, to the learner's test."""

    def __init__(self, subject: Any, interface: Interface) -> None:
        self._subject, self._interface = subject, interface
        self._made: list[dict[str, Any]] = []
        self._num_calls = self._num_values = 0

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        self._num_calls += 1
        if self._num_calls > MAX_CALLS:
            raise RemoteError("RuntimeError", f"a test may make {MAX_CALLS} calls")
        self._check_size(args)
        if name == self._interface.maker["name"]:
            return self._make(args)
        kind, _, number = name.partition(" ")
        methods, properties = self._interface.methods, self._interface.properties
        is_number = number.isdecimal() and len(number) <= len(str(MAX_SUBJECTS))
        if not is_number or int(number) >= len(self._made) or kind not in methods:
            raise ChildMisbehaved(f"asked for {name[:40]!r}")
        subject = self._made[int(number)][kind]
        if method in properties.get(kind, ()):
            return getattr(subject, method)
        if method not in methods[kind]:
            raise ChildMisbehaved(f"asked for {kind}.{method[:40]}")
        return _told(subject if method == "__call__" else getattr(subject, method), args)

    def _check_size(self, args: list[Any]) -> None:
        num, most = num_values(args), self._interface.max_values
        self._num_values += num
        if num > most or self._num_values > SHARE_OF_ALL * most:
            what = f"{most} values in one call, {SHARE_OF_ALL * most} in all"
            raise RemoteError("ValueError", f"a test may give {what}")

    def _make(self, args: list[Any]) -> Any:
        if len(self._made) >= MAX_SUBJECTS:
            raise RemoteError("RuntimeError", f"a test may make {MAX_SUBJECTS} of them")
        number = len(self._made)
        self._made.append(_told(self._interface.make, [self._subject, *args]))
        remotes = [
            {
                "remote": {
                    "name": f"{kind} {number}",
                    "methods": self._interface.methods[kind],
                    "properties": list(self._interface.properties.get(kind, ())),
                    "emptied": {},
                }
            }
            for kind in self._made[number]
        ]
        return remotes if len(remotes) > 1 else remotes[0]


def _told(function: Callable[..., Any], args: list[Any]) -> Any:
    """What a call comes to; whatever it raises, the learner's test should see it."""
    try:
        return function(*args)
    except RemoteError:
        raise
    except Exception as error:
        raise RemoteError(type(error).__name__, str(error)) from None


def scorer(function: str, subjects: Any) -> Callable[[CellScore, Open, random.Random], None]:
    """What scores a lab's regression test, named `function`, on the subjects of that module."""

    def play_regression(scored: CellScore, open_child: Open, rng: random.Random) -> None:
        right, faulty = subjects.SUBJECTS.right, subjects.SUBJECTS.faulty
        score_test(scored, open_child, rng, function, subjects.INTERFACE, right, faulty)

    return play_regression


def score_test(
    scored: CellScore,
    open_child: Open,
    rng: random.Random,
    function: str,
    interface: Interface,
    right: Sequence[tuple[str, Any]],
    faulty: Mapping[str, tuple[Any, str]],
    points_each: float = 1.0,
) -> None:
    """A right implementation that fails costs everything, a faulty one that passes `points_each`.

    `right` are (name, subject); `faulty` maps a name to (subject, what it does in words). A faulty
    one is met twice: a test that fails now and then, whatever it meets, catches nothing.
    NOTE: they come in an order that is drawn: a test may find out the how-manyth it meets, by the
    clock or by what files are in the machine's memory.
    """
    missed = set()
    meetings: list[tuple[str | None, Any]] = [(None, subject) for _, subject in right]
    meetings += 2 * [(name, subject) for name, (subject, _) in faulty.items()]
    for name, subject in rng.sample(meetings, len(meetings)):
        if name in missed:
            continue
        error = failure(open_child, function, interface, subject)
        if name is not None and error is None:
            missed.add(name)
        if name is None and error is not None:
            scored.failed.append(REJECTS)
            scored.feedback.append(
                f"Seen: your test fails on a correct implementation: {error}, {error.place}.\n"
                "  Rule: a test relies only on what the contract promises.\n"
                "  Look at: every assert: does the text above the code promise this?"
            )
            return
    for name in (name for name in faulty if name in missed):
        scored.failed.append(misses(name))
        scored.costs[misses(name)] = points_each
        scored.feedback.append(
            f"Seen: your test passes on an implementation that {faulty[name][1]}.\n"
            "  Rule: a test is worth what it can catch.\n"
            "  Look at: which situation would show it, and does your test play that one?"
        )


REJECTS = "rejects a right one"


def misses(name: str) -> str:
    """The kind of finding of a test that lets a faulty implementation pass."""
    return f"misses {name}"


def kinds_of(faulty: Sequence[str]) -> tuple[str, ...]:
    """Every kind that costs points here, for `Lab.kinds`."""
    return (*map(misses, faulty), REJECTS)


def failure(open_child: Open, function: str, interface: Interface, subject: Any) -> Raised | None:
    """How the learner's test fails on `subject`; None if it passes.

    NOTE: a fresh child each time: a test that counts how often it was called would pass else.
    """
    host = Host(subject, interface)
    with open_child() as session:
        try:
            session.test(function, [{"remote": interface.maker}], host.serve)
        except Raised as error:
            return error
    return None
