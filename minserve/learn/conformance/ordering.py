"""The rules of `ordering(request, now_s)`: the key by which those who wait are sorted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, showing
from minserve.learn.parts_of_engine import AGEING_S, Asking

Key = Callable[[Asking, float], Any]


def _ask(
    name: str, arrival_s: float = 0.0, priority: int = 0, deadline_s: float | None = None
) -> Asking:
    return Asking(name, arrival_s, priority, deadline_s)


def _expect(key: Key, order: list[Asking], because: str, now_s: float = 0.0) -> None:
    """Whichever way they stand in the queue, sorting must give `order`."""
    for queue in permutations(order):
        example = [f"{request}" for request in queue] + [f"now_s = {now_s:g}"]
        with showing(example):
            found = sorted(queue, key=lambda request: key(request, now_s))
        if found != order:
            names = [", ".join(r.id for r in side) for side in (order, found)]
            raise BrokenRule(f"{because}: the order is {names[0]}, not {names[1]}", example)


def _priority(key: Key) -> None:
    _expect(key, [_ask("b", 1.0, priority=1), _ask("a", 0.0)], "b has the higher priority", 1.0)


def _deadline(key: Key) -> None:
    _expect(key, [_ask("b", 1.0, 0, 5.0), _ask("a", 0.0, 0, 9.0)], "b's deadline is nearer", 1.0)


def _priority_before_deadline(key: Key) -> None:
    order = [_ask("b", 0.0, 1, 9.0), _ask("a", 0.0, 0, 5.0)]
    _expect(key, order, "priority counts before the deadline")


def _no_deadline_is_last(key: Key) -> None:
    _expect(key, [_ask("b", 1.0, 0, 900.0), _ask("a", 0.0)], "a is in no hurry", 1.0)


def _first_come(key: Key) -> None:
    _expect(key, [_ask("b", 1.0), _ask("a", 2.0)], "all else is equal, and b came first", 2.0)
    order = [_ask("b", 1.0, 0, 9.0), _ask("a", 2.0, 0, 9.0)]
    _expect(key, order, "the deadlines are equal, and b came first", 2.0)


def _ageing(key: Key) -> None:
    old, young = _ask("old", 0.0), _ask("young", AGEING_S * 2, priority=1)
    because = f"old has waited {2 * AGEING_S:g} s, which is worth 2 levels"
    _expect(key, [old, young], because, now_s=AGEING_S * 2)


def _not_too_soon(key: Key) -> None:
    old, young = _ask("old", 0.0), _ask("young", AGEING_S - 1, priority=1)
    because = f"old has waited less than {AGEING_S:g} s, which is worth nothing yet"
    _expect(key, [young, old], because, now_s=AGEING_S - 1)


_STEP = "key"
RULES = (
    Rule(
        "priority",
        _STEP,
        "The higher priority goes first.",
        "Lower keys go first, so put a minus in front.",
        _priority,
    ),
    Rule(
        "deadline",
        _STEP,
        "On the same level, the nearest deadline goes first.",
        "Return a tuple: (level, deadline, arrival).",
        _deadline,
    ),
    Rule(
        "priority_before_deadline",
        _STEP,
        "The level counts before the deadline.",
        "Tuples are compared from the left.",
        _priority_before_deadline,
    ),
    Rule(
        "no_deadline_is_last",
        _STEP,
        "No deadline (None) counts as the farthest.",
        'None cannot be compared with a number: use float("inf").',
        _no_deadline_is_last,
    ),
    Rule(
        "first_come",
        _STEP,
        "All else being equal, who came first goes first.",
        "arrival_s is the last entry of the tuple.",
        _first_come,
    ),
    Rule(
        "ageing",
        _STEP,
        f"Every full {AGEING_S:g} s of waiting count as one level, so nobody waits for ever.",
        "level = priority + (now_s - arrival_s) // AGEING_S",
        _ageing,
    ),
    Rule(
        "not_too_soon",
        _STEP,
        "Only full spans count.",
        "Use //, which rounds down.",
        _not_too_soon,
    ),
)

SUITE = Suite(
    "ordering",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
          priority  waited   level   deadline
   x         0        25 s     2        none        1st: level 2
   y         1         3 s     1        9 s         2nd: level 1, sooner
   z         1         9 s     1        40 s        3rd""",
            pseudocode="(minus level, deadline or infinity, arrival)",
            near_miss="""\
- return (request.priority, request.deadline_s, request.arrival_s)
+ return (-level, deadline_s, request.arrival_s)""",
        )
    },
)
