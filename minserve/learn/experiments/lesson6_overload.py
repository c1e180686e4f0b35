"""Lesson 6's experiments on overload: who is let in, who returns when, and what gives way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, EventLog, Finished, StepStarted, TokensProduced
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.admissions import LadderBase
from minserve.learn.experiments.common import BIG_MODEL, or_never, quantile
from minserve.learn.experiments.lesson6 import BIG, REAL
from minserve.learn.parts_of_load import install_admission, install_overload_ladder
from minserve.loadtest.arrivals import poisson, waves
from minserve.request import Request, SamplingParams, WorkloadClass
from minserve.scheduling.admission import DEFAULT_BUDGETS, Admission, Admit, Defer, Refuse
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering
from minserve.scheduling.overload import Rung
from minserve.scheduling.quota import PlainQuota
from minserve.scheduling.reservation import OnlineFirst, ReservedBatching

PATIENCE_S = 8.0
"""After so long a person closes the window: the whole answer must be there by then."""

# -- people who ask, are refused, return, and give up


@dataclass(slots=True)
class Person:
    """Somebody with one question; times are the clock's. `num_asks` counts refused tries too."""

    id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    workload_class: WorkloadClass = WorkloadClass.INTERACTIVE
    patience_s: float | None = PATIENCE_S
    priority: int = 0
    tells_deadline: bool = True
    num_asks: int = 0
    first_told_s: float | None = None
    """When they first heard anything: a token, or a refusal."""
    first_token_s: float | None = None
    ended_s: float | None = None
    num_written: int = 0
    is_complete: bool = False

    @property
    def deadline_s(self) -> float | None:
        """When they lose patience; None if nobody waits."""
        return None if self.patience_s is None else self.arrival_s + self.patience_s

    @property
    def is_in_time(self) -> bool:
        """The whole answer came while they waited."""
        return self.is_complete and or_never(self.ended_s) <= or_never(self.deadline_s)

    def request(self, now_s: float) -> Request:
        """What they send at `now_s`; its deadline, if it tells one, is when they lose patience."""
        return Request(
            f"{self.id}.{self.num_asks}",
            tuple(5 + (7 * i + len(self.id)) % 500 for i in range(self.num_prompt_tokens)),
            SamplingParams(max_tokens=self.num_output_tokens, ignore_eos=True),
            workload_class=self.workload_class,
            arrival_s=now_s,
            deadline_s=self.deadline_s if self.tells_deadline else None,
            priority=self.priority,
        )


def crowd(rate_per_s: float, seconds: float = 40.0, seed: int = 6) -> list[Person]:
    """People with questions of real lengths, answers cut to 150 tokens."""
    rng = random.Random(seed)
    samples = (call.sample for call in replace(REAL, num_prompts=5000).at_rate(1.0).calls())
    people: list[Person] = []
    for at_s, sample in zip(poisson(rate_per_s, rng), samples, strict=False):
        if at_s >= seconds:
            break
        answer = min(150, sample.sampling.max_tokens)
        people.append(Person(f"p{len(people)}", at_s, len(sample.token_ids or ()), answer))
    return people


Returns = Callable[[Refuse], float | None]
"""When somebody who is turned away returns, in seconds; None: never."""


def as_told(refusal: Refuse) -> float | None:
    """When the server said."""
    return refusal.retry_after_s


def never(refusal: Refuse) -> float | None:
    """Goes elsewhere."""
    return None


def after_a_second(refusal: Refuse) -> float:
    """As many clients are written: wait a second, ask again."""
    return 1.0


@dataclass(slots=True)
class Day:
    """What came of it: the people, and the tokens that the machine computed."""

    people: list[Person]
    num_computed_tokens: int = 0
    rungs: list[tuple[float, int]] = field(default_factory=list)

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `DAY_HEADING`."""
        came = [p for p in self.people if p.patience_s is not None]
        in_time = [p for p in came if p.is_in_time]
        told_s = [p.first_told_s - p.arrival_s for p in came if p.first_told_s is not None]
        useful = sum(p.num_prompt_tokens + p.num_written - 1 for p in in_time)
        return (
            name,
            f"{len(in_time)} of {len(came)}",
            f"{quantile(told_s, 0.95):.2f}",
            f"{1 - useful / self.num_computed_tokens:.0%}",
            f"{sum(p.num_asks for p in came) / len(came):.1f}",
        )


DAY_HEADING = (
    "who decides",
    "answered in time",
    "first word or refusal, p95 (s)",
    "computed in vain",
    "asks per person",
)


def serve(
    people: Sequence[Person],
    part: Callable[..., Any] | None = None,
    *,
    returns: Returns = never,
    budgets: Any = None,
    ladder: Callable[[], Any] | None = None,
    cancels: bool = True,
    ordering: Callable[[], Ordering] = FirstComeFirstServed,
    policy: Callable[[], BatchingPolicy] = lambda: ContinuousBatching(512, 64),
) -> Day:
    """Serve fresh copies of `people` on the virtual clock, at the costs of a large model.

    `part` admits (without it everybody comes in); `ladder` climbs. A person whose patience ends
    leaves, and with `cancels` the engine hears of it and stops.
    """
    day = Day([replace(person) for person in people])
    engine = Engine(
        SimulatedExecutor(BIG.num_blocks, 16, cost=BIG_MODEL),
        policy(),
        prefix_caching=False,
        ordering=ordering(),
        log=EventLog(keep=False),
    )
    loop = EventLoop(VirtualClock())
    client = LocalClient(engine, loop)
    admission = None
    if part is not None:
        admission = Admission(engine.log)
        install_admission(admission, part, budgets)
        if ladder is not None:
            install_overload_ladder(admission, ladder)

    def note(event: Event) -> None:
        if isinstance(event, StepStarted):
            day.num_computed_tokens += sum(count for _, count, _ in event.rows)
            if admission and (not day.rungs or day.rungs[-1][1] != admission.rung):
                day.rungs.append((event.time_s, int(admission.rung)))

    engine.log.listen(note)
    for person in day.people:
        _Visit(person, client, admission, returns, cancels).start()
    loop.run()
    engine.check_integrity()
    return day


class _Visit:
    """One person's way: ask, perhaps return, hear tokens, perhaps leave."""

    def __init__(
        self,
        person: Person,
        client: LocalClient,
        admission: Admission | None,
        returns: Returns,
        cancels: bool,
    ) -> None:
        self.person, self.client, self.admission = person, client, admission
        self.returns, self.cancels = returns, cancels

    def start(self) -> None:
        person, loop = self.person, self.client.loop
        loop.at(person.arrival_s, self._ask)
        if self.cancels and person.deadline_s is not None:
            loop.at(person.deadline_s, self._leave)

    def _ask(self) -> None:
        now_s = self.client.loop.clock.now_s()
        person = self.person
        if person.deadline_s is not None and now_s >= person.deadline_s:
            return
        person.num_asks += 1
        self._decide(person.request(now_s))

    def _decide(self, request: Request) -> None:
        loop = self.client.loop
        now_s = loop.clock.now_s()
        decision = (
            self.admission.ask(request, now_s)
            if self.admission
            else Admit(request.sampling.max_tokens)
        )
        match decision:
            case Admit(max_tokens=max_tokens):
                request.sampling = replace(request.sampling, max_tokens=max_tokens)
                self.client.send(request, self._hear)
            case Defer(until_s=until_s):
                loop.at(until_s, lambda: self._decide(request))
            case Refuse():
                self._told(now_s)
                wait_s = self.returns(decision)
                if wait_s is not None:
                    loop.at(now_s + wait_s, self._ask)

    def _hear(self, event: Event) -> None:
        person = self.person
        if isinstance(event, TokensProduced):
            self._told(event.time_s)
            person.first_token_s = person.first_token_s or event.time_s
            person.num_written += len(event.token_ids)
        elif isinstance(event, Finished):
            person.ended_s, person.is_complete = event.time_s, event.reason == "length"

    def _told(self, now_s: float) -> None:
        if self.person.first_told_s is None:
            self.person.first_told_s = now_s

    def _leave(self) -> None:
        if self.person.ended_s is None:
            self.client.cancel(f"{self.person.id}.{self.person.num_asks}")


# -- the door of a real engine


def knock(
    executor: Any,
    requests: Sequence[Request],
    part: Callable[..., Any],
    max_queued_tokens: int,
    max_concurrent: int | None = None,
) -> list[tuple[str, ...]]:
    """All `requests` come at once to a real engine; cells under `KNOCK_HEADING` for each.

    `part` decides by a budget of `max_queued_tokens`; the account may have `max_concurrent`
    requests unfinished, whatever the part says. Those admitted are served.
    """
    engine = Engine(executor, prefix_caching=False)
    admission = Admission(engine.log)
    rows: list[tuple[str, ...]] = []
    budgets = {
        kind: replace(budget, max_queued_tokens=max_queued_tokens)
        for kind, budget in DEFAULT_BUDGETS.items()
    }
    install_admission(admission, part, budgets)
    admission.policy = replace(admission.policy, max_defer_s=0.0)
    for request in requests:
        tokens = str(request.num_prompt_tokens + request.sampling.max_tokens)
        decision = admission.ask(request, 0.0, PlainQuota(max_concurrent))
        if isinstance(decision, Refuse):
            said = f"{decision.code}: {or_never(decision.retry_after_s):.2f} s"
        else:
            engine.submit(request, 0.0)
            said = "comes in"
        rows.append((request.id, str(request.workload_class), tokens, said))
    while engine.step(0.0):
        engine.check_integrity()
    return rows


KNOCK_HEADING = ("request", "class", "tokens", "the door says")


# -- the ladder


def wave(seed: int = 6) -> list[Person]:
    """People at a rate that swells and ebbs; half of them ask for something less urgent."""
    rng = random.Random(seed)
    people: list[Person] = []
    for at_s in waves(2.0, 22.0, 40.0, rng):
        if at_s >= 45.0:
            break
        person = Person(f"p{len(people)}", at_s, rng.randrange(200, 600), rng.randrange(60, 180))
        person.priority, person.tells_deadline = -rng.randrange(2), False
        people.append(person)
    return people


def by_priority(day: Day) -> tuple[str, ...]:
    """Of the urgent and of the others: answered in time, and tokens per answer."""
    cells = []
    for priority in (0, -1):
        group = [p for p in day.people if p.priority == priority]
        in_time = [p for p in group if p.is_in_time]
        cells.append(f"{len(in_time)} of {len(group)}")
        cells.append(f"{sum(p.num_written for p in in_time) / len(in_time):.0f}")
    return tuple(cells)


WAVE_HEADING = (
    "ladder",
    "urgent, in time",
    "tokens each",
    "not urgent, in time",
    "tokens each ",
)


def with_levels(ladder: type, share: float) -> type:
    """`ladder`, whose levels in seconds and of risk are that share of the default ones."""
    levels = {
        name: values if name == "kv_pressure" else tuple(share * value for value in values)
        for name, values in LadderBase.levels.items()
    }
    return type("OverloadLadder", (ladder,), {"levels": levels})


class Pinned:
    """A ladder that nobody climbs."""

    def next(self, state: Any, signals: Any, now_s: float) -> Any:
        return replace(state, rung=Rung.NORMAL)


# -- offline work beside people


def night_shift() -> list[Person]:
    """60 long documents for nobody in particular, at once; and people, two a second."""
    rng = random.Random(6)
    work = [Person(f"w{n}", 0.0, 1500, 200, WorkloadClass.BATCH, None) for n in range(60)]
    at_s = 0.0
    people: list[Person] = []
    while at_s < 20.0:
        people.append(Person(f"p{len(people)}", at_s, rng.randrange(100, 400), 40))
        at_s += rng.expovariate(2.0)
    return [*work, *people]


def reserved() -> BatchingPolicy:
    """What `minserve serve` does: people first, and steps that stay short for them."""
    return ReservedBatching(512, 64, reserved_blocks=BIG.num_blocks // 8, step_cap_s=0.1)


def first_tokens(day: Day) -> tuple[float, float]:
    """p95 of the people's time to first token, and when the last offline work was done."""
    waits_s = [
        p.first_token_s - p.arrival_s
        for p in day.people
        if p.patience_s is not None and p.first_token_s is not None
    ]
    ends_s = [p.ended_s for p in day.people if p.patience_s is None and p.ended_s is not None]
    return quantile(waits_s, 0.95), max(ends_s)


ONLINE_FIRST = {"ordering": lambda: OnlineFirst(FirstComeFirstServed()), "policy": reserved}
