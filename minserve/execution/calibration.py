"""Fit the simulator's costs to a real engine on this machine, and keep them.

Steps are designed, not waited for: rows of any context over blocks that hold nothing in particular,
lone and full decodes, prompt chunks of many sizes, and mixtures of both. What the engine itself
takes for planning is timed apart, with an executor that does nothing, and added.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minserve.engine import Engine
from minserve.errors import ConfigError, DataNotFound
from minserve.execution.executor import Executor, Row, StepPlan, StepResult
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.home import home
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

TERMS = tuple(CostModel.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step: of each row the tokens computed and the tokens in context, and how long it took."""

    rows: tuple[tuple[int, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model, and how far it is from `num_steps` kinds of steps it was not fitted to.

    `median_error` is of single steps, relative; `total_error` of all their time together.
    """

    cost: CostModel
    num_steps: int
    median_error: float
    total_error: float


def fit(steps: Sequence[ObservedStep]) -> Fit:
    """The costs, none negative, with the least relative squared error on two kinds in three.

    Steps of equal rows are of one kind and count as their median: a machine that does something
    else for a moment is no cost of the model. Every third kind is held out, for the errors.
    Raises `ConfigError` for too few kinds.
    """
    kinds = _typical(steps)
    held_out, fitted = kinds[2::3], [kind for n, kind in enumerate(kinds) if n % 3 != 2]
    if len(fitted) < 2 * len(TERMS):
        raise ConfigError(f"{len(kinds)} kinds of steps", f"observe {3 * len(TERMS)} or more")
    features = np.array([_features(step.rows) for step in fitted])
    seconds = np.array([step.seconds for step in fitted])
    weights = _non_negative_least_squares(features / seconds[:, None], np.ones(len(seconds)))
    cost = CostModel(*map(float, weights))
    return Fit(cost, len(held_out), *errors(cost, held_out))


def _typical(steps: Sequence[ObservedStep]) -> list[ObservedStep]:
    """One step for each kind, as long as the median of those with equal rows."""
    alike: dict[tuple[tuple[int, int], ...], list[float]] = {}
    for step in steps:
        alike.setdefault(step.rows, []).append(step.seconds)
    return [ObservedStep(rows, float(np.median(times))) for rows, times in alike.items()]


def errors(cost: CostModel, steps: Sequence[ObservedStep]) -> tuple[float, float]:
    """(median relative error of a step, relative error of the total time), as shares."""
    predicted = np.array([cost.seconds(step.rows) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    each = np.abs(predicted - seconds) / seconds
    return float(np.median(each)), float(abs(predicted.sum() - seconds.sum()) / seconds.sum())


def _features(rows: Iterable[tuple[int, int]]) -> list[float]:
    """What each unit cost is multiplied by: a model that is linear tells it by itself."""
    ones = np.eye(len(TERMS))
    return [CostModel(*one).seconds(rows) for one in ones]


def _non_negative_least_squares(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Few unknowns: solve for every subset of them, and take the best without a negative."""
    count = features.shape[1]
    best, best_error = np.zeros(count), float("inf")
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part, *_ = np.linalg.lstsq(features[:, chosen], target, rcond=None)
            error = float(((features[:, chosen] @ part - target) ** 2).sum())
            if (part >= 0).all() and error < best_error:
                best, best_error = np.zeros(count), error
                best[list(chosen)] = part
    return best


# -- observing


def observe(
    executor: Executor,
    *,
    max_running: int = 16,
    token_budget: int = 512,
    vocab: int = 1000,
    budget_s: float = 30.0,
    seed: int = 0,
    now_s: Callable[[], float] = time.perf_counter,
) -> list[ObservedStep]:
    """Time designed steps of up to `token_budget` tokens for about `budget_s` seconds.

    Each kind is run once before it is timed, for kernels that are compiled or tuned on first use;
    then all are timed again and again in random order, so that a machine that slows down for a
    while slows all kinds alike. Overwrites the KV cache; what the model answers does not matter.
    """
    rng = random.Random(seed)
    kinds = list(_designs(executor, max_running, token_budget, rng))
    planning = planning_cost(max_running, now_s)
    for rows in kinds:
        _timed(executor, rows, vocab, rng, now_s)
    began_s = now_s()
    steps: list[ObservedStep] = []
    while not steps or now_s() - began_s < budget_s:
        rng.shuffle(kinds)
        for rows in kinds:
            seconds = _timed(executor, rows, vocab, rng, now_s) + planning.seconds(rows)
            steps.append(ObservedStep(rows, seconds))
    return steps


def _designs(
    executor: Executor, max_running: int, token_budget: int, rng: random.Random, count: int = 48
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Kinds of steps: decodes alone, chunks alone, and both, at contexts short and long."""
    size = executor.block_size
    longest = min(executor.max_model_len, 2048, executor.num_blocks * size // (max_running + 2))
    longest = max(2, longest)
    for number in range(count):
        what = ("decodes", "chunks", "both")[number % 3]
        rows = []
        if what != "chunks":
            batch = round(max_running ** ((number % 12) / 9)) if number % 12 < 9 else max_running
            typical = round(2 * (longest / 2) ** rng.random())
            contexts = (rng.randint(max(1, typical // 2), typical) for _ in range(batch))
            rows += [(1, context) for context in contexts]
        if what != "decodes":
            most = min(token_budget - len(rows), longest)
            tokens = max(2, round(most ** rng.uniform(0.4, 1.0)))
            parts = rng.choice((1, 1, 2)) if tokens >= 4 else 1
            for _ in range(parts):
                chunk = min(tokens // parts, longest)
                before = rng.choice((0, 0, rng.randint(0, longest - chunk)))
                rows.append((chunk, before + chunk))
        yield tuple(rows)


def _timed(
    executor: Executor,
    rows: tuple[tuple[int, int], ...],
    vocab: int,
    rng: random.Random,
    now_s: Callable[[], float],
) -> float:
    """Seconds that the executor takes for one step of these rows."""
    next_block, made = 0, []
    for number, (count, context) in enumerate(rows):
        num_blocks = -(-context // executor.block_size)
        table = tuple(
            block % executor.num_blocks for block in range(next_block, next_block + num_blocks)
        )
        next_block += num_blocks
        tokens = tuple(rng.choices(range(20, vocab), k=count))
        made.append(Row(f"r{number}", tokens, context - count, table, True, 0, SamplingParams()))
    plan = StepPlan(1, tuple(made))
    began_s = now_s()
    executor.collect(executor.launch(plan, 0.0))
    return now_s() - began_s


def planning_cost(
    max_running: int = 16, now_s: Callable[[], float] = time.perf_counter
) -> CostModel:
    """What the engine takes beside computing: per step and per row, on an idle executor."""
    seconds = {}
    for batch in (1, max(2, max_running)):
        engine = Engine(SimulatedExecutor(64 * batch), ContinuousBatching(1024, batch))
        for number in range(batch):
            sampling = SamplingParams(max_tokens=200, ignore_eos=True)
            engine.submit(Request(f"r{number}", tuple(range(20, 52)), sampling), 0.0)
        times = []
        while engine.has_unfinished:
            began_s = now_s()
            engine.step(0.0)
            times.append(now_s() - began_s)
        seconds[batch] = float(np.median(times))
    (one, first), (many, last) = seconds.items()
    per_row_s = max(0.0, (last - first) / (many - one))
    return CostModel(max(0.0, first - per_row_s), 0.0, per_row_s, 0.0)


@dataclass(frozen=True, slots=True)
class _Timed:
    plan: StepPlan
    ready_at_s: float
    result: StepResult


class _Timing:
    """An executor's shape, and results that come with the time they took."""

    def __init__(self, executor: Executor) -> None:
        self.num_blocks, self.block_size = executor.num_blocks, executor.block_size
        self.max_model_len = executor.max_model_len
        self.eos_token_ids = executor.eos_token_ids
        self.cache_namespace = executor.cache_namespace

    def collect(self, handle: _Timed) -> StepResult:
        return handle.result


class TimedExecutor(_Timing):
    """A real executor on the virtual clock: each step ends when the real one would have.

    Everything is computed; only waiting is not done. `steps` and `tokens` record what happened, so
    that `replaying` them gives the same event log without computing anything.
    """

    def __init__(self, executor: Executor, now_s: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(executor)
        self._executor, self._now_s = executor, now_s
        self.durations_s: list[float] = []
        self.results: list[StepResult] = []

    def launch(self, plan: StepPlan, now_s: float) -> _Timed:
        began_s = self._now_s()
        handle = self._executor.launch(plan, now_s)
        self.results.append(self._executor.collect(handle))
        self.durations_s.append(self._now_s() - began_s)
        return _Timed(plan, now_s + self.durations_s[-1], self.results[-1])


class ReplayedExecutor(_Timing):
    """Answers step after step as `recorded` did, in the same time, and computes nothing."""

    def __init__(self, recorded: TimedExecutor) -> None:
        super().__init__(recorded)
        self._steps = iter(zip(recorded.durations_s, recorded.results, strict=True))

    def launch(self, plan: StepPlan, now_s: float) -> _Timed:
        seconds, result = next(self._steps)
        return _Timed(plan, now_s + seconds, result)


# -- keeping


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fit, what it is of and what it was made on."""

    model: str
    fingerprint: str
    machine: dict[str, Any]
    num_blocks: int
    block_size: int
    max_model_len: int
    load_s: float
    fit: Fit

    def save(self) -> Path:
        """Write it under MINSERVE_HOME; whole or not at all."""
        path = _path(self.fingerprint, self.machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}.tmp")
        half.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        half.replace(path)
        return path


def load(fingerprint: str, machine: dict[str, Any]) -> Calibration:
    """The calibration of a model on a machine. Raises `DataNotFound` if there is none."""
    path = _path(fingerprint, machine)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        found = fields.pop("fit")
        cost = CostModel(**found.pop("cost"))
        return Calibration(**fields, fit=Fit(cost, **found))
    except OSError:
        raise DataNotFound(
            f"nothing is known of {fingerprint} on this machine", "run `minserve calibrate` first"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataNotFound(f"{path} is no calibration ({error})", "calibrate again") from None


def _path(fingerprint: str, machine: dict[str, Any]) -> Path:
    where = f"{machine.get('cpu', '')}-{machine.get('cores', '')}"
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{fingerprint}-{where}")
    return home() / "calibration" / f"{name}.json"


__all__ = [
    "Calibration", "Fit", "ObservedStep", "ReplayedExecutor", "TimedExecutor",
    "errors", "fit", "load", "observe",
]  # fmt: skip
