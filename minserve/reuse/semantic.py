"""The semantic cache: another wording of a question gets its answer, if every check agrees.

It finds keys, not answers. Identity has chosen the partition and the rest of the request (model,
decoding, history, versions) the shelf before anything is compared; on that shelf the intent must be
clear, the guards must see no difference, and then the exact cache serves the answer of the key that
was found, with all of its own checks. Whatever fails, raises or is unsure is a miss.

Equivalent inputs: all but the words of the last question, and those if every check agrees. Valid,
and in scope, as the exact cache's answers. Order: the nearest is tried first. A cancelled answer is
never stored.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import is_

import numpy as np

from minserve.reuse.embedding import Embedder
from minserve.reuse.gate import Examples, Thresholds
from minserve.reuse.guards import failed_guard
from minserve.reuse.invalidation import CacheEvent, tags_of
from minserve.reuse.key import Query, ShelfKey, partition_of
from minserve.reuse.response import ExactCache, Found

log = logging.getLogger("minserve.cache")

CANDIDATES = 40
"""Nearest entries of the intent that the guards may look at."""

Gate = Callable[[str, str, float, str], str | None]
"""`gate(asked, stored, cosine, intent)` says why the answer to `stored` is none to `asked`: a word
for the figures, or None if nothing speaks against it."""


class Shelf:
    """Vectors float32 [n, d] and what each stands for; the nearest of one intent are found.

    Exact search: one matrix-vector product. At most `max_entries`; the oldest place is used again.
    """

    def __init__(self, dim: int, max_entries: int) -> None:
        self.max_entries = max_entries
        self.entries: list[Entry] = []
        self._places: dict[str, int] = {}
        self._vectors = np.zeros((min(16, max_entries), dim), np.float32)
        self._oldest = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, vector: np.ndarray, entry: Entry) -> None:
        """Put an entry on the shelf; one of the same key is replaced."""
        place = self._places.get(entry.key)
        if place is None and len(self) >= self.max_entries:
            place, self._oldest = self._oldest, (self._oldest + 1) % self.max_entries
            del self._places[self.entries[place].key]
        if place is None:
            place = len(self)
            if place == len(self._vectors):
                more = np.zeros((min(place, self.max_entries - place), len(vector)), np.float32)
                self._vectors = np.concatenate([self._vectors, more])
            self.entries.append(entry)
        self._vectors[place], self.entries[place] = vector, entry
        self._places[entry.key] = place

    def nearest(self, vector: np.ndarray, intent: str, count: int) -> list[tuple[Entry, float]]:
        """The entries of that intent with their cosines, nearest first, at most `count`."""
        cosines = self._vectors[: len(self)] @ vector
        wanted = min(len(cosines), 8 * count)
        best: list[int] = np.argpartition(-cosines, wanted - 1)[:wanted].tolist() if wanted else []
        ordered = sorted(best, key=lambda index: -cosines[index])
        found = [(self.entries[i], float(cosines[i])) for i in ordered]
        return [(entry, cosine) for entry, cosine in found if entry.intent == intent][:count]

    def discard(self, is_gone: Callable[[Entry], bool]) -> None:
        """Remove every entry for which it holds, its text with it."""
        kept = [i for i, entry in enumerate(self.entries) if not is_gone(entry)]
        if len(kept) == len(self):
            return
        vectors = np.zeros_like(self._vectors)
        vectors[: len(kept)] = self._vectors[kept]
        self._vectors, self.entries = vectors, [self.entries[i] for i in kept]
        self._places = {entry.key: place for place, entry in enumerate(self.entries)}
        self._oldest = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A question whose answer lies in the exact cache under `key`."""

    key: str
    question: str
    intent: str
    tags: frozenset[str] = field(default_factory=frozenset)


class SemanticCache:
    """In front of an `ExactCache`, for the classes whose policy allows it.

    Args:
        exact: Holds the answers, decides on freshness, and validates at every hit.
        embedder: Texts to vectors.
        examples: Labelled questions, as this embedder places them.
        thresholds: What `calibrate` made of others.
        verify: A further check of (question asked, question answered); must say True.
        gate: Decides in place of the guards and `verify`.
        max_entries: Of all shelves together.
        max_shelves: Shelves beyond either are forgotten, the least recently used first; of the last
            one the oldest entries.
    """

    def __init__(
        self,
        exact: ExactCache,
        embedder: Embedder,
        examples: Examples,
        thresholds: Thresholds,
        *,
        verify: Callable[[str, str], bool] = lambda asked, answered: True,
        gate: Gate | None = None,
        max_entries: int = 100_000,
        max_shelves: int = 256,
    ) -> None:
        self.exact, self.embedder = exact, embedder
        self.examples, self.thresholds = examples, thresholds
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """How often each (intent, or "-" before one is known; outcome) came about."""
        self._verify, self._gate = verify, gate or self._guards
        self._max_entries, self._max_shelves = max_entries, max_shelves
        self._shelves: OrderedDict[tuple[str, str], Shelf] = OrderedDict()

    @property
    def num_questions(self) -> int:
        """Questions on all shelves, and so in memory."""
        return sum(map(len, self._shelves.values()))

    def look_up(self, query: Query, now_s: float) -> Found:
        """The answer to a question that asks the same; ask the exact cache first. Never raises."""
        try:
            intent, found = self._look_up(query, now_s)
        except Exception as error:  # whatever a model or a check raises: then it is no hit
            log.warning("semantic cache: %s: %s", type(error).__name__, error)
            intent, found = "-", Found("error")
        self.outcomes[intent, found.outcome] += 1
        return found

    def _look_up(self, query: Query, now_s: float) -> tuple[str, Found]:
        policy = self.exact.policies[query.answer_class]
        if not policy.semantic or not policy.allows(query) or not query.question.strip():
            return "-", Found("not_allowed")
        place = partition_of(query), ShelfKey().of(query)
        if not (shelf := self._shelves.get(place)):
            return "-", Found("miss")
        self._shelves.move_to_end(place)
        vector = self.embedder.embed([query.question])[0]
        intent = self._intent(vector)
        if intent is None:
            return "-", Found("unsure")
        outcome = "miss"
        for entry, cosine in shelf.nearest(vector, intent, CANDIDATES):
            if failed := self._gate(query.question, entry.question, cosine, intent):
                outcome = failed
            else:
                found = self.exact.look_up(query, now_s, wording=entry.question, refresh=False)
                if found.answer is not None:
                    return intent, found
                shelf.discard(partial(is_, entry))
                outcome = found.outcome
        return intent, Found(outcome)

    def put(self, query: Query, sources: tuple[str, ...] = ()) -> bool:
        """Have this question, whose answer was just stored, answer its other wordings."""
        policy = self.exact.policies[query.answer_class]
        if not policy.semantic or not policy.allows(query) or not query.question.strip():
            return False
        try:
            vector = self.embedder.embed([query.question])[0]
            intent = self._intent(vector)
            if intent is None:
                return False
            place = partition_of(query), ShelfKey().of(query)
            shelf = self._shelves.setdefault(place, Shelf(len(vector), self._max_entries))
            self._shelves.move_to_end(place)
            tags = frozenset(tags_of(query, sources))
            shelf.add(vector, Entry(self.exact.key_of(query), query.question, intent, tags))
            while len(self._shelves) > 1 and self._is_over():
                self._shelves.popitem(last=False)
        except Exception as error:
            log.warning("semantic cache: %s: %s", type(error).__name__, error)
            return False
        return True

    def _is_over(self) -> bool:
        return len(self._shelves) > self._max_shelves or self.num_questions > self._max_entries

    def invalidate(self, event: CacheEvent, now_s: float) -> int:
        """As `ExactCache.invalidate`; forgets the questions of what is gone as well."""
        tags = set(event.tags())
        for shelf in self._shelves.values():
            shelf.discard(lambda entry: not tags.isdisjoint(entry.tags))
        return self.exact.invalidate(event, now_s)

    def _guards(self, asked: str, stored: str, cosine: float, intent: str) -> str | None:
        if failed := failed_guard(asked, stored):
            return failed
        return None if self._verify(asked, stored) is True else "not_verified"

    def _intent(self, vector: np.ndarray) -> str | None:
        if not np.isfinite(vector).all() or not vector.any():
            return None
        (judgement,) = self.examples.judge(vector[None])
        return judgement.intent if self.thresholds.passes(judgement) else None
