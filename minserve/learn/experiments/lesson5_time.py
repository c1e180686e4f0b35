"""Lesson 5's experiments with time: what goes stale, what events do, and who waits for whom."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Submitted
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments.common import BIG_MODEL, quantile
from minserve.learn.experiments.lesson5 import NORTHSTAR, by_question
from minserve.learn.parts_of_reuse import Key, LearnedCache, TaggedCache, cache_key
from minserve.northstar.reuse import grounded
from minserve.output import Detokenizer
from minserve.request import FinishReason, Identity, Request, SamplingParams
from minserve.reuse.flight import SingleFlight, Waiter
from minserve.reuse.invalidation import (
    DataDeleted,
    ModelChanged,
    PermissionChanged,
    PolicyChanged,
    SourceChanged,
)
from minserve.reuse.key import Decoding, Message, ModelTuple, Query, Scope, Wording
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.response import Answer, Evidence, ExactCache, Incident, Source, log
from minserve.reuse.stores import MemoryStore
from minserve.service import Ended, Service, Started

# -- events


def race(make: Callable[..., Any] = TaggedCache, key: Key = cache_key) -> list[tuple[str, str]]:
    """An answer that was begun before its source changed: stored after it, or not?

    Rows under `RACE_HEADING`, by when the number of events was asked for.
    """
    source, rows = "faq/1", []
    query = question("What is the refund window?")
    for when in ("before the model began", "when the model was done"):
        cache = make(NORTHSTAR, key)
        since = cache.num_events()
        cache.invalidate(SourceChanged(source=source), 1.0)  # the model is still writing
        if when == "when the model was done":
            since = cache.num_events()
        cache.put(query, Answer("34 days", sources=(Source(source),)), 2.0, since)
        found = cache.get(query, 3.0)
        rows.append((when, "a miss" if found is None else f"{found.text!r}, which was right once"))
    return rows


RACE_HEADING = ("`since` was asked for", "who asks next gets")


def events(make: Callable[..., Any] = TaggedCache, key: Key = cache_key) -> list[tuple[str, ...]]:
    """What each kind of event removes from a cache of six answers: rows under `EVENTS_HEADING`.

    Two people of alder and one of marlow have asked about refunds (source faq/1) and about fees
    (faq/2); marlow is served by another model.
    """
    happenings = {
        "a source has another text": SourceChanged(source="faq/1"),
        "alder has new rules": PolicyChanged(tenant="alder"),
        "bob of alder may see less": PermissionChanged(tenant="alder", subject="bob"),
        "marlow's data is to be gone": DataDeleted(tenant="marlow"),
        "the model has new weights": ModelChanged(model="nano"),
    }
    rows: list[tuple[str, ...]] = []
    for name, event in happenings.items():
        cache = LearnedCache(_FOR_ITS_ASKER, make, key)
        asked = []
        for who, model in (("alder/anna", "nano"), ("alder/bob", "nano"), ("marlow/mia", "large")):
            for number in (1, 2):
                tenant, user = who.split("/")
                query = replace(
                    question(f"question {number}", tenant),
                    identity=Identity(tenant, user),
                    scope=Scope.SUBJECT,
                    model=ModelTuple(model),
                )
                cache.put(query, Answer("34 days", sources=(Source(f"faq/{number}"),)), 0.0, 0)
                asked.append(query)
        removed = cache.invalidate(event, 1.0)
        served = sum(cache.get(query, 2.0) is not None for query in asked)
        rows.append((name, event.kind, f"{removed} of {len(asked)}", f"{served}"))
    return rows


EVENTS_HEADING = ("what happened", "event", "removed", "still served")
_FOR_ITS_ASKER = PolicyTable([ClassPolicy("policy", Scope.SUBJECT, 3600.0)])


def late_event(
    make: Callable[..., Any] = TaggedCache, key: Key = cache_key
) -> tuple[list[Incident], list[str]]:
    """The incidents that an event makes which comes 60 s after what it tells of, and what the
    server's log says of them.
    """
    cache = LearnedCache(NORTHSTAR, make, key)
    query = question("What is the refund window?")
    cache.put(query, Answer("34 days", sources=(Source("faq/1"),)), 0.0, 0)
    for now_s in (10.0, 70.0, 90.0, 110.0):
        cache.get(query, now_s)
    handler = _Lines()
    log.addHandler(handler)
    cache.invalidate(PolicyChanged(happened_s=60.0), 120.0)
    log.removeHandler(handler)
    return list(cache.incidents), handler.lines


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def question(text: str, tenant: str = "alder") -> Query:
    """A policy question of one of the tenant's people, as caches see it."""
    return Query(
        identity=Identity(tenant, "anna"),
        scope=Scope.TENANT,
        answer_class="policy",
        messages=(Message("user", text),),
        model=ModelTuple("nano"),
        decoding=Decoding(temperature=0.0),
    )


@dataclass(frozen=True, slots=True)
class Day:
    """Of all look-ups in a day, the share that hit and the share that was served stale."""

    hit_rate: float
    stale_rate: float


def day(
    freshness_s: float,
    event_delay_s: float | None,
    make: Callable[..., Any] = TaggedCache,
    count: int = 1200,
    seed: int = 5,
) -> Day:
    """A day of `count` look-ups of 40 questions, whose sources change every 8 hours on average.

    An event tells of each change `event_delay_s` later; None: there are no events.
    """
    rng = random.Random(seed)
    policies = PolicyTable([ClassPolicy("policy", Scope.TENANT, freshness_s)])
    cache = make(policies, by_question)
    questions = [question(f"question {number}") for number in range(40)]
    versions: Counter[int] = Counter()
    day_s = 86_400.0
    happenings: list[tuple[float, int, str, int]] = []

    def plan(at_s: float, what: str, which: int) -> None:
        happenings.append((at_s, len(happenings), what, which))

    for _ in range(count):
        plan(rng.uniform(0, day_s), "ask", min(int(rng.paretovariate(0.7)) - 1, 39))
    for number in range(40):
        at_s = rng.expovariate(1 / (8 * 3600))
        while at_s < day_s:
            plan(at_s, "change", number)
            if event_delay_s is not None:
                plan(at_s + event_delay_s, "tell", number)
            at_s += rng.expovariate(1 / (8 * 3600))
    hits = stale = 0
    for now_s, _, what, which in sorted(happenings):
        if what == "change":
            versions[which] += 1
        elif what == "tell":
            cache.invalidate(SourceChanged(source=f"{which}"), now_s)
        else:
            found = cache.get(questions[which], now_s)
            hits += found is not None
            if found is None:
                answer = Answer(f"version {versions[which]}", sources=(Source(f"{which}"),))
                cache.put(questions[which], answer, now_s, cache.num_events())
            else:
                stale += found.text != f"version {versions[which]}"
    return Day(hits / count, stale / count)


# -- one answer for all who wait


class Apart(SingleFlight):
    """No single flight: everybody leads."""

    def join(self, waiter: Waiter) -> bool:
        waiter.key = (waiter.key, id(waiter))
        return super().join(waiter)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What came of many who asked the same at once. Seconds are the virtual clock's."""

    num_model_calls: int
    e2e_s: list[float]
    num_cancelled: int

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `CROWD_HEADING`."""
        answered = len(self.e2e_s)
        last_s = quantile(self.e2e_s, 1.0)
        return name, f"{self.num_model_calls}", f"{answered}", f"{last_s:.2f}"


CROWD_HEADING = ("200 ask the same", "model calls", "answered", "the last has it after (s)")


def crowd(
    count: int = 200, is_shared: bool = True, cancel_first: bool = False, caches: bool = True
) -> Crowd:
    """`count` people ask one question within a second, of a cached service before a large model.

    `cancel_first` has the one who leads hang up after half a second.
    """
    front = _Simulated(LearnedCache(NORTHSTAR) if caches else None)
    if caches and not is_shared:
        front.service._flight = Apart()
    for number in range(count):
        front.send(f"r{number:03}", "What is the refund window?", at_s=number / count)
    if cancel_first:
        front.loop.at(0.5, lambda: front.service.cancel("r000"))
    front.loop.run()
    times = [
        end - begun for begun, end, reason in front.ended if reason is not FinishReason.CANCELLED
    ]
    return Crowd(front.num_model_calls, times, count - len(times))


FIRST_LETTER = 200


class _Simulated:
    """A service before the simulated large model; answers are 40 tokens, prompts 600."""

    def __init__(self, cache: ExactCache | None) -> None:
        self.loop = EventLoop(VirtualClock())
        executor = SimulatedExecutor(
            16_384, 16, cost=BIG_MODEL, token=lambda row: FIRST_LETTER + row.output_position
        )
        engine = Engine(executor, prefix_caching=False)
        service = Service(
            LocalClient(engine, self.loop),
            lambda stop: Detokenizer(lambda ids: "".join(map(chr, ids)), stop),
        )
        self.service: Any = service
        if cache is not None:
            self.service = CachedService(
                service, cache, ModelTuple("m"), now_s=self.loop.clock.now_s
            )
        self.ended: list[tuple[float, float, FinishReason]] = []
        self.num_model_calls = self.num_hits = 0
        engine.log.listen(self._count)

    def send(self, id: str, text: str, at_s: float, source: str = "faq") -> None:
        """Ask `text` at `at_s`."""
        prompt = tuple(random.Random(text).choices(range(5, 500), k=600))
        # Ends as an answer does, with a stop; only complete answers are cached.
        sampling = SamplingParams(max_tokens=80, stop=(chr(FIRST_LETTER + 40),))
        request = Request(id, prompt, sampling, Identity("alder", id), arrival_s=at_s)
        wording = Wording("policy", (Message("user", text),), (source,))

        def hear(output: Any) -> None:
            if isinstance(output, Started):
                self.num_hits += output.cache == "hit"
            if isinstance(output, Ended):
                self.ended.append((at_s, self.loop.clock.now_s(), output.reason))

        self.loop.at(at_s, lambda: self.service.submit(request, hear, wording=wording))

    def _count(self, event: Any) -> None:
        self.num_model_calls += isinstance(event, Submitted)


# -- a busy minute


def busy_minute(
    make: Callable[..., Any] | None, key: Key = cache_key, count: int = 700, seed: int = 5
) -> tuple[str, ...]:
    """Cells under `MINUTE_HEADING`: 12 questions a second for a large model, half of them popular.

    Without `make` there is no cache.
    """
    cache = None if make is None else LearnedCache(NORTHSTAR, make, key)
    front, rng, at_s = _Simulated(cache), random.Random(seed), 0.0
    for number in range(count):
        popular = f"question {min(int(rng.paretovariate(0.7)), 100)}"
        front.send(f"r{number:04}", popular if rng.random() < 0.5 else f"my {number}", at_s)
        at_s += rng.expovariate(12.0)
    front.loop.run()
    times = [end - begun for begun, end, _ in front.ended]
    return (
        f"{front.num_model_calls:,} of {count:,}",
        f"{front.num_hits / count:.0%}",
        f"{quantile(times, 0.5):.2f}",
        f"{quantile(times, 0.95):.2f}",
    )


MINUTE_HEADING = ("cache", "model calls", "hits", "p50 (s)", "p95 (s)")


# -- mistakes


class Careless(TaggedCache):
    """Stores whatever came out."""

    def put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool:
        return super().put(query, replace(answer, finish_reason="stop"), now_s, since)


def cut_short(make: Callable[..., Any] = TaggedCache, key: Key = cache_key) -> str:
    """What the next one gets, after somebody's answer was cut off by a lost connection."""
    cache = make(NORTHSTAR, key)
    asked = question("What is the refund window?")
    cache.put(asked, Answer("The refund window is", finish_reason="cancelled"), 0.0, 0)
    found = cache.get(asked, 1.0)
    return "a whole answer, computed afresh" if found is None else f"{found.text!r}"


def unchecked() -> list[tuple[str, ...]]:
    """Two answers, of which one says what no evidence says: stored without a check, and with one.

    Rows of (answer, unchecked, checked).
    """
    evidence = ["The refund window of Cinder Pass is 18 days."]

    def is_grounded(query: Query, answer: Answer) -> bool:
        return grounded(query.question, "policy", evidence, answer.text)

    rows: list[tuple[str, ...]] = []
    for text in (evidence[0], "The refund window of Cinder Pass is 80 days."):
        kept = []
        for validate in (lambda query, answer: True, is_grounded):
            cache = ExactCache(MemoryStore(), NORTHSTAR, validate=validate)
            asked = question("What is the refund window of Cinder Pass?")
            is_stored = cache.put(asked, Answer(text), 0.0, 0)
            kept.append("stored" if is_stored else "not stored")
        rows.append((text, *kept))
    return rows


def evidence_apart() -> list[tuple[str, ...]]:
    """Who finds the answer, and who finds the evidence that was looked up for it.

    Rows of (request, answer, evidence).
    """
    cache = ExactCache(MemoryStore(), NORTHSTAR)
    asked = question("What is the refund window of Cinder Pass?")
    sources = (Source("faq/1"),)
    cache.put(asked, Answer("18 days", sources=sources), 0.0, 0)
    cache.put_evidence(asked, Evidence(("The refund window is 18 days.",), sources), 0.0, 0)
    rows: list[tuple[str, ...]] = []
    for name, query in (
        ("the same again", asked),
        ("to a larger model", replace(asked, model=ModelTuple("large"))),
        ("a longer answer wanted", replace(asked, decoding=Decoding(temperature=0, max_tokens=9))),
        ("another tenant", question(asked.question, "marlow")),
    ):
        found = (cache.get(query, 1.0), cache.get_evidence(query, 1.0))
        rows.append((name, *("a miss" if one is None else "found" for one in found)))
    return rows


class Sliding(TaggedCache):
    """Lets every hit begin the time to live anew, as many a cache does by default."""

    def get(self, query: Query, now_s: float) -> Answer | None:
        found = super().get(query, now_s)
        if found is not None:
            super().put(query, found, now_s, self.count)
        return found


def oldest_served_s(make: Callable[..., Any] = TaggedCache, key: Key = cache_key) -> float:
    """How old the oldest answer was that somebody got, of a popular question in a week."""
    cache = make(NORTHSTAR, key)
    asked, created_s, oldest_s = question("What is the refund window?"), 0.0, 0.0
    for now_s in range(0, 7 * 86_400, 600):
        if cache.get(asked, now_s) is None:
            cache.put(asked, Answer("34 days"), now_s, cache.num_events())
            created_s = now_s
        oldest_s = max(oldest_s, now_s - created_s)
    return oldest_s
