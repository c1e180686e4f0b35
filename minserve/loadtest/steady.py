"""Does the queue keep growing? Told by whether who comes later waits longer, and how surely.

Where more comes than can be served, `load` times as much, a queue in order of arrival makes
everybody wait `load - 1` seconds longer for each second that they come later. A run that keeps up
has no such trend, once as many are in flight as usually are. So the trend is fitted to the middle
of the arrivals' time (the last ones find the machine emptier again), and its 95 % bounds say what
can be said: a short run can say too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from minserve.loadtest.over_time import Cohort

LIMIT = 0.05
"""A drift up to this counts as none: `capacity` is not told more closely either."""
MIDDLE = (0.3, 0.8)
"""Shares of the arrivals' time between which the trend is looked for."""
GROUPS = 6
MIN_COUNT = 50
"""Requests in the middle: neighbours wait alike, and the bounds of fewer would be too narrow."""
MIN_SERVICES = 5
"""How many times as long as an answer takes arrivals must last until as many as usual are there."""
STUDENT = (4.30, 3.18, 2.78)
"""The 97.5 % quantile of Student's t, for 2 to 4 degrees of freedom."""


class Queue(StrEnum):
    """What a run says of its queue."""

    STEADY = "steady"
    GROWS = "grows"
    TOO_FEW = "too few to tell"


@dataclass(frozen=True, slots=True)
class Drift:
    """Seconds by which an answer takes longer for each second that it is asked for later.

    `low` and `high` bound `slope` at 95 %. `why` is what makes it too few to tell, if that is so.
    """

    slope: float
    low: float
    high: float
    why: str = ""

    @property
    def queue(self) -> Queue:
        if self.low > 1:  # twice as much came as can be served: plain in however short a run
            return Queue.GROWS
        if self.why or self.low <= LIMIT < self.high:
            return Queue.TOO_FEW
        return Queue.GROWS if self.low > LIMIT else Queue.STEADY

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return self.why
        said = f"for each second later an answer takes {self.slope:+.3f} s longer"
        said += f" ({self.low:+.3f} to {self.high:+.3f})"
        return f"{said}; {self.why}" if self.why else said


UNKNOWN = Drift(0.0, -math.inf, math.inf, "too short a time to see a trend")


def drift_of(cohorts: Sequence[Cohort]) -> Drift:
    """The drift over cohorts that follow in time, at even distances from the first arrival on.

    What an answer takes is what one of average length would: long answers are no slow ones.
    """
    served = [each for each in cohorts if each.count]
    if not served:
        return UNKNOWN
    num_gaps = sum(each.num_gaps for each in served) / sum(each.count for each in served)
    service_s = num_gaps * sum(e.gaps_s for e in served) / max(1, sum(e.num_gaps for e in served))
    first, last = (round(share * len(cohorts)) for share in MIDDLE)
    groups = _grouped(cohorts[first:last])
    if len(groups) < 4:
        return UNKNOWN
    times_s = np.array([each.intended_s / each.count for each in groups])
    takes_s = np.array(
        [e.ttft_s / e.count + num_gaps * e.gaps_s / max(1, e.num_gaps) for e in groups]
    )
    slope, error = _fit(times_s, takes_s, np.array([each.count for each in groups]))
    bound = error * STUDENT[len(groups) - 4]
    lasted_s = served[-1].intended_s / served[-1].count - served[0].intended_s / served[0].count
    why = ""
    if lasted_s < MIN_SERVICES * service_s:
        why = f"arrivals took {lasted_s:.3g} s, an answer {service_s:.3g} s from its first token on"
    elif (count := sum(each.count for each in groups)) < MIN_COUNT:
        why = f"{count} requests are few"
    return Drift(slope, slope - bound, slope + bound, why)


def _grouped(cohorts: Sequence[Cohort]) -> list[Cohort]:
    """At most `GROUPS` cohorts, none empty: neighbours are alike, so a few large ones count."""
    groups = []
    for each in np.array_split(np.arange(len(cohorts)), GROUPS):
        group = Cohort()
        for index in each:
            group.take(cohorts[index])
        if group.count:
            groups.append(group)
    return groups


def _fit(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Slope of the weighted least-squares line, and its standard error."""
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    spread = float(weights @ x**2)
    slope = float(weights @ (x * y)) / spread
    left = float(weights @ (y - slope * x) ** 2)
    return slope, math.sqrt(left / (len(x) - 2) / spread)
