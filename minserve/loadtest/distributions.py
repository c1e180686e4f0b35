"""Many values of one figure: exact or in buckets, and how sure a percentile of them is."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Protocol

import numpy as np

from minserve.errors import ConfigError
from minserve.metrics import percentile


def bound_ranks(count: int, share: float, confidence: float = 0.95) -> tuple[int, int]:
    """Ranks (from 1) of the order statistics that bound a percentile; 0 where there is none.

    With probability `confidence` each, the true percentile is at least the lower one and at most
    the upper one, whatever the distribution, for independent samples. The upper bound of a p99
    takes 299 samples: 1 - 0.99^299 is the first to reach 0.95.
    """
    if count < 1:
        return 0, 0
    mean, spread = count * share, 10 * math.sqrt(count * share * (1 - share)) + 10
    first, last = max(0, int(mean - spread)), min(count, int(mean + spread))
    log_p, log_q = math.log(share), math.log1p(-share)
    log_count = math.lgamma(count + 1)
    below, lower, upper = 0.0, 0, 0
    for hits in range(first, last + 1):  # P(so many samples lie below the percentile)
        log_ways = log_count - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
        below += math.exp(log_ways + hits * log_p + (count - hits) * log_q)
        if below <= 1 - confidence:
            lower = hits + 1
        if below >= confidence:
            upper = hits + 1
            break
    return lower, upper if upper <= count else 0


class Distribution(Protocol):
    """Values of one figure, in seconds."""

    @property
    def count(self) -> int: ...

    def add(self, value: float) -> None: ...

    def add_many(self, values: np.ndarray) -> None: ...

    def percentile(self, share: float) -> float | None: ...

    def ranked(self, rank: int) -> float:
        """The `rank`-th smallest value, from 1."""

    def mean(self) -> float | None: ...

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted values, and the share of all that each is at least as large as."""


class Samples:
    """Every value, raw: exact percentiles, eight bytes each."""

    def __init__(self) -> None:
        self._values = array("d")
        self._sorted = True

    @property
    def count(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        self._sorted = False

    def add_many(self, values: np.ndarray) -> None:
        self._values.frombytes(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        self._sorted = False

    def percentile(self, share: float) -> float | None:
        return percentile(self._ordered(), share)

    def ranked(self, rank: int) -> float:
        return self._ordered()[rank - 1]

    def mean(self) -> float | None:
        return math.fsum(self._values) / self.count if self.count else None

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        values = np.array(self._ordered())
        return values, np.arange(1, len(values) + 1) / max(1, len(values))

    def _ordered(self) -> array:
        if not self._sorted:
            values = np.frombuffer(self._values, dtype=np.float64).copy()
            values.sort()
            self._values, self._sorted = array("d", values.tobytes()), True
        return self._values


class Histogram:
    """Counts in buckets that grow by 1 %: bounded memory, values within 0.5 %.

    Begins at a microsecond, well below the fastest service, so that nothing hides in the first
    bucket. Two histograms can be merged by adding counts; percentiles can not.
    """

    SMALLEST_S, GROWTH = 1e-6, 1.01

    def __init__(self) -> None:
        self.count = 0
        self.buckets: Counter[int] = Counter()
        self._sum = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value
        bucket = -1
        if value >= self.SMALLEST_S:
            bucket = int(math.log(value / self.SMALLEST_S) / math.log(self.GROWTH))
        self.buckets[bucket] += 1

    def add_many(self, values: np.ndarray) -> None:
        for value in values:
            self.add(value)

    def merge(self, other: Histogram) -> None:
        """Take in the values of another."""
        self.count += other.count
        self._sum += other._sum
        self.buckets.update(other.buckets)

    def percentile(self, share: float) -> float | None:
        return self.ranked(1 + int(share * (self.count - 1))) if self.count else None

    def ranked(self, rank: int) -> float:
        left = rank
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return self._middle(bucket)
        raise ConfigError(f"rank {rank} of {self.count} values", "use 1 up to their number")

    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        buckets = sorted(self.buckets)
        shares = np.cumsum([self.buckets[b] for b in buckets]) / max(1, self.count)
        return np.array([self._middle(b) for b in buckets]), shares

    def _middle(self, bucket: int) -> float:
        return 0.0 if bucket < 0 else self.SMALLEST_S * self.GROWTH ** (bucket + 0.5)
