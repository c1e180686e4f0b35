"""What happened in each stretch of a load test's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np

from minserve.loadtest.record import OK, Record


@dataclass(slots=True)
class _Sums:
    """Sums of one stretch of time: those of two stretches add up."""

    def take(self, other: _Sums) -> None:
        """Add those of the stretch that follows."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Bin(_Sums):
    """What happened in one stretch of time."""

    arrived: int = 0
    ended: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Cohort(_Sums):
    """Who was to be sent in one stretch of time and was served well: sums over these requests.

    `gaps_s` is from first to last token, over `num_gaps` tokens after the first.
    """

    count: int = 0
    intended_s: float = 0.0
    ttft_s: float = 0.0
    gaps_s: float = 0.0
    num_gaps: int = 0

    def add(self, record: Record) -> None:
        self.count += 1
        self.intended_s += record.intended_s
        self.ttft_s += record.times_s[0] - record.intended_s
        self.gaps_s += record.times_s[-1] - record.times_s[0]
        self.num_gaps += max(0, record.num_tokens - 1)


B = TypeVar("B", bound=_Sums)


class Stretches(Generic[B]):
    """Sums per stretch of time, in a bounded number of bins: they double in width when full."""

    MAX_BINS = 128

    def __init__(self, make: Callable[[], B], width_s: float = 1 / 64) -> None:
        self.width_s = width_s
        self.bins: list[B] = []
        self._make = make

    def at(self, time_s: float) -> B:
        """The bin of a time, made if need be."""
        while (index := int(max(0.0, time_s) / self.width_s)) >= self.MAX_BINS:
            self.width_s *= 2
            halves = [*self.bins, self._make()] if len(self.bins) % 2 else self.bins
            for left, right in zip(halves[::2], halves[1::2], strict=True):
                left.take(right)
            self.bins = halves[::2]
        while len(self.bins) <= index:
            self.bins.append(self._make())
        return self.bins[index]


class Timeline(Stretches[Bin]):
    """Arrivals, ends and tokens over time."""

    def __init__(self, width_s: float = 1 / 64) -> None:
        super().__init__(Bin, width_s)

    def add(self, record: Record) -> None:
        self.at(record.intended_s).arrived += 1
        if record.times_s:
            self.at(record.times_s[-1])  # now every earlier bin exists, and the width is final
            places = (np.array(record.times_s) / self.width_s).astype(int)
            for index, num_tokens in enumerate(
                np.bincount(np.maximum(places, 0), weights=record.counts)[places[0] :], places[0]
            ):
                self.bins[index].tokens += int(num_tokens)
        if record.ended_s is not None:
            ended = self.at(record.ended_s)
            ended.ended += 1
            ended.failed += record.outcome != OK

    def in_flight(self) -> list[int]:
        """Requests that had arrived and not ended, at the end of each bin."""
        levels, level = [], 0
        for each in self.bins:
            level += each.arrived - each.ended
            levels.append(level)
        return levels
