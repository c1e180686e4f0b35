"""What a load test measures, from the times at which chunks came: pure, the same on every clock.

Definitions. t0 is the intended send time; t_first and t_last are the first and last chunk that
bears a token (not a role, an empty chunk, the usage or `[DONE]`); N is the server's own count of
output tokens.

    dispatch delay   sent - t0: what the load generator itself added, reported, never hidden
    TTFT             t_first - t0
    TPOT             (t_last - t_first) / (N - 1) of one request; none for N < 2
    ITL              gaps between chunks, pooled over requests, weighted by the chunk's tokens:
                     N tokens give N - 1 gaps, and the time to the first token is none of them
    e2e              t_last - t0
    goodput          requests that meet all objectives, per second
    attainment       good / (ok + errors + timeouts)

"Uncorrected" is the same from the time of sending. Where a stalled server holds up the sender, it
leaves out the very requests that suffered (coordinated omission; Tene, 2013): shown beside, never
instead. Errors, rejections and timeouts are counted apart and never speed up a latency.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from minserve.errors import ConfigError
from minserve.metrics import percentile

OK, ERROR, REJECTED, TIMEOUT, CANCELLED = "ok", "error", "rejected", "timeout", "cancelled"
UNFINISHED = "unfinished"
SHARES = (0.5, 0.9, 0.95, 0.99)


@dataclass(slots=True)
class Record:
    """One request as its sender saw it, in seconds on the sender's clock; None until then.

    `times_s[i]` is when the i-th chunk with tokens came, and `counts[i]` how many tokens it bore.
    `num_output_tokens` is the server's own count, where it gave one. `count_source` says how
    `counts` are known.
    """

    id: str
    intended_s: float
    sent_s: float | None = None
    ended_s: float | None = None
    outcome: str = UNFINISHED
    error: str = ""
    kind: str = ""
    deadline_s: float | None = None
    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    count_source: str = "engine"
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int = 0
    queue_delay_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens: the server's count, or else what its chunks bore."""
        return sum(self.counts) if self.num_output_tokens is None else self.num_output_tokens

    @property
    def dispatch_delay_s(self) -> float | None:
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        return self.times_s[0] - self.intended_s if self.times_s else None

    @property
    def uncorrected_ttft_s(self) -> float | None:
        return self.times_s[0] - self.sent_s if self.times_s else None

    @property
    def e2e_s(self) -> float | None:
        return self.times_s[-1] - self.intended_s if self.times_s else None

    @property
    def uncorrected_e2e_s(self) -> float | None:
        return self.times_s[-1] - self.sent_s if self.times_s else None

    @property
    def tpot_s(self) -> float | None:
        if self.num_tokens < 2 or not self.times_s:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.num_tokens - 1)

    def gaps_s(self) -> np.ndarray:
        """Inter-token latencies `[num_tokens - 1] float64`.

        A chunk of k tokens is k gaps of a k-th each; the first chunk's own gaps are 0.
        """
        if len(self.times_s) == len(self.counts) == sum(self.counts):  # one token a chunk
            return np.diff(np.array(self.times_s))
        counts = np.array(self.counts)
        each = np.diff(np.array(self.times_s), prepend=self.times_s[:1]) / np.maximum(counts, 1)
        return np.repeat(each, counts)[1:]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, one line of the per-request file; latencies beside raw times."""
        latencies = ("ttft_s", "uncorrected_ttft_s", "tpot_s", "e2e_s", "dispatch_delay_s")
        return asdict(self) | {name: getattr(self, name) for name in latencies}


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a good request must keep to, all of it, in seconds; None asks for nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Objectives:
        """From `ttft:500`, `tpot:50`, `e2el:2000` (milliseconds). Raises `ConfigError`."""
        fields = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s", "e2e": "e2e_s"}
        found: dict[str, float] = {}
        for text in (part for given in texts for part in given.replace(",", " ").split()):
            name, _, limit = text.partition(":")
            try:
                milliseconds = float(limit)
            except ValueError:
                milliseconds = 0.0
            if name not in fields or not 0 < milliseconds < math.inf:
                hint = "write ttft:500, tpot:50 or e2el:2000, in milliseconds"
                raise ConfigError(f"objective {text!r}", hint)
            found[fields[name]] = milliseconds / 1000
        return cls(**found)

    @property
    def is_empty(self) -> bool:
        return self.ttft_s is self.tpot_s is self.e2e_s is None

    def met_by(self, record: Record) -> bool:
        """It ended well and kept every limit; an answer of one token has no TPOT to miss."""

        def keeps(limit: float | None, value: float | None) -> bool:
            return limit is None or value is None or value <= limit

        return (
            record.outcome == OK
            and keeps(self.ttft_s, record.ttft_s)
            and keeps(self.tpot_s, record.tpot_s)
            and keeps(self.e2e_s, record.e2e_s)
        )

    def __str__(self) -> str:
        limits = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "e2e": self.e2e_s}
        parts = [f"{name} <= {1000 * s:g} ms" for name, s in limits.items() if s is not None]
        return ", ".join(parts) or "none"


# -- distributions


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

    count: int

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


# -- over time


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


# -- all of it


@dataclass(frozen=True, slots=True)
class Figures:
    """One latency, summarised; bounds are of each percentile, at 95 % each, None if too few."""

    count: int
    mean: float | None
    percentiles: dict[str, float | None]
    bounds: dict[str, tuple[float | None, float | None]]

    @classmethod
    def of(cls, values: Distribution, bounds: bool = True) -> Figures:
        """Summarise; without `bounds` for values that hang together, as gaps of one request do."""
        names = {f"p{100 * share:g}": share for share in SHARES}
        found = {}
        for name, share in names.items() if bounds else ():
            ranks = bound_ranks(values.count, share)
            found[name] = tuple(values.ranked(rank) if rank else None for rank in ranks)
        at = {name: values.percentile(share) for name, share in names.items()}
        at["max"] = values.percentile(1.0)
        return cls(values.count, values.mean(), at, found)

    def __getitem__(self, name: str) -> float | None:
        return self.mean if name == "mean" else self.percentiles[name]


LATENCIES = (
    "ttft",
    "uncorrected_ttft",
    "tpot",
    "itl",
    "e2e",
    "uncorrected_e2e",
    "queue_delay",
    "dispatch_delay",
)


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one run. Seconds, tokens and counts; None where there is no sample.

    Rates are over `duration_s`, from the first intended send to the last end, so that they compare
    with other tools'; `steady_tokens_per_s` leaves out the first tenth of the arrivals and what
    came after the last arrival, which a long last answer would drag out.
    """

    outcomes: dict[str, int]
    duration_s: float
    offered_per_s: float | None
    requests_per_s: float | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    steady_tokens_per_s: float | None
    num_good: int | None
    goodput_per_s: float | None
    attainment: float | None
    deadline_attainment: float | None
    latencies: dict[str, Figures]
    count_sources: dict[str, int]

    @property
    def num_requests(self) -> int:
        return sum(self.outcomes.values())

    @property
    def num_ok(self) -> int:
        return self.outcomes.get(OK, 0)

    def __getitem__(self, name: str) -> float | None:
        """A percentile by name, such as `ttft.p95`, in seconds."""
        figure, _, at = name.partition(".")
        return self.latencies[figure][at]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Tally:
    """Takes in records one by one, each once it has ended, and keeps none of them.

    With `exact` every latency is kept as a number, for exact percentiles; without, in histograms,
    so that memory does not grow with the number of requests.
    """

    def __init__(self, objectives: Objectives = Objectives(), exact: bool = True) -> None:
        self.objectives = objectives
        self.exact = exact
        self.values: dict[str, Distribution] = {
            name: Samples() if exact else Histogram() for name in LATENCIES
        }
        self.timeline = Timeline()
        self.by_kind: dict[str, Tally] = {}
        self.lengths: dict[str, Counter[int]] = {"prompt": Counter(), "output": Counter()}
        self._outcomes: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._first_s, self._last_arrival_s, self._last_s = math.inf, -math.inf, -math.inf

    def add(self, record: Record) -> None:
        """Count one request; its latencies only if it ended well."""
        self._add(record)
        if record.kind:
            if record.kind not in self.by_kind:
                self.by_kind[record.kind] = Tally(self.objectives, self.exact)
            self.by_kind[record.kind]._add(record)

    def _add(self, record: Record) -> None:
        self._outcomes[record.outcome] += 1
        self.timeline.add(record)
        self._first_s = min(self._first_s, record.intended_s)
        self._last_arrival_s = max(self._last_arrival_s, record.intended_s)
        if record.ended_s is not None:
            self._last_s = max(self._last_s, record.ended_s)
        if record.dispatch_delay_s is not None:
            self.values["dispatch_delay"].add(record.dispatch_delay_s)
        if record.deadline_s is not None and record.outcome != CANCELLED:
            self._totals["due"] += 1
            in_time = record.ended_s is not None and record.ended_s <= record.deadline_s
            self._totals["in_time"] += record.outcome == OK and in_time
        if record.outcome != OK:
            return
        self._totals["good"] += self.objectives.met_by(record)
        num_tokens = record.num_tokens
        self._totals["prompt_tokens"] += record.num_prompt_tokens or 0
        self._totals["output_tokens"] += num_tokens
        self._totals["cached_tokens"] += record.num_cached_tokens
        self._sources[record.count_source] += 1
        self.lengths["prompt"][_rounded(record.num_prompt_tokens or 0)] += 1
        self.lengths["output"][_rounded(num_tokens)] += 1
        for name in LATENCIES:
            if name not in ("itl", "dispatch_delay"):
                value = getattr(record, f"{name}_s")
                if value is not None:
                    self.values[name].add(value)
        if len(record.times_s) > 1 or sum(record.counts) > 1:
            self.values["itl"].add_many(record.gaps_s())

    def measures(self) -> Measures:
        """All figures, so far."""
        duration_s = max(0.0, self._last_s - self._first_s) if self._outcomes else 0.0
        totals, outcomes = self._totals, dict(self._outcomes)
        tried = sum(outcomes.get(name, 0) for name in (OK, ERROR, TIMEOUT))
        arriving_s = self._last_arrival_s - self._first_s if self._outcomes else 0.0
        asked = not self.objectives.is_empty

        def per_s(count: int) -> float | None:
            return count / duration_s if duration_s > 0 else None

        num = sum(outcomes.values())
        return Measures(
            outcomes=outcomes,
            duration_s=duration_s,
            offered_per_s=(num - 1) / arriving_s if arriving_s > 0 else None,
            requests_per_s=per_s(outcomes.get(OK, 0)),
            prompt_tokens=totals["prompt_tokens"],
            output_tokens=totals["output_tokens"],
            cached_tokens=totals["cached_tokens"],
            output_tokens_per_s=per_s(totals["output_tokens"]),
            total_tokens_per_s=per_s(totals["prompt_tokens"] + totals["output_tokens"]),
            steady_tokens_per_s=self._steady_tokens_per_s(),
            num_good=totals["good"] if asked else None,
            goodput_per_s=per_s(totals["good"]) if asked else None,
            attainment=totals["good"] / tried if asked and tried else None,
            deadline_attainment=totals["in_time"] / totals["due"] if totals["due"] else None,
            latencies={n: Figures.of(v, bounds=n != "itl") for n, v in self.values.items()},
            count_sources=dict(self._sources),
        )

    def steady_bins(self) -> Sequence[Bin]:
        """The bins from a tenth of the arrivals' time on, up to the last arrival."""
        if not self._outcomes:
            return ()
        width_s, last_s = self.timeline.width_s, self._last_arrival_s
        first_s = self._first_s + 0.1 * (last_s - self._first_s)
        return self.timeline.bins[
            math.ceil(first_s / width_s) : int(self._last_arrival_s / width_s)
        ]

    def _steady_tokens_per_s(self) -> float | None:
        bins = self.steady_bins()
        if len(bins) < 4:
            return None
        return sum(each.tokens for each in bins) / (len(bins) * self.timeline.width_s)


def _rounded(num_tokens: int) -> int:
    """A length to two figures, so that their number stays bounded."""
    step = 10 ** max(0, len(str(num_tokens)) - 2)
    return num_tokens // step * step
