"""The rules of `roofline(flops, num_bytes, peak_flops, bytes_per_s)`."""

from __future__ import annotations

from collections.abc import Callable

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

Roofline = Callable[[float, float, float, float], tuple[float, str]]
COMPUTE, MEMORY = "compute", "memory"


class _Tried:
    """One call, and what came of it."""

    def __init__(self, roofline: Roofline, work: tuple[float, float], machine: tuple[float, float]):
        names = ("flops", "num_bytes", "peak_flops", "bytes_per_s")
        given = zip(names, (*work, *machine), strict=True)
        self.call = f"roofline({', '.join(f'{name}={value:g}' for name, value in given)})"
        with showing([self.call]):
            self.found = roofline(*work, *machine)
        if not isinstance(self.found, tuple) or len(self.found) != 2:
            self.fail(f"a pair (seconds, bound) is wanted; this is {returned(self.found)}")
        self.seconds, self.bound = self.found

    def fail(self, what: str) -> None:
        raise BrokenRule(what, (f"{self.call}   # -> {self.found!r}",))

    def takes(self, seconds: float, because: str) -> None:
        """To a percent: what the other limit adds may be tiny, but not nothing."""
        if not 0.99 * seconds <= self.seconds <= 1.01 * seconds:
            self.fail(f"{because}: {seconds:g} s, not {self.seconds:g}")

    def is_bound_by(self, bound: str, because: str) -> None:
        if self.bound != bound:
            self.fail(f'{because}: "{bound}" is expected, not {self.bound!r}')


def _returns_a_pair(roofline: Roofline) -> None:
    t = _Tried(roofline, (4.0, 1.0), (1.0, 1.0))
    if isinstance(t.seconds, bool) or not isinstance(t.seconds, (int, float)):
        t.fail(f"the first is a number of seconds; this is {t.seconds!r}")
    if t.bound not in (COMPUTE, MEMORY):
        t.fail(f'the second is "compute" or "memory"; this is {t.bound!r}')


def _calculating_takes_time(roofline: Roofline) -> None:
    for flops, peak in ((6.0, 1.0), (6.0, 2.0)):
        t = _Tried(roofline, (flops, 1.0), (peak, 1000.0))
        t.takes(flops / peak, f"{flops:g} operations at {peak:g} per second, memory no trouble")


def _moving_takes_time(roofline: Roofline) -> None:
    for num_bytes, rate in ((6.0, 1.0), (6.0, 2.0)):
        t = _Tried(roofline, (1.0, num_bytes), (1000.0, rate))
        t.takes(num_bytes / rate, f"{num_bytes:g} bytes at {rate:g} per second, arithmetic free")


def _the_slower_decides(roofline: Roofline) -> None:
    for work in ((4.0, 3.0), (3.0, 4.0)):
        t = _Tried(roofline, work, (1.0, 1.0))
        why = f"{work[0]:g} s of arithmetic and {work[1]:g} s of moving overlap"
        t.takes(4.0, why)


def _names_what_decides(roofline: Roofline) -> None:
    for work, bound in (((4.0, 1.0), COMPUTE), ((1.0, 4.0), MEMORY)):
        t = _Tried(roofline, work, (1.0, 1.0))
        t.is_bound_by(bound, f"{work[0]:g} s of arithmetic, {work[1]:g} s of moving")


def _the_machine_counts(roofline: Roofline) -> None:
    for machine, bound in (((10.0, 1.0), MEMORY), ((1.0, 10.0), COMPUTE)):
        t = _Tried(roofline, (4.0, 4.0), machine)
        arithmetic, moving = 4.0 / machine[0], 4.0 / machine[1]
        why = f"the same work, on this machine {arithmetic:g} s of arithmetic, {moving:g} of moving"
        t.is_bound_by(bound, why)


_STEP = "roofline"
RULES = (
    Rule(
        "returns_a_pair",
        _STEP,
        'The result is a pair: seconds, and "compute" or "memory".',
        'return seconds, "compute"',
        _returns_a_pair,
    ),
    Rule(
        "calculating_takes_time",
        _STEP,
        "Arithmetic takes at least flops / peak_flops seconds.",
        "Divide the work by the speed.",
        _calculating_takes_time,
    ),
    Rule(
        "moving_takes_time",
        _STEP,
        "Memory traffic takes at least num_bytes / bytes_per_s seconds.",
        "Divide the bytes by the bandwidth.",
        _moving_takes_time,
    ),
    Rule(
        "the_slower_decides",
        _STEP,
        "Both happen at once, so the slower of the two decides.",
        "max(...), not a sum.",
        _the_slower_decides,
    ),
    Rule(
        "names_what_decides",
        _STEP,
        "The bound is whichever takes longer.",
        'It is "compute" if the arithmetic takes longer than the moving.',
        _names_what_decides,
    ),
    Rule(
        "the_machine_counts",
        _STEP,
        "The same work can be bound by compute on one machine and by memory on another.",
        "Compare seconds with seconds, not operations with bytes.",
        _the_machine_counts,
    ),
)

SUITE = Suite(
    "roofline",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
6 operations at 2 per second, 8 bytes at 4 per second

  arithmetic  |======|======|======|      3 s
  moving      |======|======|             2 s, at the same time
              '-------- 3 s -------'      "compute\"""",
            pseudocode="""\
seconds of arithmetic = operations / operations per second
seconds of moving     = bytes / bytes per second
the larger one, and its name""",
            near_miss="""\
- seconds = flops / peak_flops + num_bytes / bytes_per_s
+ seconds = max(flops / peak_flops, num_bytes / bytes_per_s)""",
        )
    },
)
