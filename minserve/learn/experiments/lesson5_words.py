"""Lesson 5's experiments on questions that sound alike: cosines, gates, thresholds, and who asked.

Northstar's authored pairs (376 of them) say which questions ask the same. Vectors are those of
`HashedNgrams`, which needs no weights; a model's are better, and have the same trouble.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

from minserve.learn.parts_of_reuse import GateFunction, semantic_gate
from minserve.northstar.caching import load_pairs
from minserve.reuse.embedding import HashedNgrams
from minserve.reuse.gate import upper_bound
from minserve.reuse.guards import failed_guard

SAME = "same"
LEAST = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Near:
    """A question asked, one that is stored, their cosine; `kind` is `same`, or how they differ."""

    asked: str
    stored: str
    kind: str
    cosine: float


@lru_cache(maxsize=1)
def pairs() -> tuple[Near, ...]:
    """All authored pairs."""
    embed = HashedNgrams().embed
    found = []
    for group in load_pairs():
        stored, *asked = embed([group[0].cached, *(pair.asked for pair in group)])
        for pair, vector in zip(group, asked, strict=True):
            found.append(Near(pair.asked, pair.cached, pair.kind, float(vector @ stored)))
    return tuple(found)


def cosines() -> list[tuple[str, str, str, str]]:
    """Rows under `COSINES_HEADING`: a few pairs, and the medians of all."""
    wanted = (
        ("How do I close an account?", "How can an account be closed?"),
        ("How do I close an account?", "How do I open an account?"),
        ("How do I turn on dark mode?", "Where do I enable the dark theme?"),
        ("How do I turn on dark mode?", "How do I turn off dark mode?"),
        ("Is the deposit refunded after 30 days?", "Is the deposit refunded after 60 days?"),
    )
    by_texts = {(near.stored, near.asked): near for near in pairs()}
    rows = [(*texts, by_texts[texts].kind, f"{by_texts[texts].cosine:.2f}") for texts in wanted]
    same = [near.cosine for near in pairs() if near.kind == SAME]
    other = [near.cosine for near in pairs() if near.kind != SAME]
    rows.append((f"median of {len(same)}", "", SAME, f"{median(same):.2f}"))
    rows.append((f"median of {len(other)}", "", "all near misses", f"{median(other):.2f}"))
    return rows


COSINES_HEADING = ("stored", "asked", "they are", "cosine")


# -- gates


def cosine_alone(
    asked: str, stored: str, cosine: float, least: float, verify: Callable[[str, str], bool]
) -> bool:
    """What many semantic caches do."""
    return cosine >= least


def no_doubt(asked: str, stored: str) -> bool:
    """A check that never objects."""
    return True


def engines_guards(asked: str, stored: str) -> bool:
    """The engine's guards as the check of a gate: names, directions and lone swaps, too."""
    return failed_guard(asked, stored) is None


Check = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Point:
    """At the threshold `least`: how many paraphrases were served, and near misses by kind."""

    least: float
    num_right: int
    false_hits: Mapping[str, int]
    num_paraphrases: int

    @property
    def hit_rate(self) -> float:
        """Served share of the paraphrases."""
        return self.num_right / self.num_paraphrases

    @property
    def num_false(self) -> int:
        """Near misses that were served an answer to another question."""
        return sum(self.false_hits.values())

    @property
    def false_rate(self) -> float:
        """Wrong share of what was served."""
        served = self.num_right + self.num_false
        return self.num_false / served if served else 0.0

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `POINT_HEADING`."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.false_hits.items()) or "none"
        served = f"{self.num_right} of {self.num_paraphrases}"
        return name, served, f"{self.num_false}", f"{self.false_rate:.0%}", kinds


POINT_HEADING = ("gate", "paraphrases served", "false hits", "of all served", "which")


def curve(
    gate: GateFunction, verify: Check = no_doubt, leasts: Sequence[float] = LEAST
) -> list[Point]:
    """Every pair put to `gate`, at each threshold. Near misses are most of the pairs here, which
    no real traffic is: compare gates, and do not quote the rates.
    """
    total = sum(near.kind == SAME for near in pairs())
    points = []
    for least in leasts:
        served = [
            near.kind
            for near in pairs()
            if gate(near.asked, near.stored, near.cosine, least, verify) is True
        ]
        false_hits = Counter(kind for kind in sorted(served) if kind != SAME)
        points.append(Point(least, served.count(SAME), dict(false_hits), total))
    return points


def slipped_through(
    gate: GateFunction, verify: Check = no_doubt, least: float = 0.6, count: int = 6
) -> list[tuple[str, str, str]]:
    """(kind, stored, asked) of the first false hits of a gate, no kind more than twice."""
    seen: Counter[str] = Counter()
    rows = []
    for near in pairs():
        if near.kind == SAME or seen[near.kind] == 2:
            continue
        if gate(near.asked, near.stored, near.cosine, least, verify) is True:
            seen[near.kind] += 1
            rows.append((near.kind, near.stored, near.asked))
    return rows[:count]


# -- thresholds

INTENTS = {"how": "how to", "is": "yes or no", "what": "look up"}


def intent_of(question: str) -> str:
    """One of three coarse intents, by the first word."""
    first = question.split()[0].casefold()
    if first == "how":
        return INTENTS["how"]
    is_open = first in ("what", "which", "when", "where", "who", "why")
    return INTENTS["what" if is_open else "is"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The nearest stored question that the words let pass, for one that was asked."""

    intent: str
    half: int
    cosine: float
    is_right: bool


@lru_cache(maxsize=4)
def candidates(gate: GateFunction = semantic_gate) -> tuple[Candidate, ...]:
    """Every authored question asked of a cache of all 75, and each paraphrase once more of a cache
    that lacks its own: that is what an unknown question finds.
    """
    groups = load_pairs()
    stored = [group[0].cached for group in groups]
    vectors = HashedNgrams().embed(stored)
    found = []
    for number, group in enumerate(groups):
        asked_vectors = HashedNgrams().embed([pair.asked for pair in group])
        for pair, vector in zip(group, asked_vectors, strict=True):
            nearness = vectors @ vector
            for without in (None, number) if pair.kind == SAME else (None,):
                best = _first(gate, pair.asked, stored, nearness, without)
                is_right = best == number and pair.kind == SAME
                cosine = float(nearness[best]) if best is not None else 0.0
                found.append(Candidate(intent_of(stored[number]), number % 2, cosine, is_right))
    return tuple(found)


def _first(
    gate: GateFunction, asked: str, stored: Sequence[str], nearness: np.ndarray, without: int | None
) -> int | None:
    for place in np.argsort(-nearness):
        cosine = float(nearness[place])
        if cosine < 0.25:
            return None
        if place != without and gate(asked, stored[place], cosine, 0.0, engines_guards) is True:
            return int(place)
    return None


def calibrated(some: Sequence[Candidate], margin: float) -> float:
    """The threshold above the nearest wrong candidate, with some room."""
    return max((one.cosine for one in some if not one.is_right), default=0.0) + margin


def thresholds(gate: GateFunction = semantic_gate, margin: float = 0.08) -> list[tuple[str, ...]]:
    """Rows under `THRESHOLDS_HEADING`: calibrated on half of the groups, asked the other half, and
    the other way round.
    """
    intents = list(INTENTS.values())
    tallies: dict[str, list[bool]] = {"one lenient": [], "one strict": [], "one per intent": []}
    learnt: dict[str, list[float]] = {intent: [] for intent in intents}
    for half in (0, 1):
        known = [one for one in candidates(gate) if one.half == half]
        asked = [one for one in candidates(gate) if one.half != half]
        own = {i: calibrated([c for c in known if c.intent == i], margin) for i in intents}
        for intent in intents:
            learnt[intent].append(own[intent])
        for one in asked:
            for name, least in (
                ("one lenient", min(own.values())),
                ("one strict", max(own.values())),
                ("one per intent", own[one.intent]),
            ):
                if one.cosine >= least:
                    tallies[name].append(one.is_right)
    shown = ", ".join(f"{intent} {max(values):.2f}" for intent, values in learnt.items())
    notes = {
        "one lenient": f"{min(max(v) for v in learnt.values()):.2f}",
        "one strict": f"{max(max(v) for v in learnt.values()):.2f}",
        "one per intent": shown,
    }
    rows: list[tuple[str, ...]] = []
    for name, hits in tallies.items():
        false = hits.count(False)
        bound = upper_bound(false, len(hits))
        rows.append((name, notes[name], f"{sum(hits)}", f"{false}", f"{bound:.1%}"))
    return rows


THRESHOLDS_HEADING = ("threshold", "learnt", "right hits", "false hits", "95 % bound of false")


# -- authorisation before look-up


STRANGER = -1


def who_asked(seed: int = 5) -> list[tuple[str, ...]]:
    """Rows under `AUTHORISED_HEADING`. Eight tenants have asked half of 75 questions each, in one
    of three wordings; then each asks again what it knows, in another wording, and a stranger asks
    everything, to learn what one victim has asked.
    """
    rng = random.Random(seed)
    groups = load_pairs()
    embed = HashedNgrams().embed
    wordings = [
        [group[0].cached, *(pair.asked for pair in group if pair.kind == SAME)][:3]
        for group in groups
    ]
    stored: list[tuple[int, int, str]] = []  # (tenant, question, text)
    asks: list[tuple[int, int, str]] = []
    for tenant in range(8):
        for number in rng.sample(range(len(groups)), len(groups) // 2):
            first, second = rng.sample(wordings[number], 2)
            stored.append((tenant, number, first))
            asks.append((tenant, number, second))
    vectors = embed([text for _, _, text in stored])
    tenants = np.array([tenant for tenant, _, _ in stored])
    rows: list[tuple[str, ...]] = []
    for name, partition_first in (("look up, then authorise", False), ("partition first", True)):
        hits = 0
        for (tenant, _, text), vector in zip(asks, embed([a[2] for a in asks]), strict=True):
            nearness = vectors @ vector
            if partition_first:
                nearness = np.where(tenants == tenant, nearness, -1.0)
            best = int(nearness.argmax())
            is_near = nearness[best] >= 0.5 and engines_guards(text, stored[best][2])
            hits += bool(is_near and tenants[best] == tenant)
        known = {number for tenant, number, _ in stored if tenant == 0}
        # What the stranger can tell is whether anything was near, and it has asked nothing before.
        seen = (tenants == STRANGER) if partition_first else (tenants == 0)
        guessed = 0
        for number, texts in enumerate(wordings):
            is_near = bool((vectors[seen] @ embed([texts[0]])[0] >= 0.5).any())
            guessed += is_near is (number in known)
        share = f"{guessed / len(wordings):.0%}"
        rows.append((name, f"{hits} of {len(asks)}", share))
    return rows


AUTHORISED_HEADING = ("order", "own questions found again", "stranger's guesses that are right")
