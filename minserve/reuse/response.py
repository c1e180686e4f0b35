"""The exact response cache: an answer is served again only where it would be given again.

Before anything is looked up, the identity has chosen the partition and the policy of the class has
said yes. What is found must still be fresh, of this very key, valid as output, and rest on sources
that are as they were. Any doubt, and any failure of a check or of the store, is a miss.

Equivalent inputs: requests of one canonical key. Valid for the class's window, less any event.
Scope: the class's (subject, tenant with equal roles, everybody). Order: none beyond the chat so
far, which is in the key. A cancelled answer is never stored.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from minserve.reuse.invalidation import CacheEvent, tags_of
from minserve.reuse.key import CacheKey, CanonicalKey, EvidenceKey, Query, partition_of
from minserve.reuse.policy import PolicyTable
from minserve.reuse.stores import Store

log = logging.getLogger("minserve.cache")

T = TypeVar("T")
VERSION = 1
RECENT_HITS = 10_000
"""Hits remembered, to count those that a late event shows to have been stale."""


@dataclass(frozen=True, slots=True)
class Source:
    """A piece of evidence, and which content it had."""

    id: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, with what it rests on.

    `finish_reason` is `stop` for a complete answer, the only kind that is stored. `is_fallback`
    marks text that stands in for a failure ("Sorry, something went wrong"): never stored.
    `compute_s` is what it took to make. `extra` is JSON of the caller's own, kept as it is.
    `created_s` is filled in when it is stored.
    """

    text: str
    finish_reason: str = "stop"
    sources: tuple[Source, ...] = ()
    compute_s: float = 0.0
    is_fallback: bool = False
    extra: Any = None
    created_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was looked up for a request, kept apart from the prose made of it."""

    lines: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up came to. `answer` is None on a miss, and `outcome` says why.

    `since` is to be passed on to `put` by whoever computes the answer now.
    """

    outcome: str
    answer: Answer | None = None
    since: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """`num_hits` answers were served between a change and the event that told of it."""

    event: CacheEvent
    num_hits: int
    happened_s: float
    noticed_s: float


class ResponseCache(Protocol):
    """Answers by request.

    `get` returns a stored answer that may be served to this very request at `now_s`, or None;
    serving it never makes it live longer. `num_events` is the number of events so far. `put` stores
    a complete answer if its class allows, unless an event that it rests on came after the first
    `since` events; returns whether it did. `invalidate` removes every answer that an event makes
    wrong, and returns how many. None of them raises for a request or answer that is not cacheable.
    """

    def get(self, query: Query, now_s: float) -> Answer | None: ...

    def num_events(self) -> int: ...

    def put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool: ...

    def invalidate(self, event: CacheEvent, now_s: float) -> int: ...


Check = Callable[[Query, Answer], bool]


class ExactCache:
    """A `ResponseCache` over any `Store`.

    Args:
        store: Where entries lie.
        policies: What each class of answer allows.
        validate: Says whether an answer is right for a request, before insertion and at every hit.
        sources_valid: Says whether a source is still as it was and this query's identity may see
            it, at every hit.
        rng: For early refresh (XFetch; Vattani, Chierichetti, Lowenstein, VLDB 2015): shortly
            before its end an answer is a miss now and then, for one to renew it while others are
            served.
        beta: How eagerly; 0 switches early refresh off.
        key_of: Names requests.
    """

    def __init__(
        self,
        store: Store,
        policies: PolicyTable,
        *,
        validate: Check = lambda query, answer: True,
        sources_valid: Callable[[Query, Source], bool] = lambda query, source: True,
        rng: random.Random | None = None,
        beta: float = 1.0,
        key_of: CacheKey | None = None,
    ) -> None:
        self.store, self.policies = store, policies
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How often each (answer class, outcome) came about."""
        self.incidents: deque[Incident] = deque(maxlen=100)
        self.num_stale_hits = 0
        self._validate, self._sources_valid = validate, sources_valid
        self._keys = key_of or CanonicalKey()
        self._rng, self._beta = rng or random.Random(0), beta
        self._recent: deque[tuple[float, tuple[str, ...]]] = deque(maxlen=RECENT_HITS)

    def key_of(self, query: Query) -> str:
        """What a request is called here. Raises `NotCacheable`."""
        return self._keys.of(query)

    # -- answers

    def get(self, query: Query, now_s: float) -> Answer | None:
        return self.look_up(query, now_s).answer

    def look_up(
        self, query: Query, now_s: float, *, refresh: bool = True, wording: str | None = None
    ) -> Found:
        """As `get`, with the reason.

        `refresh` False leaves early refresh out. `wording` asks for the answer to this question in
        other words, which the semantic cache found to be the same: it must be right for `query`.
        """
        stored = query if wording is None else query.asking(wording)
        found = self._guarded(lambda: self._look_up(query, now_s, refresh, stored), Found("error"))
        known = self.policies[query.answer_class].freshness_s > 0
        self.outcomes[query.answer_class if known else "other", found.outcome] += 1
        if found.answer is not None:
            self._recent.append((now_s, tags_of(query, _ids(found.answer.sources))))
        return found

    def _look_up(self, query: Query, now_s: float, refresh: bool, stored: Query) -> Found:
        policy = self.policies[query.answer_class]
        if not policy.allows(query):
            return Found("not_allowed")
        partition, key = partition_of(query), self.key_of(stored)
        since = self.store.num_events()  # NOTE: before the look-up, so that no event falls between
        text = self.store.get(partition, key, now_s)
        if text is None:
            return Found("miss", since=since)
        entry = json.loads(text)
        answer = _answer(entry)
        if (entry["v"], entry["partition"], entry["key"]) != (VERSION, partition, key):
            outcome = "foreign"
        elif not 0 <= now_s - entry["created_s"] < policy.freshness_s:
            outcome = "expired"  # the window may have become shorter since it was stored
        elif not all(self._sources_valid(query, source) for source in answer.sources):
            outcome = "stale_source"
        elif not self._is_valid(query, answer):
            outcome = "invalid"
        elif refresh and self._is_due(answer, entry["created_s"] + policy.freshness_s, now_s):
            return Found("refresh", since=since)
        else:
            return Found("hit", answer, since)
        self.store.remove(partition, key)
        return Found(outcome, since=since)

    def num_events(self) -> int:
        return self._guarded(lambda: self.store.num_events(), -1)

    def put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool:
        return self._guarded(lambda: self._put(query, answer, now_s, since), False)

    def _put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool:
        policy = self.policies[query.answer_class]
        if not policy.allows(query) or not self._is_valid(query, answer):
            return False
        partition, key = partition_of(query), self.key_of(query)
        entry = {"v": VERSION, "partition": partition, "key": key}
        return self.store.put(
            partition,
            key,
            json.dumps(entry | _written(replace(answer, created_s=now_s))),
            tags=tags_of(query, _ids(answer.sources)),
            expires_s=now_s + policy.freshness_s,
            now_s=now_s,
            since=since,
        )

    # -- evidence, apart from the prose: another model or other decoding uses it too

    def get_evidence(self, query: Query, now_s: float) -> Evidence | None:
        """What was looked up for this request, if all its sources are still as they were."""

        def look_up() -> Evidence | None:
            partition, key = partition_of(query), EvidenceKey().of(query)
            text = self._evidence_allowed(query) and self.store.get(partition, key, now_s)
            if not text:
                return None
            entry = json.loads(text)
            sources = _sources(entry["sources"])
            right = (entry["v"], entry["partition"], entry["key"]) == (VERSION, partition, key)
            if not right or not all(self._sources_valid(query, source) for source in sources):
                self.store.remove(partition, key)
                return None
            return Evidence(tuple(entry["lines"]), sources)

        return self._guarded(look_up, None)

    def put_evidence(self, query: Query, evidence: Evidence, now_s: float, since: int) -> bool:
        """Keep what was looked up for this request, as long as its class says."""

        def store() -> bool:
            if not self._evidence_allowed(query):
                return False
            partition, key = partition_of(query), EvidenceKey().of(query)
            entry = {"v": VERSION, "partition": partition, "key": key, "lines": evidence.lines}
            entry["sources"] = [[source.id, source.version] for source in evidence.sources]
            return self.store.put(
                partition,
                key,
                json.dumps(entry),
                tags=tags_of(query, _ids(evidence.sources), with_model=False),
                expires_s=now_s + self.policies[query.answer_class].evidence_s,
                now_s=now_s,
                since=since,
            )

        return self._guarded(store, False)

    def _evidence_allowed(self, query: Query) -> bool:
        policy = self.policies[query.answer_class]
        return policy.evidence_s > 0 and query.scope is policy.scope

    # -- events

    def invalidate(self, event: CacheEvent, now_s: float) -> int:
        """Remove what `event` makes wrong; count hits served since it happened as stale.

        Raises what the store raises: an event that did not arrive must not pass for handled.
        """
        tags = set(event.tags())
        num_removed = self.store.invalidate(tags)
        happened_s = now_s if event.happened_s is None else event.happened_s
        hits = sum(time_s >= happened_s and not tags.isdisjoint(t) for time_s, t in self._recent)
        if hits and event.happened_s is not None:
            self.num_stale_hits += hits
            self.incidents.append(Incident(event, hits, happened_s, now_s))
            log.warning("%d stale hits before %s arrived", hits, event.kind)
        return num_removed

    # -- checks

    def _is_valid(self, query: Query, answer: Answer) -> bool:
        complete = answer.finish_reason == "stop" and not answer.is_fallback
        return complete and bool(answer.text.strip()) and self._validate(query, answer) is True

    def _is_due(self, answer: Answer, until_s: float, now_s: float) -> bool:
        """XFetch: -beta x delta x ln(rand) reaches the time that is left."""
        if not self._beta or not answer.compute_s:
            return False
        ahead_s = -self._beta * answer.compute_s * math.log(1.0 - self._rng.random())
        return now_s + ahead_s >= until_s

    def _guarded(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except Exception as error:  # whatever a check or a store raises: then it is no hit
            log.warning("response cache: %s: %s", type(error).__name__, error)
            return otherwise


def _ids(sources: Sequence[Source]) -> list[str]:
    return [source.id for source in sources]


def _sources(pairs: Sequence[Sequence[str]]) -> tuple[Source, ...]:
    return tuple(Source(id, version) for id, version in pairs)


def _written(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "sources": [[source.id, source.version] for source in answer.sources],
        "compute_s": answer.compute_s,
        "extra": answer.extra,
        "created_s": answer.created_s,
    }


def _answer(entry: dict[str, Any]) -> Answer:
    return Answer(
        text=entry["text"],
        finish_reason=entry["finish_reason"],
        sources=_sources(entry["sources"]),
        compute_s=entry["compute_s"],
        extra=entry["extra"],
        created_s=entry["created_s"],
    )
