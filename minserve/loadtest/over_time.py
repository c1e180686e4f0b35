"""What happened in each stretch of a load test's time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minserve.loadtest.record import OK, Record


@dataclass(slots=True)
class Bin:
    """What happened in one stretch of time. `ttft_s` is the sum over requests intended in it."""

    arrived: int = 0
    ended: int = 0
    failed: int = 0
    tokens: int = 0
    ttft_s: float = 0.0
    num_ttft: int = 0

    def take(self, other: Bin) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Timeline:
    """Counts per stretch of time, in a bounded number of bins: they double in width when full."""

    MAX_BINS = 128

    def __init__(self, width_s: float = 1 / 64) -> None:
        self.width_s = width_s
        self.bins: list[Bin] = []

    def at(self, time_s: float) -> Bin:
        """The bin of a time, made if need be."""
        while (index := int(max(0.0, time_s) / self.width_s)) >= self.MAX_BINS:
            self.width_s *= 2
            halves = [*self.bins, Bin()] if len(self.bins) % 2 else self.bins
            for left, right in zip(halves[::2], halves[1::2], strict=True):
                left.take(right)
            self.bins = halves[::2]
        while len(self.bins) <= index:
            self.bins.append(Bin())
        return self.bins[index]

    def add(self, record: Record) -> None:
        arrived = self.at(record.intended_s)
        arrived.arrived += 1
        if record.outcome == OK and record.times_s:
            arrived.ttft_s += record.times_s[0] - record.intended_s
            arrived.num_ttft += 1
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
