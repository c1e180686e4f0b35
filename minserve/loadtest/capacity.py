"""How many replicas, and when to have more: planned from traffic, objectives and a forecast.

A replica that is asked for serves only once its model has loaded, so a peak must be seen coming or
be paid for with warm capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from minserve.errors import ConfigError
from minserve.loadtest.measures import Tally
from minserve.loadtest.sweep import Cell, try_rate


@dataclass(frozen=True, slots=True)
class Plan:
    """The fewest replicas that keep the objectives, and what was tried on the way."""

    num_replicas: int | None
    cells: tuple[tuple[int, Cell], ...]


def fewest_replicas(
    serve: Callable[[int], Callable[[float], Tally]],
    rate_per_s: float,
    *,
    target: float = 0.99,
    most: int = 64,
    on_cell: Callable[[int, Cell], None] = lambda count, cell: None,
) -> Plan:
    """The smallest fleet that serves `rate_per_s` within the objectives; None if `most` do not.

    `serve(count)(rate)` runs the traffic on that many replicas. More replicas are assumed to be no
    worse, so the answer is found by doubling and halving.
    """
    if most < 1:
        raise ConfigError(f"at most {most} replicas", "allow at least 1")
    tried: dict[int, Cell] = {}

    def is_enough(count: int) -> bool:
        if count not in tried:
            tried[count] = try_rate(serve(count), rate_per_s, target)
            on_cell(count, tried[count])
        return tried[count].is_met

    high = 1
    while not is_enough(high) and high < most:
        high = min(2 * high, most)
    if not is_enough(high):
        return Plan(None, tuple(sorted(tried.items())))
    low = max((count for count in tried if not tried[count].is_met), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return Plan(high, tuple(sorted(tried.items())))


# -- scaling by signals


@dataclass(frozen=True, slots=True)
class Signals:
    """What an autoscaler may look at, over all replicas that serve now."""

    now_s: float
    num_replicas: int
    num_loading: int
    queued_tokens: int
    oldest_wait_s: float
    num_running: int
    kv_pressure: float
    utilisation: float
    """Share of the last interval in which a replica was computing something, whatever it was."""


class Scaling(Protocol):
    """How many replicas there should be."""

    def __call__(self, signals: Signals) -> int: ...


TOKENS, AGE, FULLNESS = BACKLOG = ("queued tokens", "queue age", "KV pressure")


@dataclass(slots=True)
class OnBacklog:
    """Scale on what waits: queued tokens, the age of the queue, and KV pressure.

    As many replicas as work off the queued tokens within `drain_s`; one more while the oldest has
    waited that long or the KV cache is nearly full. One fewer after `calm` looks in a row at which
    nobody waited and the KV cache of the others had room. `looks_at` leaves out what it does not
    name when more are asked for, to see what each signal is worth.

    A replica serves `load_s` after it is asked for, and the queue grows until then. So what those
    that serve cannot work off within `drain_s` is spread over that time too, and those that are
    loading are taken for it first.
    """

    tokens_per_s: float
    drain_s: float
    max_kv_pressure: float = 0.85
    max_running: int = 128
    calm: int = 4
    looks_at: Collection[str] = BACKLOG
    load_s: float = 0.0
    _num_calm: int = field(default=0, init=False)

    def __call__(self, signals: Signals) -> int:
        count = signals.num_replicas + signals.num_loading
        fullness = max(
            signals.kv_pressure / self.max_kv_pressure,
            signals.num_running / (self.max_running * signals.num_replicas),
        )
        is_old = AGE in self.looks_at and signals.oldest_wait_s > self.drain_s
        is_late = is_old or (FULLNESS in self.looks_at and fullness > 1)
        queued_s = signals.queued_tokens / self.tokens_per_s if TOKENS in self.looks_at else 0.0
        left_s = queued_s - signals.num_replicas * self.drain_s
        needed = signals.num_replicas + math.ceil(left_s / (self.drain_s + self.load_s))
        if needed > count or (is_late and not signals.num_loading):
            self._num_calm = 0
            return max(needed, count + 1)
        has_room = fullness * signals.num_replicas < 0.7 * (signals.num_replicas - 1)
        self._num_calm = self._num_calm + 1 if has_room and not is_late else 0
        if self._num_calm < self.calm:
            return count
        self._num_calm = 0
        return count - 1


@dataclass(slots=True)
class OnUtilisation:
    """Scale to keep the share of busy time near `target`, as one would a stateless service.

    An engine is busy as soon as it has one request: with few it looks as full as with many, and
    the queue behind a full one does not show at all.
    """

    target: float = 0.7

    def __call__(self, signals: Signals) -> int:
        return max(1, math.ceil(signals.num_replicas * signals.utilisation / self.target))


@dataclass(slots=True)
class OnForecast:
    """`rule`, but no fewer than what is forecast for `ahead_s` later takes.

    A replica serves only when its model has loaded: `ahead_s` is that time, and one look more.
    """

    rule: Scaling
    rate_per_s: Callable[[float], float]
    """Forecast requests per second at a time."""
    per_replica_per_s: float
    ahead_s: float

    def __call__(self, signals: Signals) -> int:
        coming = max(self.rate_per_s(signals.now_s + s) for s in (0.0, self.ahead_s))
        return max(self.rule(signals), math.ceil(coming / self.per_replica_per_s))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A scaling rule on one run of traffic."""

    name: str
    attainment: float
    ttft_p99_s: float
    replica_hours: float
    most_replicas: int
    history: Sequence[tuple[float, int, int]]
    """(time, replicas that serve, queued tokens)."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the history."""
        return {
            "rule": self.name,
            "attainment": self.attainment,
            "ttft_p99_s": self.ttft_p99_s,
            "replica_hours": self.replica_hours,
            "most_replicas": self.most_replicas,
        }
