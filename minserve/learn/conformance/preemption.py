"""The rules of `make_room(running, num_missing)`: whom to preempt when blocks run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, showing
from minserve.learn.reference import Candidate

MakeRoom = Callable[[Sequence[Candidate], int], list[str]]


class _Tried:
    """One call, and what came of it."""

    def __init__(self, make_room: MakeRoom, running: list[Candidate], missing: int) -> None:
        self.running, self.missing = running, missing
        self.lines = ["running = ["]
        self.lines += [
            f"    Candidate({c.id!r}, arrival_s={c.arrival_s:g}, num_blocks={c.num_blocks}),"
            for c in running
        ]
        self.lines += ["]", f"make_room(running, num_missing={missing})"]
        given = list(running)
        with showing(self.lines):
            self.victims = make_room(given, missing)
        self.lines[-1] += f"   # -> {self.victims!r}"
        known = {c.id for c in running}
        if not isinstance(self.victims, list) or not all(v in known for v in self.victims):
            self.fail(f"a list of the ids in `running` is wanted; this is {self.victims!r}")
        if given != running:
            self.fail("the list `running` belongs to the caller, and was changed")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)

    @property
    def freed(self) -> int:
        return sum(c.num_blocks for c in self.running if c.id in set(self.victims))


def _cases(most: int = 3):
    """Every small situation, the smallest first; `running` comes in any order."""
    for count in range(1, most + 1):
        for blocks in product((1, 2), repeat=count):
            for order in permutations(range(count)):
                running = [Candidate("abcd"[i], float(i), blocks[i]) for i in order]
                for missing in range(sum(blocks) + 1):
                    yield running, missing


def _nobody_for_nothing(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        if missing == 0 and t.victims:
            t.fail(f"no block is missing, so nobody needs to go; {t.victims} would")


def _the_earliest_stays(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        earliest = min(running, key=lambda c: c.arrival_s).id
        if earliest in t.victims:
            t.fail(f"{earliest} arrived first: if it can be preempted too, nobody is sure to end")


def _frees_enough(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        earliest = min(running, key=lambda c: c.arrival_s)
        possible = sum(c.num_blocks for c in running) - earliest.num_blocks
        if t.freed < min(missing, possible):
            t.fail(f"{missing} blocks are missing, {t.freed} become free and {possible} could")


def _the_latest_goes_first(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        arrival = {c.id: c.arrival_s for c in running}
        by_arrival = sorted(arrival, key=lambda id: arrival[id], reverse=True)
        if t.victims != by_arrival[: len(t.victims)]:
            t.fail(f"from latest to earliest they are {by_arrival}; the victims are {t.victims}")


def _nobody_in_vain(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        blocks = {c.id: c.num_blocks for c in running}
        if t.victims and sum(blocks[v] for v in t.victims[:-1]) >= missing:
            t.fail(
                f"{missing} missing blocks are free before {t.victims[-1]} goes: "
                "its work is thrown away for nothing"
            )


def _nobody_twice(make_room: MakeRoom) -> None:
    for running, missing in _cases():
        t = _Tried(make_room, running, missing)
        if len(set(t.victims)) != len(t.victims):
            t.fail("the same request is listed twice: its blocks can be freed only once")


_STEP = "make_room"
RULES = (
    Rule(
        "nobody_for_nothing",
        _STEP,
        "If nothing is missing, nobody is preempted.",
        "Check num_missing before you choose the first victim.",
        _nobody_for_nothing,
    ),
    Rule(
        "nobody_twice",
        _STEP,
        "Nobody is listed twice, and the caller's list is left alone.",
        "Walk over a sorted copy.",
        _nobody_twice,
    ),
    Rule(
        "the_earliest_stays",
        _STEP,
        "The request that arrived first is never preempted, so somebody always makes progress.",
        "Leave the one with the smallest arrival_s out of the candidates.",
        _the_earliest_stays,
    ),
    Rule(
        "frees_enough",
        _STEP,
        "The victims' blocks add up to what is missing, or to all that may be freed.",
        "Count blocks, not requests: subtract each victim's num_blocks.",
        _frees_enough,
    ),
    Rule(
        "the_latest_goes_first",
        _STEP,
        "The latest to arrive goes first: it has waited least and computed least.",
        "Sort by arrival_s; `running` comes in no particular order.",
        _the_latest_goes_first,
    ),
    Rule(
        "nobody_in_vain",
        _STEP,
        "As soon as enough is free, nobody else is preempted.",
        "Stop when num_missing has come down to 0.",
        _nobody_in_vain,
    ),
)

SUITE = Suite(
    "preemption",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
3 blocks are missing

  arrived first                        arrived last
  a [x x x x]     b [x x]     c [x]    d [x x]
  never                       2nd      1st            2 + 1 = 3: enough, b goes on""",
            pseudocode="""\
candidates = all but the first to arrive, latest first
for each: if nothing is missing any more, stop
          list it; subtract its blocks from what is missing""",
            near_miss="""\
- return [c.id for c in latest_first[:num_missing]]     # counts requests, not blocks
+ for candidate in latest_first:
+     if num_missing <= 0: break
+     victims.append(candidate.id)
+     num_missing -= candidate.num_blocks""",
        )
    },
)
