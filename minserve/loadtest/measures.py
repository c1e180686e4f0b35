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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minserve.errors import ConfigError
from minserve.loadtest.distributions import Distribution, Histogram, Samples, bound_ranks
from minserve.loadtest.over_time import Bin, Cohort, Stretches, Timeline
from minserve.loadtest.record import CANCELLED, ERROR, OK, TIMEOUT, Record
from minserve.loadtest.steady import Drift, drift_of
from minserve.metrics import band

SHARES = (0.5, 0.9, 0.95, 0.99)


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
            low, high = (values.ranked(rank) if rank else None for rank in ranks)
            found[name] = low, high
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


class Segment:
    """Answers that have one thing in common: how many, and their waits in histograms."""

    def __init__(self) -> None:
        self.ttft, self.tpot = Histogram(), Histogram()
        self.count = 0

    def add(self, record: Record) -> None:
        self.count += 1
        for values, value in ((self.ttft, record.ttft_s), (self.tpot, record.tpot_s)):
            if value is not None:
                values.add(value)

    def as_dict(self) -> dict[str, Any]:
        """Plain values: counts and seconds, within 0.5 %."""
        told: dict[str, Any] = {"answers": self.count}
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot)):
            told |= {f"{name}_p{q}_s": values.percentile(q / 100) for q in (50, 95)}
        return told


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
        self.cohorts = Stretches(Cohort)
        self.by_kind: dict[str, Tally] = {}
        self.segments: dict[str, dict[str, Segment]] = {}
        """Of answers, by `prompt` and `output` (length band) and `prefix` (cached or not)."""
        self.lengths: dict[str, Counter[int]] = {"prompt": Counter(), "output": Counter()}
        self._outcomes: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._first_s, self._last_arrival_s, self._last_s = math.inf, -math.inf, -math.inf

    def add(self, record: Record) -> None:
        """Count one request; its latencies only if it ended well."""
        self._add(record)
        if record.outcome == OK:
            for what, label in (
                ("prompt", band(record.num_prompt_tokens or 0)),
                ("output", band(record.num_tokens)),
                ("prefix", "cached" if record.num_cached_tokens else "not cached"),
            ):
                self.segments.setdefault(what, {}).setdefault(label, Segment()).add(record)
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
        if record.times_s:
            self.cohorts.at(record.intended_s).add(record)
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

    def drift(self) -> Drift:
        """How much longer answers take for who comes later."""
        return drift_of(self.cohorts.bins)

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
