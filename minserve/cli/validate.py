"""Held-out traffic on the real engine and on the simulator, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock, WallClock
from minserve.engine import Engine
from minserve.events import Event, EventLog, StepEnded, StepStarted
from minserve.execution.calibration import Calibration, ObservedStep, errors
from minserve.loadtest.generator import send_in_process
from minserve.loadtest.measures import Measures, Tally
from minserve.loadtest.workload import Workload
from minserve.scheduling.batching import ContinuousBatching
from minserve.simulator.fleet import Setup
from minserve.simulator.profile import Profile

FIGURES = ("ttft.p50", "ttft.p95", "tpot.p50", "itl.p95", "e2e.p50", "e2e.p95")


@dataclass(slots=True)
class Cycles:
    """Times whole steps of a busy engine: from the beginning of one to that of the next."""

    engine: Engine
    steps: list[ObservedStep] = field(default_factory=list)
    _began: StepStarted | None = None

    def note(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            if self._began is not None:
                rows = tuple((count, context) for _, count, context in self._began.rows)
                self.steps.append(ObservedStep(rows, event.time_s - self._began.time_s))
            self._began = event
        elif isinstance(event, StepEnded) and not self.engine.scheduler.num_unfinished:
            self._began = None  # it may idle now, and that is no cost of a step


def run_real(executor, traffic: Workload, max_running: int, token_budget: int):
    """Measures and timed steps of the real engine, cold cache, on the wall clock."""
    log = EventLog(keep=False)
    engine = Engine(executor, ContinuousBatching(token_budget, max_running), log=log)
    cycles = Cycles(engine)
    log.listen(cycles.note)
    calls = list(traffic.calls(_encoder(executor), executor.config.vocab_size))
    loop, tally = EventLoop(WallClock()), Tally()  # NOTE: the clock runs from here
    send_in_process(calls, LocalClient(engine, loop), loop, tally.add)
    return tally.measures(), cycles.steps


def run_simulated(executor, found: Calibration, traffic: Workload, max_running, token_budget):
    """Measures of the same traffic on the virtual clock, at the calibrated costs."""
    profile = Profile(
        found.model, found.fit.cost, executor.num_blocks, executor.block_size,
        executor.max_model_len,
    )  # fmt: skip
    setup = Setup(profile, lambda: ContinuousBatching(token_budget, max_running))
    loop, tally = EventLoop(VirtualClock()), Tally()
    calls = traffic.calls(_encoder(executor), executor.config.vocab_size)
    send_in_process(calls, setup.fleet(loop), loop, tally.add)
    return tally.measures()


def validate(
    executor, found: Calibration, traffic: Workload, max_running: int, token_budget: int,
    load: float, repeats: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """Predicted against measured, at saturation and at `load` of it, and the machine's own floor.

    The floor is how far the real runs are from each other: no prediction can be held to less.
    """
    at_once = replace(traffic, rate_per_s=float("inf"))
    real, steps = run_real(executor, at_once, max_running, token_budget)
    simulated = run_simulated(executor, found, at_once, max_running, token_budget)
    step_error, total_error = errors(found.fit.cost, steps)
    rate = load * real.requests_per_s
    moderate = traffic.at_rate(rate)
    runs = [run_real(executor, moderate, max_running, token_budget)[0] for _ in range(repeats)]
    predicted = run_simulated(executor, found, moderate, max_running, token_budget)
    rows = [
        _row("output tokens/s, all at once", [real.output_tokens_per_s],
             simulated.output_tokens_per_s),
        *(_row(f"{name} at {rate:.3g}/s", [run[name] for run in runs], predicted[name])
          for name in FIGURES),
    ]  # fmt: skip
    return {
        "rate_per_s": rate,
        "num_steps": len(steps),
        "step_median_error": step_error,
        "step_total_error": total_error,
        "rows": rows,
        "num_requests": traffic.num_prompts,
        "num_ok": [run.num_ok for run in (real, *runs)],
    }


def _row(name: str, measured: list[float], predicted: float) -> dict[str, Any]:
    middle = sum(measured) / len(measured)
    spread = (max(measured) - min(measured)) / middle if len(measured) > 1 else None
    error = predicted / middle - 1
    return {
        "figure": name, "measured": middle, "predicted": predicted, "error": error,
        "floor": spread,
    }  # fmt: skip


def _encoder(executor):
    return lambda text: executor.tokenizer.encode(text, add_special_tokens=False)


__all__ = ["Measures", "run_real", "run_simulated", "validate"]
