"""Lesson 6's experiments on measuring: what a load test shows, hides, and how a queue grows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from statistics import fmean
from typing import Any

import numpy as np

from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.learn.experiments.common import BIG_MODEL, again, or_never, quantile
from minserve.learn.parts_of_load import Sent
from minserve.loadtest.arrivals import poisson, waves
from minserve.loadtest.datasets import Call, calls
from minserve.loadtest.distributions import bound_ranks
from minserve.loadtest.generator import send_in_process
from minserve.loadtest.measures import Measures, Objectives, Tally
from minserve.loadtest.record import Record
from minserve.loadtest.sweep import Sweep, capacity, mg1_wait_s, try_rate
from minserve.loadtest.workload import Workload
from minserve.request import Request
from minserve.scheduling.batching import ContinuousBatching
from minserve.simulator.fleet import Setup
from minserve.simulator.profile import Profile
from minserve.simulator.runs import run

BIG = Profile("big", BIG_MODEL, 16_384, load_s=20.0, source="round figures, not measured")
COLD = Setup(BIG, prefix_caching=False)
WARM = Setup(BIG)
LIMIT_S = 0.5
"""The promise: a first token within half a second, for 95 of 100."""

# -- the incident: fixed short answers, and real lengths (Azure's, at half their length)

SHORT = Workload(input_len=256, output_len=32, num_prompts=400, seed=6)
REAL = Workload("azure", scale=0.5, num_prompts=400, seed=6)


@lru_cache
def lengths(traffic: Workload = REAL) -> tuple[tuple[int, int], ...]:
    """(prompt tokens, answer tokens) of its requests."""
    samples = (call.sample for call in traffic.at_rate(1.0).calls())
    return tuple((len(s.token_ids or ()), s.sampling.max_tokens) for s in samples)


@lru_cache
def means() -> Workload:
    """Requests that all have the mean lengths of the real ones."""
    prompts, answers = (round(fmean(each)) for each in zip(*lengths(), strict=True))
    return replace(SHORT, input_len=prompts, output_len=answers)


def load(traffic: Workload, rate_per_s: float, setup: Setup = COLD, count: int = 400) -> Measures:
    """Serve `count` requests, which come as independent people do, and measure."""
    if setup is COLD:
        return _tally(traffic, rate_per_s, count).measures()
    return run(setup, traffic.at_rate(rate_per_s, count).calls()).measures()


@lru_cache
def _tally(traffic: Workload, rate_per_s: float, count: int = 400) -> Tally:
    """A run on a cold server; the same again is not run again."""
    promise = Objectives(ttft_s=LIMIT_S)
    return run(COLD, traffic.at_rate(rate_per_s, count).calls(), promise)


LOAD_HEADING = (
    "requests",
    "a second",
    "output tokens/s",
    "TTFT p50 (s)",
    "TTFT p95 (s)",
    "whole answer p95 (s)",
)


def load_row(name: str, rate_per_s: float, m: Measures) -> tuple[str, ...]:
    """Cells under `LOAD_HEADING`."""
    return (
        name,
        f"{rate_per_s:g}",
        f"{m.output_tokens_per_s:,.0f}",
        f"{m['ttft.p50']:.2f}",
        f"{m['ttft.p95']:.2f}",
        f"{m['e2e.p95']:.1f}",
    )


def most_per_s(traffic: Workload, first_per_s: float = 8.0) -> float:
    """The highest rate, within a fifth, that keeps the promise and whose queue does not grow."""
    found = capacity(lambda r: _tally(traffic, r), first_per_s, target=0.95, precision=0.2)
    return found.best_per_s or 0.0


# -- open and closed loop


def stalled(
    service_s: float = 0.03, stall_s: float = 3.0, at_s: float = 10.0
) -> Callable[[float], float]:
    """A server that takes one request at a time, and once stops for a while.

    `serve(now_s)` returns when the answer to a request sent at `now_s` is complete.
    """
    is_due = True

    def serve(now_s: float) -> float:
        nonlocal is_due
        if is_due and now_s >= at_s:
            is_due = False
            return now_s + stall_s
        return now_s + service_s

    return serve


def closed_loop(num_requests: int, serve: Callable[[float], float]) -> list[Sent]:
    """One person who asks again when the answer has come: nothing is meant to go before."""
    sent, now_s = [], 0.0
    for _ in range(num_requests):
        end_s = serve(now_s)
        sent.append(Sent(now_s, end_s - now_s, end_s - now_s))
        now_s = end_s
    return sent


SENT_HEADING = ("load test", "requests", "p50 (s)", "p99 (s)", "the slowest (s)")


def sent_row(name: str, latencies_s: Sequence[float]) -> tuple[str, ...]:
    """Cells under `SENT_HEADING`."""
    figures = (quantile(latencies_s, share) for share in (0.5, 0.99, 1.0))
    return name, f"{len(latencies_s):,}", *(f"{value:.2f}" for value in figures)


def one_connection(executor: Any, requests: Sequence[Request]) -> Callable[[float], float]:
    """A real engine behind one connection: each `serve(now_s)` serves the next of `requests`.

    It takes as long as it takes on this machine; `now_s` only says when it began.
    """
    engine, waiting = Engine(executor, prefix_caching=False), iter(requests)

    def serve(now_s: float) -> float:
        began_s = time.perf_counter()
        engine.submit(again(next(waiting)), 0.0)
        while engine.step(0.0):
            pass
        return now_s + time.perf_counter() - began_s

    return serve


# -- percentiles


@lru_cache
def busy_minutes(count: int = 4) -> tuple[tuple[float, float], ...]:
    """(arrival, TTFT) in seconds, while the rate rises from 1 to 11 requests a second and falls."""
    samples = (call.sample for call in replace(REAL, num_prompts=10_000).at_rate(1.0).calls())
    times_s = waves(1.0, 11.0, 60.0 * count, random.Random(6))
    within = takewhile(lambda call: call.at_s < 60.0 * count, calls(times_s, samples))
    return tuple((record.intended_s, or_never(record.ttft_s)) for record in served(within))


def served(given: Iterable[Call], setup: Setup = COLD) -> list[Record]:
    """What became of each call, in the order in which they ended."""
    found: list[Record] = []
    loop = EventLoop(VirtualClock())
    send_in_process(given, setup.fleet(loop), loop, found.append)
    return found


def by_minute(seen: Sequence[tuple[float, float]]) -> list[list[float]]:
    """The TTFTs of each minute."""
    minutes: dict[int, list[float]] = {}
    for arrival_s, ttft_s in seen:
        minutes.setdefault(int(arrival_s // 60), []).append(ttft_s)
    return [minutes[number] for number in sorted(minutes)]


def how_sure(values: Sequence[float], share: float, count: int) -> tuple[str, ...]:
    """What 20 load tests of `count` requests each find as that percentile, and its 95 % bound."""
    rng = random.Random(f"{share}/{count}")
    found = [quantile(rng.choices(values, k=count), share) for _ in range(20)]
    lower, upper = bound_ranks(count, share)
    ranks = f"rank {lower} to {upper} of {count:,}" if upper else "none from above"
    return f"{count:,}", f"{min(found):.2f} to {max(found):.2f}", ranks


SURE_HEADING = ("requests in a test", "20 tests find (s)", "95 % bounds")


# -- saturation


def queue_waits(rate_per_s: float, service_s: Sequence[float], seed: int = 6) -> float:
    """The mean wait, in seconds, of a queue before one server, in which 100,000 people stand.

    Each takes one of `service_s`, drawn anew (Lindley's recursion, 1952).
    """
    rng, free_s, waited_s = random.Random(seed), 0.0, 0.0
    count = 100_000
    times_s = poisson(rate_per_s, rng)
    for _ in range(count):
        now_s = next(times_s)
        start_s = max(now_s, free_s)
        waited_s += start_s - now_s
        free_s = start_s + rng.choice(service_s)
    return waited_s / count


def work_s() -> list[float]:
    """How long each real request would hold a server alone, scaled to 0.1 s on average."""
    raw = [1e-4 * prompt + 2e-3 * answer for prompt, answer in lengths()]
    return [0.1 * each / fmean(raw) for each in raw]


def formula_s(rate_per_s: float, service_s: Sequence[float]) -> float:
    """The mean wait of M/G/1 (Pollaczek and Khinchine)."""
    return mg1_wait_s(rate_per_s, np.array(service_s))


@lru_cache
def swept(rates_per_s: tuple[float, ...] = (1, 4, 5, 9, 12)) -> Sweep:
    """Real lengths at rising rates."""
    cells = [try_rate(lambda r: _tally(REAL, r), rate, 0.95) for rate in rates_per_s]
    return Sweep(tuple(cells), max((c.rate_per_s for c in cells if c.is_met), default=None))


def variability() -> float:
    """Squared coefficient of variation of the work of real requests."""
    values = np.array(work_s())
    return float(values.var() / values.mean() ** 2)


# -- common mistakes


def wider(max_running: int, token_budget: int, rate_per_s: float = 11.0) -> Measures:
    """Real lengths, more than it bears, in batches of at most that size."""
    setup = replace(COLD, policy=lambda: ContinuousBatching(token_budget, max_running))
    return load(REAL, rate_per_s, setup, 300)


def twice(setup: Setup) -> list[tuple[str, ...]]:
    """A load test of 100 prompts, run twice on one server: figures of each half."""
    traffic = Workload(input_len=900, output_len=20, num_prompts=100, seed=6).at_rate(4.0)
    first = list(traffic.calls())
    second = [replace(call, id=f"again-{call.id}", at_s=call.at_s + 100.0) for call in first]
    found = served([*first, *second], setup)
    rows: list[tuple[str, ...]] = []
    for name, start_s in (("first run", 0.0), ("second run", 100.0)):
        end_s = start_s + 100
        half = [or_never(r.ttft_s) for r in found if start_s <= r.intended_s < end_s]
        rows.append((name, f"{quantile(half, 0.5):.3f}", f"{quantile(half, 0.99):.3f}"))
    return rows
