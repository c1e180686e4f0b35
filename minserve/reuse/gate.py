"""What does this question want? Intent by nearest labelled neighbours, and when not to trust it.

No cosine alone tells two questions apart: with MiniLM "dark mode on" and "off" are at 0.93, and two
ways to cancel a plan at 0.44. So a question is compared with labelled examples. It is as near to an
intent as the three nearest examples of it on the mean, plus a soft maximum over all of them; its
margin is how much nearer its best intent is than the next. A high margin takes several neighbours
that agree. Thresholds on it are calibrated on labelled questions that were kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minserve.errors import ConfigError

NEIGHBOURS = 3
TEMPERATURE = 0.03
"""Of the soft maximum, in cosines: an example so much farther counts e times less."""
POOLED_CASES = 10
"""An intent's own false hits are judged together with this many cases at the pooled rate."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best intent, and how clearly it is (0 to 4, in cosines)."""

    intent: str
    margin: float


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The least margin of a hit: in general, and of intents that need more."""

    pooled: float
    by_intent: dict[str, float]

    def passes(self, judgement: Judgement) -> bool:
        """Whether the intent is clear enough to answer on."""
        return judgement.margin >= self.by_intent.get(judgement.intent, self.pooled)


class Examples:
    """Labelled questions: `vectors` float32 [n, d] of length 1, and the intent of each."""

    def __init__(self, vectors: np.ndarray, intents: Sequence[str]) -> None:
        if len(vectors) != len(intents) or len(set(intents)) < 2:
            raise ConfigError(
                f"{len(vectors)} examples with {len(set(intents))} intents",
                "give each example an intent, and at least two intents",
            )
        order = np.argsort(np.asarray(intents), kind="stable")
        self.vectors = np.ascontiguousarray(vectors[order], np.float32)
        self.intents = np.asarray(intents)[order]
        self.names, self._starts = np.unique(self.intents, return_index=True)

    def judge(self, vectors: np.ndarray) -> list[Judgement]:
        """The intent of each question, float32 [m, d]."""
        nearness = np.empty((len(vectors), len(self.names)), np.float32)
        cosines = vectors @ self.vectors.T
        ends = [*self._starts[1:], len(self.vectors)]
        for column, (start, end) in enumerate(zip(self._starts, ends, strict=True)):
            own = cosines[:, start:end]
            count = min(NEIGHBOURS, end - start)
            nearest = np.partition(own, own.shape[1] - count, axis=1)[:, -count:]
            soft = np.log(np.exp((own - 1) / TEMPERATURE).sum(axis=1)) * TEMPERATURE
            nearness[:, column] = nearest.mean(axis=1) + soft
        best = nearness.argmax(axis=1)
        first, second = np.partition(nearness, -2, axis=1)[:, [-1, -2]].T
        return [
            Judgement(str(self.names[i]), float(margin))
            for i, margin in zip(best, first - second, strict=True)
        ]


def cross_judge(
    vectors: np.ndarray, intents: Sequence[str], folds: int = 20, seed: int = 0
) -> list[Judgement]:
    """Judge every example by the others: each fold is asked while the rest is the examples.

    So all of one labelled set serves as cached and as calibration questions, never both at once.
    """
    intents = np.asarray(intents)
    fold_of = np.random.default_rng(seed).permutation(len(intents)) % folds
    found: list[Judgement | None] = [None] * len(intents)
    for fold in range(folds):
        asked = np.flatnonzero(fold_of == fold)
        kept = fold_of != fold
        judged = Examples(vectors[kept], intents[kept]).judge(vectors[asked])
        for index, judgement in zip(asked, judged, strict=True):
            found[index] = judgement
    return found


def calibrate(
    judgements: Sequence[Judgement], intents: Sequence[str], target: float = 0.005
) -> Thresholds:
    """The least margins at which the estimated share of false hits stays within `target`.

    `intents` are the true ones. There are never enough examples to read a rate of 1 in 200 off a
    count, so the chance of a false hit is fitted as a logistic function of the margin over all
    intents, and the pooled threshold is where its mean over the hits reaches the target. An intent
    that has false hits of its own above it gets a stricter threshold; none gets a laxer one.
    """
    margins = np.array([j.margin for j in judgements])
    wrong = np.array([j.intent != i for j, i in zip(judgements, intents, strict=True)])
    order = np.argsort(-margins, kind="stable")
    margins, wrong = margins[order], wrong[order]
    chance = _logistic(margins, wrong.astype(float))
    rate = np.cumsum(chance) / np.arange(1, len(chance) + 1)
    pooled = _lowest(margins, rate, target)
    judged_as = np.array([judgements[i].intent for i in order])
    by_intent = {}
    for intent in np.unique(judged_as):
        own = judged_as == intent
        count = np.arange(1, own.sum() + 1)
        shared = (np.cumsum(wrong[own]) + POOLED_CASES * rate[own]) / (count + POOLED_CASES)
        # A single false hit among so few says "maybe 5 %": 1.5 times the target is let pass.
        threshold = max(pooled, _lowest(margins[own], shared, 1.5 * target))
        if threshold > pooled:
            by_intent[str(intent)] = threshold
    return Thresholds(pooled, by_intent)


def _lowest(margins: np.ndarray, rate: np.ndarray, target: float) -> float:
    """The lowest margin at which the rate of all from it upwards is within the target."""
    within = np.flatnonzero(rate <= target)
    return float(margins[within[-1]]) if len(within) else 9.0


def _logistic(x: np.ndarray, y: np.ndarray, num_steps: int = 50) -> np.ndarray:
    """The chance of y at each x, by logistic regression (Newton's method, a touch of ridge)."""
    scale = x.std() or 1.0
    design = np.column_stack([np.ones_like(x), (x - x.mean()) / scale])
    weights = np.zeros(2)
    for _ in range(num_steps):
        chance = 1 / (1 + np.exp(-design @ weights))
        gradient = design.T @ (y - chance) - 1e-3 * weights
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design + 1e-3 * np.eye(2)
        weights += np.linalg.solve(hessian, gradient)
    return 1 / (1 + np.exp(-design @ weights))


def upper_bound(num_wrong: int, num_hits: int, confidence: float = 0.95) -> float:
    """The exact one-sided upper bound of a rate (Clopper and Pearson, 1934); 1 without any hit.

    With that confidence the true rate is not above it: 0 of 300 still allows 1 %.
    """
    if num_hits == 0 or num_wrong >= num_hits:
        return 1.0
    low, high = num_wrong / num_hits, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(num_wrong, num_hits, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def lower_bound(num_right: int, num_asked: int, confidence: float = 0.95) -> float:
    """The exact one-sided lower bound of a rate."""
    return 1 - upper_bound(num_asked - num_right, num_asked, confidence) if num_asked else 0.0


def _at_most(count: int, trials: int, chance: float) -> float:
    """P(X <= count) of a binomial."""
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(chance)
        + (trials - k) * math.log1p(-chance)
        for k in range(count + 1)
    )
    return math.fsum(math.exp(value) for value in logs)
