"""How much load does it bear? Rates are tried, bracketed and halved until the answer is close.

Every rate is served from an empty cache (or says that it is not): a cell that a cell before has
warmed up looks better than it is. A rate that lets the queue grow is over-saturated, and no higher
one is tried: there, latency only says how long the test was. A run may be too short to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minserve.errors import ConfigError
from minserve.loadtest.measures import Tally
from minserve.loadtest.record import REJECTED
from minserve.loadtest.steady import Queue

Serve = Callable[[float], Tally]
"""Serves the workload at a rate (requests per second), from a fresh start."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One rate, and what came of it."""

    rate_per_s: float
    queue: Queue
    attainment: float
    is_good: bool
    """Enough requests kept the objectives."""
    tally: Tally

    @property
    def is_met(self) -> bool:
        return self.is_good and self.is_steady

    @property
    def is_steady(self) -> bool:
        return self.queue is Queue.STEADY

    @property
    def said(self) -> str:
        """What came of it, in a word or three."""
        if self.queue is Queue.GROWS:
            return "queue grows"
        return "met" if self.is_met else str(self.queue) if self.is_good else "missed"

    def row(self) -> dict[str, Any]:
        """Plain values, for tables and pictures."""
        m = self.tally.measures()
        return {
            "rate_per_s": self.rate_per_s,
            "is_met": self.is_met,
            "said": self.said,
            "is_steady": self.is_steady,
            "queue": str(self.queue),
            "num_requests": m.num_requests,
            "attainment": self.attainment,
            "goodput_per_s": m.goodput_per_s,
            "output_tokens_per_s": m.output_tokens_per_s,
            "ttft_mean_s": m["ttft.mean"],
            "ttft_p50_s": m["ttft.p50"],
            "ttft_p99_s": m["ttft.p99"],
            "tpot_p99_s": m["tpot.p99"],
            "e2e_mean_s": m["e2e.mean"],
        }


@dataclass(frozen=True, slots=True)
class Sweep:
    """All cells by rate; `best_per_s` is the highest rate that met the objectives, if any."""

    cells: tuple[Cell, ...]
    best_per_s: float | None

    def rows(self) -> list[dict[str, Any]]:
        return [cell.row() for cell in self.cells]


def try_rate(serve: Serve, rate_per_s: float, target: float = 0.99) -> Cell:
    """Serve at one rate. It is met if a share `target` of requests is good and no queue grows."""
    tally = serve(rate_per_s)
    share, queue = _good_share(tally), tally.drift().queue
    return Cell(rate_per_s, queue, share, share >= target, tally)


def _good_share(tally: Tally) -> float:
    """The share of good requests, those that were turned away included."""
    m = tally.measures()
    turned_away = m.outcomes.get(REJECTED, 0) / max(1, m.num_requests)
    return (m.attainment or 0.0) * (1 - turned_away)


def with_enough(
    serve: Callable[[float, int], Tally], num_prompts: int, target: float = 0.99, doublings: int = 4
) -> Serve:
    """`serve(rate_per_s, num_prompts)` with as many as it takes to tell whether the queue grows.

    Twice as many are sent, again and again, while the objectives are met and no steady state is
    seen; a queue that really grows soon misses them. After `doublings`, or at the end of a trace,
    the run stays as it is.
    """

    def at(rate_per_s: float) -> Tally:
        for count in (num_prompts << doubled for doubled in range(doublings + 1)):
            tally = serve(rate_per_s, count)
            told = tally.drift().queue is Queue.STEADY or _good_share(tally) < target
            if told or tally.measures().num_requests < count:
                break
        return tally

    return at


def sweep(serve: Serve, rates_per_s: Iterable[float], target: float = 0.99) -> Sweep:
    """Try rates from the lowest up; stops at the first whose queue grows."""
    cells: list[Cell] = []
    for rate_per_s in sorted(rates_per_s):
        cells.append(try_rate(serve, rate_per_s, target))
        if cells[-1].queue is Queue.GROWS:
            break
    return Sweep(tuple(cells), max((c.rate_per_s for c in cells if c.is_met), default=None))


def capacity(
    serve: Serve,
    first_per_s: float,
    *,
    target: float = 0.99,
    precision: float = 0.05,
    max_cells: int = 24,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> Sweep:
    """The highest rate that meets the objectives, within `precision`: doubled, then halved.

    Raises `ConfigError` if a rate is not above 0.
    """
    if not 0 < first_per_s < math.inf or not 0 < precision < 1:
        raise ConfigError(f"rate {first_per_s}, precision {precision}", "use a rate above 0")
    cells: list[Cell] = []

    def is_met(rate_per_s: float) -> bool:
        cells.append(try_rate(serve, rate_per_s, target))
        on_cell(cells[-1])
        return cells[-1].is_met

    low, high = 0.0, math.inf
    rate = first_per_s
    while len(cells) < max_cells and (high == math.inf or low == 0.0):  # bracket it
        if is_met(rate):
            low, rate = rate, rate * 2
        else:
            high, rate = rate, rate / 2
    while len(cells) < max_cells and high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_met(middle) else (low, middle)
    cells.sort(key=lambda cell: cell.rate_per_s)
    return Sweep(tuple(cells), low or None)


def mg1_wait_s(rate_per_s: float, service_s: np.ndarray) -> float:
    """Mean wait of a single-server queue (Pollaczek and Khinchine): rate E[S^2] / 2(1 - rate E[S]).

    Infinite from saturation on. `service_s` are samples of how long the server is held by one
    request: for a batching engine, what one more request costs, not how long it takes.
    """
    load = rate_per_s * float(np.mean(service_s))
    if load >= 1:
        return math.inf
    return rate_per_s * float(np.mean(service_s**2)) / (2 * (1 - load))


def mg1_curve(
    best_per_s: float, unloaded_s: float, variability: float, top_per_s: float
) -> list[tuple[float, float]]:
    """(rate, mean latency in seconds) as M/G/1 has it, for a server that saturates at a rate.

    `unloaded_s` is the latency of a lone request, `variability` the squared coefficient of
    variation of the work of a request. An engine batches, so it does better than this in the
    middle; the shape, flat and then a wall, is the same.
    """
    mean_s = 1 / best_per_s
    spread = mean_s * math.sqrt(variability)
    service = np.array([max(0.0, mean_s - spread), mean_s + spread])
    rates = np.linspace(0.02, 0.99, 60) * best_per_s
    points = [(float(rate), unloaded_s + mg1_wait_s(rate, service)) for rate in rates]
    return [(rate, wait) for rate, wait in points if rate <= top_per_s]
