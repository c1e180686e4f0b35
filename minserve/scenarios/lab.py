"""What a scenario is, and the bench it runs on: an engine, a clock, and a way to send."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minserve.client import LocalClient
from minserve.clock import Clock, EventLoop
from minserve.engine import Engine
from minserve.events import EventLog
from minserve.execution.executor import Executor
from minserve.loadtest.datasets import Call, Sample
from minserve.loadtest.generator import Pace, send_in_process
from minserve.loadtest.measures import Measures, Tally
from minserve.loadtest.record import Record
from minserve.request import Identity, SamplingParams, WorkloadClass
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering


@dataclass(slots=True)
class Run:
    """One run: its records in order of their ends, all its events, and the engine afterwards."""

    records: list[Record]
    tally: Tally
    engine: Engine

    @property
    def measures(self) -> Measures:
        return self.tally.measures()

    def of_kind(self, kind: str) -> Measures:
        """The figures of one kind of request."""
        return self.tally.by_kind[kind].measures()


TOKEN_BUDGET, MAX_RUNNING = 512, 16


@dataclass(frozen=True, slots=True)
class Bench:
    """Where scenarios run. `unit_s` is about what one small request takes alone: times in a
    scenario are multiples of it, so that it means the same on a slow and on a fast engine.
    """

    executor: Callable[[int], Executor]
    """Makes, or hands out again, an executor with at least so many KV blocks; 0 is its usual."""
    clock: Callable[[], Clock]
    unit_s: float
    vocab: int = 1000
    seed: int = 0
    max_prompt: int = 1500
    is_real: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conditions(self) -> dict[str, Any]:
        """What every report of it has to say beside its figures."""
        return {
            "prefix cache": "cold at the start of each run",
            "in a step": f"at most {MAX_RUNNING} requests and {TOKEN_BUDGET} tokens, unless a "
            "scenario is about that",
            **self.about,
        }

    def serve(
        self,
        calls: Iterable[Call],
        *,
        policy: BatchingPolicy | None = None,
        ordering: Ordering | None = None,
        prefix_caching: bool = True,
        blocks: int = 0,
        pace: Pace | None = None,
        before: Callable[[LocalClient], None] = lambda client: None,
    ) -> Run:
        """Serve on a fresh engine with a cold cache. `before(client)` may plan cancellations."""
        calls = list(calls)
        engine = Engine(
            self.executor(blocks),
            policy or ContinuousBatching(TOKEN_BUDGET, MAX_RUNNING),
            prefix_caching=prefix_caching,
            ordering=ordering or FirstComeFirstServed(),
            log=EventLog(),
        )
        loop = EventLoop(self.clock())
        client = LocalClient(engine, loop)
        records, tally = [], Tally()

        def note(record: Record) -> None:
            records.append(record)
            tally.add(record)

        before(client)
        send_in_process(calls, client, loop, note, pace or Pace())
        engine.check_integrity()
        return Run(records, tally, engine)

    def rng(self, name: str) -> random.Random:
        """Randomness of its own for each part of a scenario."""
        return random.Random(f"{name}/{self.seed}")

    def tokens(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(20, self.vocab), k=count))


def ask(
    token_ids: tuple[int, ...],
    num_output: int,
    kind: str = "",
    *,
    tenant: str = "default",
    salt: str = "",
    workload_class: WorkloadClass = WorkloadClass.STANDARD,
    priority: int = 0,
    deadline_s: float | None = None,
) -> Sample:
    """A sample of forced length."""
    return Sample(
        token_ids=token_ids,
        sampling=SamplingParams(max_tokens=num_output, ignore_eos=True),
        kind=kind,
        identity=Identity(tenant),
        cache_salt=salt,
        workload_class=workload_class,
        priority=priority,
        deadline_s=deadline_s,
    )


def at_times(pairs: Iterable[tuple[float, Sample]]) -> Iterator[Call]:
    """Calls from (time, sample) pairs in any order."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    for number, (time_s, sample) in enumerate(ordered):
        yield Call(f"{sample.kind or 'r'}-{number:04}", time_s, sample)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario found. `bars` are drawn: a figure's name, then what it was in each case."""

    holds: bool
    said: str
    bars: dict[str, dict[str, float]]
    unit: str = "seconds"
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, "said": self.said, "figures": self.bars | self.figures}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question, what is expected, and a run that answers it."""

    name: str
    question: str
    expected: str
    run: Callable[[Bench], Outcome]
