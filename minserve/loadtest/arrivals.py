"""When requests arrive: endless, seeded sequences of times, for either clock.

Open loop: the times are fixed beforehand, so a slow server gets no easier traffic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from itertools import repeat

from minserve.errors import ConfigError


def constant(rate_per_s: float) -> Iterator[float]:
    """One request every `1 / rate_per_s` seconds, from 0 on."""
    _require_rate(rate_per_s)
    number = 0
    while True:
        yield number / rate_per_s
        number += 1


def poisson(rate_per_s: float, rng: random.Random) -> Iterator[float]:
    """Independent users: exponential gaps."""
    return gamma(rate_per_s, 1.0, rng)


def gamma(rate_per_s: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Gamma-distributed gaps of mean `1 / rate_per_s`, as `vllm bench serve` draws them.

    `burstiness` is the shape: 1 is Poisson, below 1 comes in bursts, above 1 is more even. The
    gaps' coefficient of variation is `1 / sqrt(burstiness)`.
    """
    _require_rate(rate_per_s)
    if not 0 < burstiness < math.inf:
        raise ConfigError(f"burstiness is {burstiness}", "use 1 (Poisson), less or more, above 0")
    time_s = 0.0
    while True:
        yield time_s
        time_s += rng.gammavariate(burstiness, 1 / (rate_per_s * burstiness))


def ramp(
    from_per_s: float, to_per_s: float, over_s: float, rng: random.Random | None = None
) -> Iterator[float]:
    """A rate that grows evenly over `over_s` seconds and then stays: where does it break?

    Evenly spaced by the expected count, or with exponential gaps if `rng` is given: both invert
    the cumulative rate, which makes the latter an inhomogeneous Poisson process.
    """
    _require_rate(from_per_s)
    _require_rate(to_per_s)
    if not 0 < over_s < math.inf:
        raise ConfigError(f"a ramp over {over_s} s", "use more than 0 seconds")
    slope = (to_per_s - from_per_s) / over_s
    in_ramp = (from_per_s + to_per_s) / 2 * over_s
    expected = 0.0
    while True:
        if expected >= in_ramp:
            yield over_s + (expected - in_ramp) / to_per_s
        elif slope == 0:
            yield expected / from_per_s
        else:  # solve from * t + slope / 2 * t^2 = expected
            yield (math.sqrt(from_per_s**2 + 2 * slope * expected) - from_per_s) / slope
        expected += rng.expovariate(1.0) if rng else 1.0


def at_once() -> Iterator[float]:
    """Everything at 0: the Offline scenario, or the start of a closed loop."""
    return repeat(0.0)


def scaled(times_s: Iterable[float], factor: float) -> Iterator[float]:
    """The same pattern, `factor` times as fast."""
    _require_rate(factor)
    return (time_s / factor for time_s in times_s)


def _require_rate(rate_per_s: float) -> None:
    if not 0 < rate_per_s < math.inf:
        raise ConfigError(f"a rate of {rate_per_s} per second", "use a rate above 0")


def wave_rate(low_per_s: float, high_per_s: float, wave_s: float, time_s: float) -> float:
    """A rate that swings like a sine between two, from the low one, once in `wave_s` seconds."""
    share = (1 - math.cos(2 * math.pi * time_s / wave_s)) / 2
    return low_per_s + (high_per_s - low_per_s) * share


def waves(
    low_per_s: float, high_per_s: float, wave_s: float, rng: random.Random
) -> Iterator[float]:
    """Poisson arrivals at the rate of `wave_rate`.

    By thinning (Lewis and Shedler, 1979): candidates at the high rate, kept with probability
    rate(t) / high.
    """
    _require_rate(low_per_s)
    _require_rate(high_per_s)
    time_s = 0.0
    while True:
        time_s += rng.expovariate(high_per_s)
        if rng.random() * high_per_s < wave_rate(low_per_s, high_per_s, wave_s, time_s):
            yield time_s
