"""The rules of `overload_ladder`: up at once, down slowly, and never by one signal alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minserve.learn.admissions import LadderBase
from minserve.learn.conformance import BrokenRule, Ladder, Rules, Suite, showing
from minserve.scheduling.overload import LadderState, Rung, Signals

RULES = Rules()
rule = RULES.add
LEVELS = LadderBase.levels
NAMES = tuple(LEVELS)


class _Tried:
    """A ladder of the learner's, every call written down with its answer."""

    def __init__(self, part: Callable[[], Any]) -> None:
        self.ladder = part()
        self.lines = ["ladder = OverloadLadder()"]
        self.state = LadderState()

    def called(self, wanted: int, why: str, scale: float = 1.0, **signals: float) -> None:
        more = f", scale={scale:g}" if scale != 1 else ""
        found = self._ask(
            f"ladder.called_for({_said(signals)}{more})",
            lambda: self.ladder.called_for(Signals(**signals), scale),
        )
        if isinstance(found, bool) or not isinstance(found, int) or found != wanted:
            self.fail(f"{why}: rung {wanted} is called for, not {found!r}")

    def next(self, now_s: float, rung: int, why: str, **signals: float) -> None:
        before = self.state
        found = self._ask(
            f"state = ladder.next(state, {_said(signals)}, now_s={now_s:g})",
            lambda: self.ladder.next(before, Signals(**signals), now_s),
        )
        if not isinstance(found, LadderState):
            self.fail(f"next returns a LadderState; this is {found!r}")
        self.state = LadderState(Rung(found.rung), found.calm_since_s)
        if found.rung != rung:
            self.fail(f"{why}: it stands on rung {rung}, not {int(found.rung)}")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)

    def _ask(self, line: str, call: Callable[[], Any]) -> Any:
        self.lines.append(line)
        with showing(self.lines):
            answer = call()
        shown = answer
        if isinstance(answer, LadderState):
            shown = f"rung {int(answer.rung)}, calm since {answer.calm_since_s}"
        self.lines[-1] += f"   # -> {shown}"
        return answer


def _said(signals: dict[str, float]) -> str:
    return f"Signals({', '.join(f'{name}={value:g}' for name, value in signals.items())})"


@rule("called_for", "While nothing is near its level, rung 0 is called for.",
      "Count the levels that are reached; none is rung 0.")  # fmt: skip
def _calm_is_normal(part: Any) -> None:
    t = _Tried(part)
    t.called(0, "nothing waits")
    t.called(0, "1.9 s of work wait, the first level is 2", drain_s=1.9)


@rule("called_for", "Each level that a signal has reached is one rung.",
      "sum(value >= level for level in levels)")  # fmt: skip
def _each_level_is_a_rung(part: Any) -> None:
    for rung, level in enumerate(LEVELS["drain_s"], start=1):
        _Tried(part).called(rung, f"{level:g} s of waiting work reach level {rung}", drain_s=level)


@rule("called_for", "Each of the four signals can call.",
      "getattr(signals, name) for each name in self.levels")  # fmt: skip
def _every_signal_counts(part: Any) -> None:
    for name in NAMES:
        level = LEVELS[name][1]
        _Tried(part).called(2, f"{name} alone has reached its second level", **{name: level})


@rule("called_for", "The highest call counts; calls do not add up.",
      "max over the signals.")  # fmt: skip
def _highest_call_counts(part: Any) -> None:
    signals = {"drain_s": 2.0, "queue_age_s": 5.0, "deadline_risk": 0.1}
    _Tried(part).called(3, "the signals call for 1, 3 and 2", **signals)


@rule("called_for", "Every level is multiplied by `scale`.",
      "value >= scale * level; `next` uses it to let go later than it took hold.")  # fmt: skip
def _scale(part: Any) -> None:
    t = _Tried(part)
    t.called(0, "at the full level 1.7 s are less than 2", drain_s=1.7)
    t.called(1, "at 80 % of the level 1.7 s are more than 1.6", scale=0.8, drain_s=1.7)


@rule("next", "It climbs at once, as far as is called for.",
      "If more is called for than state.rung: LadderState(that rung).")  # fmt: skip
def _climbs_at_once(part: Any) -> None:
    _Tried(part).next(0, 3, "8 s of work wait, which calls for rung 3", drain_s=8.0)


@rule("next", "It comes down only after hold_s of calm.",
      "Remember in calm_since_s when calm began: LadderState(rung, now_s).")  # fmt: skip
def _holds(part: Any) -> None:
    t = _Tried(part)
    t.next(0, 3, "8 s of work wait", drain_s=8.0)
    t.next(10, 3, "calm begins at 10, and has not lasted yet")
    t.next(11.9, 3, "calm has lasted 1.9 s, and 2 are wanted")
    t.next(12, 2, "calm has lasted 2 s")


@rule("next", "It comes down one rung at a time, each after its own calm.",
      "Take 1 off, and let calm begin anew: LadderState(Rung(state.rung - 1), now_s).")  # fmt: skip
def _one_rung_at_a_time(part: Any) -> None:
    t = _Tried(part)
    t.next(0, 3, "8 s of work wait", drain_s=8.0)
    for now_s, rung in ((10, 3), (12, 2), (13, 2), (14, 1), (15, 1), (16, 0), (30, 0)):
        t.next(now_s, rung, "one rung down for each 2 s of calm from 10 on")


@rule("next", "A signal below its level, but not below `release` of it, keeps the rung.",
      "While self.called_for(signals, self.release) reaches the rung, stay.")  # fmt: skip
def _does_not_flutter(part: Any) -> None:
    t = _Tried(part)
    t.next(0, 1, "2 s of work wait", drain_s=2.0)
    for now_s in (1, 5, 20):
        t.next(now_s, 1, "1.9 s are below 2, and above 80 % of it", drain_s=1.9)


@rule("next", "A signal that comes back ends the calm.",
      "Staying means LadderState(state.rung), without calm_since_s.")  # fmt: skip
def _calm_starts_over(part: Any) -> None:
    t = _Tried(part)
    t.next(0, 1, "2 s of work wait", drain_s=2.0)
    t.next(10, 1, "calm begins")
    t.next(11, 1, "1.9 s wait again: that is no calm", drain_s=1.9)
    t.next(12.5, 1, "calm begins anew, at 12.5")
    t.next(14, 1, "calm since 12.5 has lasted 1.5 s")
    t.next(14.5, 0, "calm since 12.5 has lasted 2 s")


SUITE = Suite(
    "overload_ladder",
    ("called_for", "next"),
    tuple(RULES),
    {
        "called_for": Ladder(
            drawing="""\
levels of drain_s       2     4     8     16    32
5 s of waiting work     x     x     .     .     .       calls for rung 2
0.95 KV pressure        0.9 x 0.95 x ...                calls for rung 2
the highest call counts""",
            pseudocode="""\
for each signal: count its levels that are reached (value >= scale * level)
the largest count""",
            near_miss="""\
- return sum(value >= levels[0] for each signal)     # how many signals, not how high
+ return max(sum(value >= scale * level for level in levels) for each signal)""",
        ),
        "next": Ladder(
            drawing="""\
rung 3   +-----------+
rung 2   |           +--2 s--+
rung 1   |                   +--2 s--+
rung 0 --+                           +-----
       load comes    calm for 2 s, each rung""",
            pseudocode="""\
more is called for than the rung:           that, at once
with `release` the rung is still called for: the rung, no calm
no calm so far:                             the rung, calm since now
calm for less than hold_s:                  the state as it is
else:                                       one rung less, calm since now""",
            near_miss="""\
- return LadderState(self.called_for(signals))       # up and down with every request
+ if calm has lasted hold_s: return LadderState(Rung(state.rung - 1), now_s)""",
        ),
    },
)  # fmt: skip
