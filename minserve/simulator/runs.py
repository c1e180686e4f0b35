"""Load on a simulated fleet: of a fixed size, or of one that a rule scales."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from minserve.clock import EventLoop, VirtualClock
from minserve.loadtest import datasets
from minserve.loadtest.arrivals import wave_rate, waves
from minserve.loadtest.capacity import (
    BACKLOG,
    Evaluation,
    OnBacklog,
    OnForecast,
    OnUtilisation,
    Scaling,
    Signals,
)
from minserve.loadtest.datasets import Call, Encode
from minserve.loadtest.generator import Pace, send_in_process
from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.workload import Workload
from minserve.simulator.fleet import Fleet, Setup


def run(
    setup: Setup,
    calls: Iterable[Call],
    objectives: Objectives | None = None,
    *,
    exact: bool = True,
    pace: Pace | None = None,
    encode: Encode | None = None,
) -> Tally:
    """Serve `calls` on a fresh fleet, to the end. `exact` as for `Tally`."""
    loop, tally = EventLoop(VirtualClock()), Tally(objectives or Objectives(), exact)
    send_in_process(calls, setup.fleet(loop), loop, tally.add, pace or Pace(), encode)
    return tally


def autoscaled(
    name: str,
    setup: Setup,
    calls: Iterable[Call],
    rule: Scaling,
    objectives: Objectives,
    *,
    every_s: float = 15.0,
    most: int = 16,
) -> Evaluation:
    """Serve `calls` while `rule` decides every `every_s` seconds how many replicas there are.

    A new replica loads for the profile's `load_s` first, and is paid for from then on.
    """
    loop, tally = EventLoop(VirtualClock()), Tally(objectives)
    fleet = setup.fleet(loop)
    history: list[tuple[float, int, int]] = []
    is_sending = True

    def look() -> None:
        signals = _signals(fleet, every_s)
        history.append((signals.now_s, signals.num_replicas, signals.queued_tokens))
        fleet.scale_to(min(most, rule(signals)))
        if is_sending or fleet.num_unfinished:
            loop.at(signals.now_s + every_s, look)

    def sent() -> Iterator[Call]:
        nonlocal is_sending
        yield from calls
        is_sending = False

    loop.at(every_s, look)
    send_in_process(sent(), fleet, loop, tally.add)
    m = tally.measures()
    return Evaluation(
        name,
        m.attainment or 0.0,
        m["ttft.p99"] or 0.0,
        fleet.replica_s / 3600,
        max(count for _, count, _ in history),
        history,
    )


def _signals(fleet: Fleet, every_s: float) -> Signals:
    now_s = fleet.loop.clock.now_s()
    schedulers = [engine.scheduler for engine in fleet.engines]
    waiting = [request for scheduler in schedulers for request in scheduler.waiting]
    running = [request for scheduler in schedulers for request in scheduler.running]
    left = sum(r.num_tokens - r.num_computed_tokens for r in (*waiting, *running) if r.is_prefill)
    pools = [engine.pool for engine in fleet.engines]
    busy_s = sum(replica.take_busy_s(now_s) for replica in fleet.replicas)
    return Signals(
        now_s,
        len(fleet.replicas),
        fleet.num_loading,
        left,
        max((now_s - request.arrival_s for request in waiting), default=0.0),
        len(running),
        sum(pool.num_used for pool in pools) / sum(pool.num_blocks for pool in pools),
        busy_s / (every_s * len(fleet.replicas)),
    )


def compare_scaling(
    setup: Setup,
    traffic: Workload,
    objectives: Objectives,
    rate_per_s: float,
    *,
    swing: float = 3.0,
    wave_s: float = 300.0,
    every_s: float = 15.0,
    most: int = 16,
    max_running: int = 128,
) -> list[Evaluation]:
    """Rules that scale on one signal, on all, and on a forecast besides, over two waves (O2).

    The rate swings between `rate_per_s / swing` and `rate_per_s`, up and down in `wave_s` seconds.
    A fleet of fixed size stands beside them, as large as the largest that scaling came to. A
    replica is taken to bear 70 % of what it can serve when everything waits.
    """
    alone = run(replace(setup, num_replicas=1), replace(traffic, rate_per_s=math.inf).calls())
    m = alone.measures()
    tokens_per_s, bears_per_s = m.total_tokens_per_s or 1.0, 0.7 * (m.requests_per_s or 1.0)
    wave = partial(wave_rate, rate_per_s / swing, rate_per_s, wave_s)
    drain_s = (objectives.ttft_s or 2.0) / 2

    def calls() -> Iterator[Call]:
        count = int(2 * wave_s * rate_per_s * (1 + 1 / swing) / 2)
        samples = (call.sample for call in replace(traffic, num_prompts=count).calls())
        rng = random.Random(f"waves/{traffic.seed}")
        return datasets.calls(waves(rate_per_s / swing, rate_per_s, wave_s, rng), samples, count)

    def evaluate(name: str, rule: Scaling, start: int = 1) -> Evaluation:
        fleet = replace(setup, num_replicas=start)
        return autoscaled(name, fleet, calls(), rule, objectives, every_s=every_s, most=most)

    def on(*signals: str) -> OnBacklog:
        return OnBacklog(
            tokens_per_s, drain_s, max_running=max_running, looks_at=signals, load_s=load_s
        )

    load_s = setup.profile.load_s
    ahead_s = load_s + every_s
    rules: dict[str, Scaling] = {
        "utilisation": OnUtilisation(),
        **{signal: on(signal) for signal in BACKLOG},
        "all three": on(*BACKLOG),
        "and a forecast": OnForecast(on(*BACKLOG), wave, bears_per_s, ahead_s),
    }
    found = [evaluate(name, rule) for name, rule in rules.items()]
    largest = max(each.most_replicas for each in found)
    return [*found, evaluate(f"{largest} fixed", lambda signals: largest, largest)]
