"""The parts of lesson 5: the reference of each, and how a real cached service runs them.

`cache_key`, `ResponseCachePart` and `semantic_gate` are what the lesson asks for. Each has one
place in `minserve.cached_service.CachedService(service, cache, model, semantic=...)`:

    cache_key        cache = ExactCache(store, policies, key_of=KeyPart(function))
    response_cache   cache = LearnedCache(policies, make, function of the key)
    semantic_gate    semantic = SemanticCache(cache, embedder, examples, thresholds,
                                              gate=gate_part(function, least))

Whatever the parts do, identity has chosen the partition before they are asked, single flight never
joins two partitions, and `LearnedCache` serves only what was put into the asker's own partition.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Protocol

from minserve.reuse.guards import NEGATIONS, OPPOSITES, words
from minserve.reuse.invalidation import CacheEvent, tags_of
from minserve.reuse.key import Query, partition_of
from minserve.reuse.policy import PolicyTable
from minserve.reuse.response import Answer, ExactCache, Found
from minserve.reuse.semantic import Gate
from minserve.reuse.stores import MemoryStore

Key = Callable[[Query], str]


# -- cache_key


def cache_key(query: Query) -> str:
    """The name of the answer to `query`: SHA-256, in hex, of every field that it depends on.

    Who asks enters as far as the scope says. Message text is in Unicode NFC; nothing else is
    folded. `minserve.reuse.key.CanonicalKey` is the same with JSON as RFC 8785 has it.
    """
    form = asdict(query)
    identity = form.pop("identity")
    if query.scope != "public":
        form["tenant"] = identity["tenant"]
        form["roles"] = sorted(identity["roles"])
    if query.scope == "subject":
        form["subject"] = identity["subject"]
    for message in form["messages"]:
        message["content"] = unicodedata.normalize("NFC", message["content"])
    text = json.dumps(form, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class KeyPart:
    """A learner's function as the `CacheKey` of an `ExactCache`."""

    def __init__(self, function: Key = cache_key) -> None:
        self.of = function


# -- response_cache


class ResponseCachePart(Protocol):
    """The part `response_cache`. Made with the policy table and a key: `(policies, key)`.

    `get(query, now_s)` returns a stored answer that may be served, or None. `put(query, answer,
    now_s, since)` stores a complete answer if its class allows and no event that it rests on came
    after the first `since`; returns whether it did. `invalidate(event, now_s)` removes what the
    event makes wrong, and returns how many. `num_events()` counts the events so far. None of them
    raises for what cannot be cached, also where `key(query)` raises `NotCacheable`.
    """

    def get(self, query: Query, now_s: float) -> Answer | None: ...

    def num_events(self) -> int: ...

    def put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool: ...

    def invalidate(self, event: CacheEvent, now_s: float) -> int: ...


class TaggedCache:
    """Reference of `response_cache`: a dictionary by place, with tags. `ExactCache` does more."""

    def __init__(self, policies: PolicyTable, key: Key = cache_key) -> None:
        self.policies, self.key = policies, key
        self.entries: dict[tuple[str, str], tuple[Answer, float, set[str]]] = {}
        self.count = 0
        self.last: dict[str, int] = {}

    def place(self, query: Query) -> tuple[str, str] | None:
        """Where the answer to `query` lies; None if it is not to be cached."""
        if not self.policies[query.answer_class].allows(query):
            return None
        try:
            return partition_of(query), self.key(query)
        except Exception:
            return None

    def get(self, query: Query, now_s: float) -> Answer | None:
        """The stored answer, if it is still fresh."""
        place = self.place(query)
        if place not in self.entries:
            return None
        answer, created_s, _ = self.entries[place]
        if now_s - created_s >= self.policies[query.answer_class].freshness_s:
            del self.entries[place]
            return None
        return answer

    def num_events(self) -> int:
        """How many events there have been."""
        return self.count

    def put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool:
        """Store a complete answer, unless something that it rests on has changed meanwhile."""
        place = self.place(query)
        if place is None or answer.finish_reason != "stop":
            return False
        if answer.is_fallback or not answer.text.strip():
            return False
        tags = set(tags_of(query, [source.id for source in answer.sources]))
        if any(self.last.get(tag, 0) > since for tag in tags):
            return False
        self.entries[place] = (answer, now_s, tags)
        return True

    def invalidate(self, event: CacheEvent, now_s: float) -> int:
        """Remove every answer that carries one of the event's tags."""
        self.count += 1
        self.last.update(dict.fromkeys(event.tags(), self.count))
        hit = set(event.tags())
        gone = [place for place, (_, _, tags) in self.entries.items() if tags & hit]
        for place in gone:
            del self.entries[place]
        return len(gone)


class LearnedCache(ExactCache):
    """A service's exact cache with a learner's decisions, of `make(policies, key)`.

    The engine's own is kept beside it: what the part serves is served only if it was put into the
    asker's partition under the same key, so a wrong part costs hits and leaks nothing. (How long,
    and after which events, is the part's own affair.)
    """

    def __init__(
        self,
        policies: PolicyTable,
        make: Callable[[PolicyTable, Key], ResponseCachePart] = TaggedCache,
        key: Key = cache_key,
    ) -> None:
        super().__init__(MemoryStore(), policies, key_of=KeyPart(key), beta=0.0)
        self.part = make(policies, key)

    def num_events(self) -> int:
        return self._guarded(self.part.num_events, -1)

    def _look_up(self, query: Query, now_s: float, refresh: bool, stored: Query) -> Found:
        since = self.part.num_events()
        answer = self.part.get(stored, now_s)
        own = super()._look_up(query, now_s, refresh, stored)
        if answer is None or own.answer is None or answer.text != own.answer.text:
            return Found("miss" if answer is None else own.outcome, since=since)
        return Found("hit", own.answer, since)

    def _put(self, query: Query, answer: Answer, now_s: float, since: int) -> bool:
        is_kept = self.part.put(query, answer, now_s, since)
        return is_kept and super()._put(query, answer, now_s, self.store.num_events())

    def invalidate(self, event: CacheEvent, now_s: float) -> int:
        super().invalidate(event, now_s)
        return self.part.invalidate(event, now_s)


# -- semantic_gate


def semantic_gate(
    asked: str,
    stored: str,
    cosine: float,
    least: float,
    verify: Callable[[str, str], bool],
) -> bool:
    """Whether the answer to `stored` may be given to `asked`: True only if nothing speaks against.

    `cosine` says how near they are and `least` how near this intent needs them. `verify(asked,
    stored)` is one more check, which must say True. Never raises.
    """
    a, b = words(asked), words(stored)
    if not a or not cosine >= least:
        return False
    if is_question(asked) != is_question(stored):
        return False
    if sum(word in NEGATIONS for word in a) % 2 != sum(word in NEGATIONS for word in b) % 2:
        return False
    for one, other in OPPOSITES:
        sides_a = (not one.isdisjoint(a), not other.isdisjoint(a))
        sides_b = (not one.isdisjoint(b), not other.isdisjoint(b))
        if any(sides_a) and any(sides_b) and sides_a != sides_b:
            return False
    if sorted(filter(has_digit, a)) != sorted(filter(has_digit, b)):
        return False
    try:
        return verify(asked, stored) is True
    except Exception:  # a check that could not be made has not been passed
        return False


def is_question(text: str) -> bool:
    """Whether a text asks, by its last sign."""
    return text.rstrip().endswith("?")


def has_digit(word: str) -> bool:
    """Whether a word holds a number: 14, 2024, A-12."""
    return any(letter.isdigit() for letter in word)


GateFunction = Callable[[str, str, float, float, Callable[[str, str], bool]], bool]


def gate_part(
    function: GateFunction = semantic_gate,
    least: Mapping[str, float] | None = None,
    otherwise: float = 0.8,
    verify: Callable[[str, str], bool] = lambda asked, stored: True,
) -> Gate:
    """A learner's function as the gate of a `SemanticCache`; `least` is the threshold by intent."""
    thresholds = least or {}

    def gate(asked: str, stored: str, cosine: float, intent: str) -> str | None:
        allowed = function(asked, stored, cosine, thresholds.get(intent, otherwise), verify)
        return None if allowed is True else "gate"

    return gate
