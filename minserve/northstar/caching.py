"""Northstar's caches: its policy table, its requests as cache queries, and how a gate is measured.

A question is cached as its asker sent it: without the evidence, which the corpus snapshot stands
for. So a look-up needs no retrieval, and a change of corpus is a change of key.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from minserve.errors import DataNotFound
from minserve.northstar.corpus import Corpus, read_json
from minserve.northstar.paths import PACKAGE, data_dir
from minserve.northstar.questions import Question
from minserve.request import Identity
from minserve.reuse.embedding import Embedder
from minserve.reuse.gate import (
    Examples,
    Judgement,
    Thresholds,
    calibrate,
    cross_judge,
    lower_bound,
    upper_bound,
)
from minserve.reuse.guards import failed_guard
from minserve.reuse.key import Decoding, Message, ModelTuple, Query
from minserve.reuse.policy import PolicyTable
from minserve.reuse.response import ExactCache, Source
from minserve.reuse.semantic import SemanticCache

TARGET = 0.007
"""The estimated share of false hits that thresholds are calibrated to: below 1 % with some room."""
BANKING_TARGET, BANKING_MOST, FIRST_SEED = 0.01, 0.44, 1000
"""For Banking77: the target, and the largest share of questions that the margin lets through. The
share was chosen on the halves of seeds 0 to 19; those from here on are reported."""
BANKING = "MINSERVE_BANKING77"
CANDIDATES = 40


def policy_table() -> PolicyTable:
    """The shipped table, data/northstar/cache_policy.json."""
    return PolicyTable.from_json((data_dir() / "cache_policy.json").read_text(encoding="utf-8"))


def class_of(question: Question) -> str:
    """The answer class; a report about the asker's own account is one of its own."""
    return "account-report" if question.kind == "report" and question.user else question.kind


def query_of(
    question: Question,
    identity: Identity,
    corpus: Corpus,
    model: ModelTuple,
    max_tokens: int,
    policies: PolicyTable,
    text: str | None = None,
) -> Query:
    """What caches see of a question; `text` is another wording of it."""
    turns = [Message("system", corpus.system_prompt)]
    for earlier in question.history:
        turns.append(Message("user", earlier.text))
        turns.append(Message("assistant", earlier.expected[corpus.version]))
    name = class_of(question)
    return Query(
        identity=identity,
        scope=policies[name].scope,
        answer_class=name,
        messages=(*turns, Message("user", text or question.text)),
        model=model,
        decoding=Decoding(temperature=0.0, max_tokens=max_tokens),
        policy_version=corpus.version,
        corpus_snapshot=corpus.version,
        locale="en",
    )


def sources_of(question: Question, corpus: Corpus) -> tuple[Source, ...]:
    """The facts that an answer rests on, and the content that they had."""
    return tuple(Source(fact, corpus.facts[fact].value) for fact in question.facts)


def intent_examples() -> tuple[list[str], list[str]]:
    """Labelled questions of every policy attribute, for the gate: (texts, intents).

    Entities are left out of the intent: which product is meant is for the guards.
    """
    from minserve.northstar.prompts import QUESTIONS

    facts = read_json(data_dir() / "policies_v1.json")["facts"]
    texts, intents = [], []
    for number, fact in enumerate(facts):
        for form in (number % len(QUESTIONS), (number + 1) % len(QUESTIONS)):
            text = QUESTIONS[form].format(attribute=fact["attribute"], entity=fact["entity"])
            texts.append(text)
            intents.append(fact["attribute"])
    return texts, intents


def semantic_cache(
    exact: ExactCache,
    embedder: Embedder,
    examples: tuple[list[str], list[str]] | None = None,
    target: float = TARGET,
) -> SemanticCache:
    """A semantic cache whose gate is calibrated on `examples` (texts, intents), each judged by the
    others. Without any: on `intent_examples`.
    """
    texts, intents = examples or intent_examples()
    vectors = embedder.embed(texts)
    thresholds = calibrate(cross_judge(vectors, intents), intents, target)
    return SemanticCache(exact, embedder, Examples(vectors, intents), thresholds)


# -- measuring a gate


@dataclass(frozen=True, slots=True)
class Rates:
    """Of `num_asked` questions, `num_hits` were answered, `num_false` of these wrongly.

    `false_upper` is the 95 % upper bound of the share of false hits (Clopper and Pearson).
    """

    num_asked: int
    num_hits: int
    num_false: int

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_asked if self.num_asked else 0.0

    @property
    def false_rate(self) -> float:
        return self.num_false / self.num_hits if self.num_hits else 0.0

    @property
    def false_upper(self) -> float:
        return upper_bound(self.num_false, self.num_hits)

    def as_dict(self) -> dict[str, float]:
        return asdict(self) | {
            "hit_rate": self.hit_rate,
            "hit_rate_lower95": lower_bound(self.num_hits, self.num_asked),
            "hit_rate_upper95": upper_bound(self.num_hits, self.num_asked),
            "false_hit_rate": self.false_rate,
            "false_hit_rate_upper95": self.false_upper,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """A question put to a gate: what it wants, what it was judged to, whom the guards let answer.

    `served` is the intent of the entry that would answer, None if every guard refused.
    """

    intent: str
    judgement: Judgement
    served: str | None

    def is_hit(self, thresholds: Thresholds) -> bool:
        return self.served is not None and thresholds.passes(self.judgement)


def rates(asked: Sequence[Asked], thresholds: Thresholds) -> Rates:
    """What the thresholds make of these questions."""
    hits = [one for one in asked if one.is_hit(thresholds)]
    return Rates(len(asked), len(hits), sum(one.served != one.intent for one in hits))


def ask(
    texts: Sequence[str],
    intents: Sequence[str],
    vectors: np.ndarray,
    cached_texts: Sequence[str],
    cached_intents: Sequence[str],
    cached_vectors: np.ndarray,
    thresholds: Thresholds | None = None,
) -> list[Asked]:
    """Judge each question by the cached ones, and find the nearest that the guards let answer.

    Where `thresholds` are given, of those that pass only: the guards take most of the time.
    """
    judged = Examples(cached_vectors, cached_intents).judge(vectors)
    kinds = np.asarray(cached_intents)
    found = []
    for text, intent, vector, judgement in zip(texts, intents, vectors, judged, strict=True):
        if thresholds is not None and not thresholds.passes(judgement):
            found.append(Asked(intent, judgement, None))
            continue
        own = np.flatnonzero(kinds == judgement.intent)
        own = own[np.argsort(-(cached_vectors[own] @ vector))][:CANDIDATES]
        fits = any(failed_guard(text, cached_texts[i]) is None for i in own.tolist())
        found.append(Asked(intent, judgement, judgement.intent if fits else None))
    return found


def banking_file() -> Path | None:
    """Banking77's test.csv (Casanueva et al., 2020), from MINSERVE_BANKING77 or beside the
    repository; None where it is absent.
    """
    places = [PACKAGE.parent.parent / "shared/semantic/banking77"]
    if given := os.environ.get(BANKING):
        places = [Path(given)]
    for place in places:
        file = place if place.suffix == ".csv" else place / "test.csv"
        if file.is_file():
            return file
    return None


def load_banking(file: Path | None = None) -> tuple[list[str], list[str]]:
    """Texts and intents. Raises `DataNotFound`."""
    file = file or banking_file()
    if file is None:
        raise DataNotFound("Banking77 is not on this machine", f"name its folder in {BANKING}")
    return read_examples(file)


def read_examples(file: Path) -> tuple[list[str], list[str]]:
    """Texts and intents of a CSV file with the columns `text` and `category`, as Banking77's are.

    Raises `DataNotFound`.
    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        return [row["text"] for row in rows], [row["category"] for row in rows]
    except (OSError, ValueError, KeyError) as error:
        raise DataNotFound(
            f"cannot read labelled questions from {file}: {error}",
            "give a CSV file with the columns text and category",
        ) from None


def halves(intents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two halves: of each intent, every other question, in file order."""
    seen: dict[str, int] = {}
    side = []
    for intent in intents:
        seen[intent] = seen.get(intent, 0) + 1
        side.append(seen[intent] % 2)
    return np.flatnonzero(np.array(side) == 1), np.flatnonzero(np.array(side) == 0)


def random_halves(intents: Sequence[str], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two halves, of each intent too, drawn at random."""
    rng, names = np.random.default_rng(seed), np.asarray(intents)
    one = []
    for name in np.unique(names):
        own = rng.permutation(np.flatnonzero(names == name))
        one += own[: len(own) // 2].tolist()
    return np.array(sorted(one)), np.setdiff1d(np.arange(len(names)), one)


def measure_banking(
    embedder: Embedder,
    target: float = BANKING_TARGET,
    file: Path | None = None,
    num_halves: int = 10,
) -> dict[str, object]:
    """Half cached, half asked, all calibrated on the cached half; then the halves change places.

    Of the cached half each twentieth is asked of the rest to calibrate, so that no question is ever
    judged by itself. Then the same on `num_halves` random halves: these share questions, so their
    spread is shown, and no bound over all of them.
    """
    texts, intents = load_banking(file)
    vectors = embedder.embed(texts)

    def run(
        cached: np.ndarray, asked: np.ndarray, is_curve: bool = False
    ) -> tuple[Thresholds, list[Asked]]:
        labels = [intents[i] for i in cached]
        judged = cross_judge(vectors[cached], labels)
        thresholds = calibrate(judged, labels, target, BANKING_MOST)
        return thresholds, ask(
            [texts[i] for i in asked],
            [intents[i] for i in asked],
            vectors[asked],
            [texts[i] for i in cached],
            labels,
            vectors[cached],
            None if is_curve else thresholds,
        )

    pair = halves(intents)
    runs = [run(*pair, is_curve=True), run(*pair[::-1])]
    thresholds, found = runs[0]
    by_intent = {
        intent: rates([one for one in found if one.judgement.intent == intent], thresholds)
        for intent in sorted(set(intents))
    }
    every = [(t, one) for t, some in runs for one in some]
    hits = [one for t, one in every if one.is_hit(t)]
    pooled = Rates(len(every), len(hits), sum(one.served != one.intent for one in hits))
    seeds = range(FIRST_SEED, FIRST_SEED + num_halves)
    drawn = [run(*random_halves(intents, seed)) for seed in seeds]
    return {
        "target": target,
        "most": BANKING_MOST,
        "cached": len(pair[0]),
        "asked": len(pair[1]),
        **rates(found, thresholds).as_dict(),
        "halves_exchanged": rates(runs[1][1], runs[1][0]).as_dict(),
        "both": pooled.as_dict(),
        "random_halves": _spread([rates(some, thresholds) for thresholds, some in drawn]),
        "threshold": thresholds.pooled,
        "intents_with_a_stricter_threshold": len(thresholds.by_intent),
        "by_intent": {intent: found.as_dict() for intent, found in by_intent.items()},
        "curve": curve(found),
    }


def _spread(found: Sequence[Rates]) -> dict[str, object] | None:
    """Mean and extremes over halves, and in how many both bounds hold."""
    if not found:
        return None
    shares = {
        "hit_rate": [r.hit_rate for r in found],
        "false_hit_rate": [r.false_rate for r in found],
    }
    return {
        "count": len(found),
        **{name: _extremes(values) for name, values in shares.items()},
        "false_hit_rate_upper95": _extremes([r.false_upper for r in found]),
        "num_false_within_1_percent": sum(r.false_rate <= 0.01 for r in found),
        "num_hits_of_35_percent": sum(r.hit_rate >= 0.35 for r in found),
        "num_both": sum(r.false_rate <= 0.01 and r.hit_rate >= 0.35 for r in found),
    }


def _extremes(values: Sequence[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}


def curve(found: Sequence[Asked], num_points: int = 60) -> list[dict[str, float]]:
    """Hit rate and false-hit rate, with its upper bound, at falling thresholds."""
    ordered = sorted(
        (one for one in found if one.served is not None), key=lambda one: -one.judgement.margin
    )
    wrong, points = 0, []
    step = max(1, len(ordered) // num_points)
    for number, one in enumerate(ordered, start=1):
        wrong += one.served != one.intent
        if number % step == 0 and number >= 50:
            points.append(
                {
                    "hit_rate": number / len(found),
                    "false_hit_rate": wrong / number,
                    "false_hit_rate_upper95": upper_bound(wrong, number),
                }
            )
    return points


@dataclass(frozen=True, slots=True)
class Pair:
    """`asked` against the cached question; `kind` is `same`, or how it differs."""

    cached: str
    asked: str
    kind: str


def load_pairs() -> list[list[Pair]]:
    """The authored pairs, by group: data/northstar/semantic_pairs.json."""
    groups = json.loads((data_dir() / "semantic_pairs.json").read_text(encoding="utf-8"))["groups"]
    return [
        [Pair(group["cached"], text, "same") for text in group["same"]]
        + [Pair(group["cached"], t, kind) for kind, ts in group["different"].items() for t in ts]
        for group in groups
    ]


def measure_pairs(
    embedder: Embedder,
    target: float = TARGET,
    failed: Callable[[str, str], str | None] = failed_guard,
) -> dict[str, object]:
    """Ask every authored pair of a cache that holds each group's first question, and no more.

    Half of the groups calibrate the threshold and half are asked, then the halves change places.
    The cache knows nothing of the near misses: each finds its opposite as its nearest neighbour.
    """
    groups = load_pairs()
    cached = [group[0].cached for group in groups]
    names = [str(number) for number in range(len(groups))]
    examples = Examples(embedder.embed(cached), names)
    pairs = [(name, pair) for name, group in zip(names, groups, strict=True) for pair in group]
    judged = examples.judge(embedder.embed([pair.asked for _, pair in pairs]))
    sides: tuple[list, list] = ([], [])
    for (name, pair), judgement in zip(pairs, judged, strict=True):
        fits = failed(pair.asked, cached[int(judgement.intent)]) is None
        wanted = name if pair.kind == "same" else "none of them"
        one = Asked(wanted, judgement, judgement.intent if fits else None)
        sides[int(name) % 2].append((pair.kind, one))
    kinds: dict[str, list[tuple[Thresholds, Asked]]] = {}
    for calibrating, asking in (sides, sides[::-1]):
        passed = [one for _, one in calibrating if one.served is not None]
        thresholds = calibrate([o.judgement for o in passed], [o.intent for o in passed], target)
        for kind, one in asking:
            kinds.setdefault(kind, []).append((thresholds, one))
    table = {}
    for kind, some in kinds.items():
        hits = [one for thresholds, one in some if one.is_hit(thresholds)]
        table[kind] = Rates(len(some), len(hits), sum(o.served != o.intent for o in hits)).as_dict()
    false = sum(int(row["num_false"]) for row in table.values())
    return {"pairs": len(pairs), "false_hits": false, "by_kind": table}
