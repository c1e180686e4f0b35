"""The rules of `open_loop(rate, count, serve)`: a sender that a stall cannot deceive."""

from __future__ import annotations

from collections.abc import Callable

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, showing
from minserve.learn.parts_of_load import Sent

Loop = Callable[[float, int, Callable[[float], float]], list[Sent]]


class _Tried:
    """One run against a server whose answers take the given times."""

    def __init__(self, loop: Loop, rate_per_s: float, service_s: list[float]) -> None:
        self.service_s = service_s
        self.sent_s: list[float] = []
        self.example = [
            f"service times: {', '.join(f'{s:g}' for s in service_s)} s",
            f"open_loop({rate_per_s:g}, {len(service_s)}, serve)",
        ]

        def serve(now_s: float) -> float:
            if len(self.sent_s) == len(service_s):
                self.fail(f"request {len(service_s) + 1} was sent, and there are {len(service_s)}")
            self.sent_s.append(now_s)
            return now_s + service_s[len(self.sent_s) - 1]

        with showing(self.example):
            self.found = loop(rate_per_s, len(service_s), serve)
        self.example.append(f"sent at {self.sent_s}")
        is_list = isinstance(self.found, list) and all(isinstance(s, Sent) for s in self.found)
        if not is_list or len(self.found) != len(service_s):
            self.fail(f"a list of {len(service_s)} Sent is wanted; this is {self.found!r}")
        if len(self.sent_s) != len(service_s):
            self.fail(f"{len(self.sent_s)} of {len(service_s)} requests were sent")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.example)

    def expect(self, what: str, found: list[float], right: list[float], because: str) -> None:
        for number, (value, wanted) in enumerate(zip(found, right, strict=True)):
            if abs(value - wanted) > 1e-9:
                self.fail(f"{what} of request {number} is {wanted:g}, not {value:g}: {because}")


def _sends_each_once(loop: Loop) -> None:
    for count in (0, 1, 3):
        _Tried(loop, 1.0, [0.1] * count)


def _schedule(loop: Loop) -> None:
    t = _Tried(loop, 4.0, [0.01] * 4)
    right = [0.0, 0.25, 0.5, 0.75]
    t.expect("the intended time", [s.intended_s for s in t.found], right, "4 a second from 0 on")


def _never_early(loop: Loop) -> None:
    t = _Tried(loop, 4.0, [0.01] * 4)
    for number, (sent_s, each) in enumerate(zip(t.sent_s, t.found, strict=True)):
        if sent_s < each.intended_s - 1e-9:
            t.fail(f"request {number} went at {sent_s:g}, before its time of {each.intended_s:g}")


def _as_soon_as_it_can(loop: Loop) -> None:
    t = _Tried(loop, 1.0, [2.5, 0.1, 0.1, 0.1])
    right = [0.0, 2.5, 2.6, 3.0]
    t.expect("the time of sending", t.sent_s, right, "its own time, or when the connection is free")


def _stall_moves_no_schedule(loop: Loop) -> None:
    t = _Tried(loop, 1.0, [2.5, 0.1, 0.1, 0.1])
    right = [0.0, 1.0, 2.0, 3.0]
    because = "people go on arriving while the server stalls"
    t.expect("the intended time", [s.intended_s for s in t.found], right, because)


def _latency_from_the_intended_time(loop: Loop) -> None:
    t = _Tried(loop, 1.0, [2.5, 0.1, 0.1, 0.1])
    right = [2.5, 1.6, 0.7, 0.1]
    because = "who was meant to go during the stall has waited since then"
    t.expect("the latency", [s.latency_s for s in t.found], right, because)


def _uncorrected_from_sending(loop: Loop) -> None:
    t = _Tried(loop, 1.0, [2.5, 0.1, 0.1, 0.1])
    right = [2.5, 0.1, 0.1, 0.1]
    because = "from the sending, to show what that leaves out"
    t.expect("the uncorrected latency", [s.uncorrected_s for s in t.found], right, because)


_STEP = "open_loop"
RULES = (
    Rule(
        "sends_each_once",
        _STEP,
        "Every request is sent once, and has one Sent.",
        "Call serve once in each round of the loop.",
        _sends_each_once,
    ),
    Rule(
        "schedule",
        _STEP,
        "Request i is meant for i / rate seconds: the schedule is fixed beforehand.",
        "Compute it from the request's number, not from the time before.",
        _schedule,
    ),
    Rule(
        "never_early",
        _STEP,
        "No request goes before its time, however fast the server is.",
        "Wait for the intended time: the later of that and when the connection is free.",
        _never_early,
    ),
    Rule(
        "stall_moves_no_schedule",
        _STEP,
        "A stalled server changes no intended time.",
        "Do not count on from when the last answer came.",
        _stall_moves_no_schedule,
    ),
    Rule(
        "as_soon_as_it_can",
        _STEP,
        "A request that is late goes as soon as the connection is free.",
        "serve(...) returns when that is: remember it.",
        _as_soon_as_it_can,
    ),
    Rule(
        "latency_from_the_intended_time",
        _STEP,
        "Latency counts from the intended time.",
        "The end minus intended_s: waiting for the connection is part of it.",
        _latency_from_the_intended_time,
    ),
    Rule(
        "uncorrected_from_sending",
        _STEP,
        "Beside it stands the latency from the sending.",
        "The end minus the time at which you called serve.",
        _uncorrected_from_sending,
    ),
)

SUITE = Suite(
    "open_loop",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
meant to go   0         1         2         3
server        [====== a stall of 2.5 s ====][1][2]  [3]
latency of 1            '-------------------'--'        from when it was meant to go
uncorrected                                 '--'        the stall is not in it""",
            pseudocode="""\
the connection is free at 0
for each request:
    intended = number / rate
    now      = the later of intended and when the connection is free
    free     = serve(now)
    latency  = free - intended;  uncorrected = free - now""",
            near_miss="""\
- sent.append(Sent(now_s, end_s - now_s, end_s - now_s))      # forgets who should have gone
+ sent.append(Sent(intended_s, end_s - intended_s, end_s - now_s))""",
        )
    },
)
