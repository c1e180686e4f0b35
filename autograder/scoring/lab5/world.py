"""Lab 5's world: the model that judges questions, and what each look-up should come to.

The stories say of every look-up what is right; the world asks the learner's cache and keeps what it
finds. Questions are Northstar's labelled pairs with drawn names in them, so that a list of
the public ones answers nothing, and their similarities are drawn: the opposite and the order are
always nearer than the honest paraphrase, as measured with minserve's small embedder.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.notebooks import REPOSITORY
from autograder.scoring.base import Finding, Session

CLASS = "AnswerCache"
MODEL = {
    "name": "model",
    "methods": {"judge": ["question"], "similarity": ["one", "other"]},
    "properties": [],
    "emptied": {},
}
PLACES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple")
NAMES = ("amity", "borealis", "corvid", "dynamo", "ember", "fathom", "garnet", "hinge", "isobar")
Request = dict[str, Any]


@lru_cache
def pairs() -> tuple[dict[str, Any], ...]:
    """Northstar's groups of questions that have an opposite and an order."""
    path = REPOSITORY / "data" / "northstar" / "semantic_pairs.json"
    groups = json.loads(path.read_text("utf-8"))["groups"]
    return tuple(g for g in groups if g["different"].get("act") and g["different"].get("opposite"))


@dataclass(frozen=True)
class Topic:
    """An intent: ways to ask for it, its opposite, and orders. `least` None: not listed."""

    intent: str
    asks: list[str]
    opposites: list[str]
    orders: list[str]
    least: float | None

    @property
    def near(self) -> float:
        """The least similarity that a paraphrase needs, or would need."""
        return 0.5 if self.least is None else self.least


@dataclass(frozen=True)
class Setting:
    """What is drawn once per world."""

    topics: list[Topic]
    freshness_s: int


def draw(rng: random.Random) -> Setting:
    groups = rng.sample(pairs(), 4)
    leasts = [round(rng.uniform(0.5, 0.8), 2) for _ in groups[1:]]
    topics = [_topic(rng, *each) for each in zip(groups, [*leasts, None], strict=True)]
    return Setting(topics, rng.randint(30, 600))


def _topic(rng: random.Random, group: dict[str, Any], least: float | None) -> Topic:
    place, number = rng.choice(PLACES), rng.randint(2, 99)

    def placed(text: str) -> str:
        return f"{text[:-1]} at {place} {number}{text[-1]}"

    different = group["different"]
    asks = [group["cached"], *group["same"]]
    rng.shuffle(asks)
    return Topic(
        f"intent-{rng.randrange(10**6)}",
        [placed(text) for text in asks],
        [placed(text) for text in different["opposite"]],
        [placed(text) for text in different["act"]],
        least,
    )


@dataclass
class World:
    """A cache under test, and the model that it asks."""

    session: Session
    setting: Setting
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = self.setting.topics
        self.freshness_s = self.setting.freshness_s
        self.is_down = False
        self.when = ""
        self.judged: dict[str, tuple[Topic, str, str]] = {}
        for topic in self.topics:
            self.judged |= {text: (topic, "ask", "+") for text in topic.asks}
            self.judged |= {text: (topic, "ask", "-") for text in topic.opposites}
            self.judged |= {text: (topic, "do", "+") for text in topic.orders}
        self.similarities: dict[frozenset[str], float] = {}
        thresholds = {t.intent: t.least for t in self.topics if t.least is not None}
        args = [{"remote": MODEL}, thresholds, self.freshness_s]
        self.session.new(CLASS, args, self.serve)

    # -- what the learner's code may ask

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        num_args = {"judge": 1, "similarity": 2}.get(method)
        if name != "model" or len(args) != num_args:
            raise ChildMisbehaved(f"asked for {name[:40]}.{method[:40]} with {len(args)} arguments")
        if any(type(arg) is not str for arg in args):
            raise RemoteError("TypeError", f"{method} takes text")
        if self.is_down:
            raise RemoteError("TimeoutError", "the model did not answer")
        return self._judge(*args) if method == "judge" else self._similarity(*args)

    def _judge(self, question: str) -> dict[str, Any]:
        topic, act, sense = self.judged.get(question, (None, "ask", "+"))
        return {"intent": topic and topic.intent, "act": act, "sense": sense}

    def _similarity(self, one: str, other: str) -> float:
        if one == other:
            return 1.0
        if (told := self.similarities.get(frozenset((one, other)))) is not None:
            return told
        a, b = self.judged.get(one), self.judged.get(other)
        if a is None or b is None or a[0] is not b[0]:
            return 0.2
        return round(a[0].near + (0.05 if a == b else 0.12), 4)

    def set_similarity(self, one: str, other: str, value: float) -> None:
        self.similarities[frozenset((one, other))] = value

    # -- what a story does

    def put(self, request: Request, text: str, now_s: float = 0, **answer: Any) -> Any:
        """Offer an answer to the cache; returns what it says."""
        whole = {"text": text, "finish_reason": "stop", "sources": ["terms"]} | answer
        return self.call("put", request, whole, now_s)

    def hit(self, request: Request, text: str, now_s: float = 1, when: str = "") -> None:
        """The cache must have exactly this text."""
        if (told := self.call("get", request, now_s)) != text or type(told) is not str:
            self.find("no_reuse", when)

    def miss(self, request: Request, kind: str, now_s: float = 1, when: str = "") -> None:
        """The cache may have nothing here; else it is a finding of that kind."""
        if self.call("get", request, now_s) is not None:
            self.find(kind, when)

    def call(self, method: str, *args: Any) -> Any:
        try:
            return self.session.call(method, list(args), self.serve)
        except Raised as error:
            self.found.append(Finding("raised", f"{error}, in {method}, {error.place}"))
            raise

    def find(self, kind: str, when: str = "") -> None:
        self.found.append(Finding(kind, when))


def request(rng: random.Random, question: str, **changes: Any) -> Request:
    """A request with drawn values in every field."""
    tenant, user = rng.sample(NAMES, 2)
    return {
        "tenant": tenant,
        "user": user,
        "scope": "tenant",
        "question": question,
        "locale": rng.choice(("en", "de", "fr", None)),
        "model": f"nano-{rng.randint(1, 9)}",
        "policy_version": f"v{rng.randint(10, 99)}",
        "temperature": rng.choice((0, 0.2, 0.7)),
        "max_tokens": rng.choice((None, 32, 64, 128)),
    } | changes
