"""What does this question want? Intent by nearest labelled neighbours, and when not to trust it.

No cosine alone tells two questions apart: with MiniLM "dark mode on" and "off" are at 0.93, and two
ways to cancel a plan at 0.44. So a question is compared with labelled examples. It is as near to an
intent as the three nearest examples of it on the mean, plus a soft maximum over all of them; its
margin is how much nearer its best intent is than the next. A high margin takes several neighbours
that agree. A second opinion is a linear discriminant (Fisher 1936, shrunk as by Ledoit and Wolf
2004), which knows in which directions questions of one intent differ anyhow: it must name the same
intent, and its margin counts too. Thresholds are calibrated on labelled questions kept apart.
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
SHRINKAGE = 0.3
"""Of the spread within intents towards one that is the same in all directions."""
OPINION = 0.3
"""What the discriminant's margin at the middle of an intent counts, in cosines."""
DISAGREE = -1.0
"""The margin of a question that the two place differently."""
OWN_CASES = 30
"""An intent with fewer calibration questions has no threshold of its own: they certify nothing."""
POOLED_CASES = 10
"""An intent's own false hits are judged together with this many cases at the pooled rate."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best intent, and how clearly it is: from 0 up, in cosines, or `DISAGREE`."""

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
        self._discriminant = self._fit() if len(vectors) >= 2 * len(self.names) else None

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
        best, margins = _best(nearness)
        if self._discriminant is not None:
            weights, bias = self._discriminant
            other, more = _best(vectors @ weights + bias)
            margins = np.where(other == best, margins + more, DISAGREE)
        return [
            Judgement(str(self.names[i]), float(margin))
            for i, margin in zip(best, margins, strict=True)
        ]

    def _fit(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights [d, intents] and bias of the discriminant, scaled so that a question in the
        middle of its intent has a margin of `OPINION` on the mean.
        """
        sizes = np.diff([*self._starts, len(self.vectors)])
        means = np.add.reduceat(self.vectors, self._starts) / sizes[:, None]
        within = self.vectors - np.repeat(means, sizes, axis=0)
        share = (1 - SHRINKAGE) / len(within)
        floor = SHRINKAGE * np.square(within).sum() / within.size + 1e-6
        if len(within) >= within.shape[1]:
            spread = share * within.T @ within
            spread.flat[:: len(spread) + 1] += floor
            weights = np.linalg.solve(spread, means.T)
        else:  # the same by Woodbury's identity: no matrix is larger than the examples are many
            among = share * within @ within.T
            among.flat[:: len(among) + 1] += floor
            inner = within.T @ np.linalg.solve(among, within @ means.T)
            weights = (means.T - share * inner) / floor
        bias = -0.5 * np.einsum("id,di->i", means, weights)
        scale = OPINION / max(float(_best(means @ weights + bias)[1].mean()), 1e-9)
        return (weights * scale).astype(np.float32), (bias * scale).astype(np.float32)


def _best(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best column of each row, and by how much it is better than the next."""
    first, second = np.partition(scores, -2, axis=1)[:, [-1, -2]].T
    return scores.argmax(axis=1), first - second


def cross_judge(
    vectors: np.ndarray, intents: Sequence[str], folds: int = 20, seed: int = 0
) -> list[Judgement]:
    """Judge every example by the others: each fold is asked while the rest is the examples.

    So all of one labelled set serves as cached and as calibration questions, never both at once.
    """
    known = np.asarray(intents)
    fold_of = np.random.default_rng(seed).permutation(len(intents)) % folds
    found: dict[int, Judgement] = {}
    for fold in range(folds):
        asked = np.flatnonzero(fold_of == fold)
        kept = fold_of != fold
        judged = Examples(vectors[kept], known[kept]).judge(vectors[asked])
        found |= zip(asked.tolist(), judged, strict=True)
    return [found[index] for index in range(len(intents))]


def calibrate(
    judgements: Sequence[Judgement],
    intents: Sequence[str],
    target: float = 0.005,
    most: float = 1.0,
) -> Thresholds:
    """The least margins at which the estimated share of false hits stays within `target`.

    `intents` are the true ones. There are never enough examples to read a rate of 1 in 200 off a
    count, so the chance of a false hit is fitted as a logistic function of the margin over all
    intents, and the pooled threshold is where its mean over the hits reaches the target. An intent
    that has false hits of its own above it gets a stricter threshold; none gets a laxer one, and
    one with few questions none of its own.

    `most` is the largest share of questions to let through, whatever the estimate says. It varies
    less from one set of questions to another than the estimate, which rests on the few false hits.
    """
    num_asked = len(judgements)
    judgements, intents = zip(
        *((j, i) for j, i in zip(judgements, intents, strict=True) if j.margin != DISAGREE),
        strict=True,
    )
    margins = np.array([j.margin for j in judgements])
    wrong = np.array([j.intent != i for j, i in zip(judgements, intents, strict=True)])
    order = np.argsort(-margins, kind="stable")
    margins, wrong = margins[order], wrong[order]
    chance = _logistic(margins, wrong.astype(float))
    rate = np.cumsum(chance) / np.arange(1, len(chance) + 1)
    pooled = _lowest(margins, rate, target)
    if (allowed := int(most * num_asked)) < len(margins):
        pooled = max(pooled, float(margins[allowed]))
    judged_as = np.array([judgements[i].intent for i in order])
    by_intent = {}
    for intent in np.unique(judged_as):
        own = judged_as == intent
        if own.sum() < OWN_CASES:
            continue
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
