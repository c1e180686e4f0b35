"""Lesson 5's experiments on the real service: who gets whose answer, what is stale, who waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Submitted
from minserve.learn.parts_of_reuse import (
    Key,
    KeyPart,
    LearnedCache,
    TaggedCache,
    cache_key,
    gate_part,
)
from minserve.northstar import caching
from minserve.northstar.corpus import load_corpus
from minserve.northstar.prompts import QUESTIONS, as_messages
from minserve.northstar.questions import Question, history_of, is_qualified, load_questions
from minserve.northstar.reuse import Ask
from minserve.request import Identity, Request, SamplingParams
from minserve.reuse.embedding import HashedNgrams
from minserve.reuse.gate import Examples, Thresholds
from minserve.reuse.guards import failed_guard
from minserve.reuse.invalidation import SourceChanged
from minserve.reuse.key import Message, ModelTuple, Query, Scope, Wording
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.response import ExactCache
from minserve.reuse.semantic import SemanticCache
from minserve.reuse.stores import MemoryStore
from minserve.service import Piece, Service, Started

EVERYBODY = PolicyTable(
    ClassPolicy(name, Scope.PUBLIC, 86_400.0) for name in ("policy", "account", "chat", "report")
)
"""What the team of the incident had never written down: all answers, for everybody, for a day."""
NORTHSTAR = caching.policy_table()


# -- Northstar's assistant


@dataclass(frozen=True, slots=True)
class Served:
    """One answer: how it came about (`miss`, `hit`, `similar`, `shared`, or empty: not cached),
    whether it is right, and whether it was made for somebody who must not share it.
    """

    ask: Ask
    text: str
    how: str
    is_right: bool
    is_leak: bool

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.is_leak:
            return "somebody else's"
        return "right" if self.is_right else "wrong"

    def row(self) -> tuple[str, ...]:
        """Cells under `SERVED_HEADING`."""
        who = self.ask.identity
        user = who.subject.removeprefix(f"{who.tenant}-").split("-")[0]
        return f"{user} of {who.tenant}", self.ask.text, self.how or "-", self.text, self.verdict


SERVED_HEADING = ("who asks", "question", "cache", "answer", "it is")


class Assistant:
    """Northstar's assistant: a real cached service before a model. Time is virtual and stands
    still while the model computes.

    `cache` None serves without one. Identity comes from the `Ask`, as from a server's records.
    """

    def __init__(
        self,
        executor: Any,
        cache: ExactCache | None = None,
        semantic: SemanticCache | None = None,
        max_tokens: int = 48,
    ) -> None:
        self.loop = EventLoop(VirtualClock())
        self.tokenizer, self.max_tokens = executor.tokenizer, max_tokens
        engine = Engine(executor)
        service = Service(LocalClient(engine, self.loop), self.tokenizer.detokenizer)
        name = self.tokenizer.folder.name
        self.service: Any = service
        if cache is not None:
            now_s = self.loop.clock.now_s
            self.service = CachedService(
                service, cache, ModelTuple(name), now_s=now_s, semantic=semantic
            )
        self.corpora = {version: load_corpus(version) for version in ("v1", "v2")}
        self.served: list[Served] = []
        self.num_model_calls = 0
        self._makers: dict[str, list[Ask]] = {}
        engine.log.listen(self._count)

    def ask(self, ask: Ask) -> Served:
        """Serve one question to its end."""
        corpus, question = self.corpora[ask.version], ask.question
        messages = as_messages(
            corpus.system_prompt,
            corpus.lines(question.evidence),
            ask.text,
            history_of(question, corpus),
        )
        request = Request(
            f"ask-{len(self.served)}",
            tuple(self.tokenizer.encode_chat(messages)),
            SamplingParams(max_tokens=self.max_tokens),
            identity=ask.identity,
            arrival_s=self.loop.clock.now_s(),
            cache_salt=f"tenant:{ask.identity.tenant}",
        )
        heard: list[Any] = []
        self.service.submit(request, heard.append, wording=wording_of(ask))
        self.loop.run()
        how = next(output.cache for output in heard if isinstance(output, Started))
        text = "".join(output.text for output in heard if isinstance(output, Piece))
        return self._judge(ask, text.removesuffix("<|end|>").strip(), how)

    def ask_all(self, asks: Sequence[Ask]) -> list[Served]:
        """Serve them, one after the other."""
        return [self.ask(ask) for ask in asks]

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `ASSISTANT_HEADING`."""
        hits = sum(one.how in ("hit", "similar") for one in self.served)
        leaks = sum(one.is_leak for one in self.served)
        wrong = sum(not one.is_right and not one.is_leak for one in self.served)
        asked = len(self.served)
        return name, f"{self.num_model_calls} of {asked}", f"{hits}", f"{leaks}", f"{wrong}"

    def _judge(self, ask: Ask, text: str, how: str) -> Served:
        is_right = is_qualified(ask.question, text, ask.version)
        if how in ("hit", "similar"):
            makers = self._makers[text]
            is_leak = not any(_may_share(ask, maker) for maker in makers)
        else:
            self._makers.setdefault(text, []).append(ask)
            is_leak = False
        served = Served(ask, text, how, is_right, is_leak)
        self.served.append(served)
        return served

    def _count(self, event: Any) -> None:
        self.num_model_calls += isinstance(event, Submitted)


ASSISTANT_HEADING = ("cache", "model calls", "hits", "somebody else's", "otherwise wrong")


def wording_of(ask: Ask) -> Wording:
    """What the request says of itself: its class, its turns without the evidence, its sources."""
    turns = [Message("user", earlier.text) for earlier in ask.question.history]
    return Wording(
        caching.class_of(ask.question),
        (*turns, Message("user", ask.text)),
        ask.question.facts,
    )


def _may_share(ask: Ask, maker: Ask) -> bool:
    """By what the experiment knows, and no cache: was the answer made for people like `ask`'s?"""
    if ask.question.user is not None:
        return ask.identity == maker.identity
    return ask.identity.tenant == maker.identity.tenant


def by_question(query: Query) -> str:
    """The incident's key: the text of the question, and nothing else."""
    return query.question


def shared_cache(key: Key, policies: PolicyTable = EVERYBODY) -> ExactCache:
    """The engine's own cache with this key and this table."""
    return ExactCache(MemoryStore(), policies, key_of=KeyPart(key), beta=0.0)


def monday() -> list[Ask]:
    """Twelve questions in a row, in three texts: each means another thing from others."""
    who = {
        "balance": (
            "kestrel-viggo-unger",
            "kestrel-emil-garner",
            "alder-zara-tan",
            "marlow-hugo-gray",
        ),
        "chat": ("kestrel-thora-gray", "marlow-emil-radley", "alder-edda-radley"),
        "terms": (
            *("kestrel-thora-gray", "kestrel-mona-irving", "marlow-emil-radley"),
            *("marlow-hugo-gray", "kestrel-viggo-unger"),
        ),
    }
    asks = []
    for user in who["balance"]:
        own = _find("account", user.split("-")[0], attribute="open balance", user=user)
        asks.append(Ask(own, Identity(own.tenant, user), "What is my open balance?", "v1"))
    for user in who["chat"]:
        follow_up = _find("chat", user.split("-")[0], text="And the support hours?")
        asks.append(Ask(follow_up, Identity(follow_up.tenant, user), follow_up.text, "v1"))
    for user in who["terms"]:
        entity = "Cinder Pass"
        terms = _find("policy", user.split("-")[0], attribute="refund window", entity=entity)
        text = f"What is the refund window of {entity}?"
        asks.append(Ask(terms, Identity(terms.tenant, user), text, "v1"))
    return asks


def _find(kind: str, tenant: str, **wanted: str) -> Question:
    facts = load_corpus().facts
    for question in load_questions():
        fact = facts[question.facts[0]]
        have = {"user": question.user, "text": question.text}
        have |= {"attribute": fact.attribute, "entity": fact.entity}
        is_it = all(have[name] == value for name, value in wanted.items())
        if question.kind == kind and question.tenant == tenant and is_it:
            return question
    raise LookupError(f"no {kind} question of {tenant} has {wanted}")


# -- stale answers


def change_of_terms(
    executor: Any,
    make: Callable[..., Any] = TaggedCache,
    key: Key = cache_key,
) -> list[tuple[str, ...]]:
    """Three questions, asked before and after their policy changed: with an event, and without.

    Rows under `TERMS_HEADING`.
    """
    asks = changing_asks(3)
    rows: list[tuple[str, ...]] = []
    for name, has_event in (("time to live alone", False), ("and an event", True)):
        assistant = Assistant(executor, LearnedCache(NORTHSTAR, make, key))
        assistant.ask_all(asks)
        if has_event:
            for ask in asks:
                assistant.service.invalidate(SourceChanged(source=ask.question.facts[0]))
        for ask in asks:
            served = assistant.ask(replace(ask, version="v2"))
            rows.append((name, ask.text, served.how, served.text, served.verdict))
    return rows


TERMS_HEADING = ("an hour of freshness", "asked after the change", "cache", "answer", "it is")


def changing_asks(count: int) -> list[Ask]:
    """Policy questions of one tenant whose answers are others in v2."""
    found = [
        Ask(question, Identity("alder", "alder-zara-tan"), question.text, "v1")
        for question in load_questions()
        if question.kind == "policy" and question.tenant == "alder"
        if question.expected["v1"] != question.expected["v2"]
    ]
    return found[:count]


# -- other words


def with_other_words(
    gate: Callable[..., bool], key: Key, make: Callable[..., Any] = TaggedCache
) -> tuple[ExactCache, SemanticCache]:
    """A service's two caches, with these parts; labelled questions say what an intent is."""
    exact = LearnedCache(NORTHSTAR, make, key)
    texts, intents = caching.intent_examples()
    embedder = HashedNgrams()
    examples = Examples(embedder.embed(texts), intents)
    least = gate_part(gate, otherwise=0.5, verify=lambda a, b: failed_guard(a, b) is None)
    return exact, SemanticCache(exact, embedder, examples, Thresholds(0.1, {}), gate=least)


def tuesday() -> list[Ask]:
    """Policy questions in several wordings, near misses among them."""
    asks = []
    for entity, attribute, forms in (
        ("Jorvik Cover", "refund window", (0, 1, 2)),
        ("Elstow Travel", "refund window", (0, 1)),
        ("Jorvik Cover", "notice period", (0, 3)),
    ):
        question = _find("policy", "alder", attribute=attribute, entity=entity)
        for number, form in enumerate(forms):
            user = ("alder-zara-tan", "alder-edda-radley", "alder-gustav-hobbs")[number]
            text = QUESTIONS[form].format(attribute=attribute, entity=entity)
            asks.append(Ask(question, Identity("alder", user), text, "v1"))
    return asks
