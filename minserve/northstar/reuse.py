"""The same questions with no reuse, an exact cache, a semantic cache, and a cascade: what is saved,
and what goes wrong.

The traffic asks what caches are tempted by: popular questions again and in other words, the same
words from two users and from two tenants, and a policy change on the way. Whoever would be served
another's answer counts as a leak, an answer of the old policy as a stale hit, an answer to another
question as a false hit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minserve.client import EngineClient
from minserve.clock import EventLoop
from minserve.metrics import percentile
from minserve.northstar import caching
from minserve.northstar.context import Context, StopWhenComplete, shorten
from minserve.northstar.corpus import load_corpus
from minserve.northstar.prompts import NOT_STATED, OWN_QUESTIONS, QUESTIONS, as_messages
from minserve.northstar.questions import Question, history_of, is_qualified, load_questions
from minserve.request import Identity, Request, SamplingParams
from minserve.reuse.embedding import Embedder
from minserve.reuse.invalidation import SourceChanged
from minserve.reuse.key import ModelTuple, Query
from minserve.reuse.policy import PolicyTable
from minserve.reuse.response import Answer, ExactCache, Source
from minserve.reuse.stores import MemoryStore
from minserve.routing.cascade import Cascade, Route, Routed

COLUMNS = ("no reuse", "less context", "exact cache", "semantic cache", "cascade")
MAX_TOKENS = {"policy": 48, "account": 48, "chat": 48, "report": 160}


@dataclass(frozen=True, slots=True)
class Ask:
    """One question by one user, in some wording, under the corpus of its time."""

    question: Question
    identity: Identity
    text: str
    version: str


@dataclass(frozen=True, slots=True)
class Engine:
    """A model as this replay reaches it: through a client on `loop`.

    `count_tokens` sizes evidence and history for budgets.
    """

    name: str
    client: EngineClient
    encode_chat: Callable[[list[dict[str, str]]], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    count_tokens: Callable[[str], int]


@dataclass(slots=True)
class Column:
    """What one way of reuse came to."""

    requests: int = 0
    qualified: int = 0
    model_calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    hits: int = 0
    stale_hits: int = 0
    false_hits: int = 0
    leaks: int = 0
    escalations: int = 0
    lines_left_out: int = 0
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        times = plain.pop("latencies_s")
        return plain | {"p50_s": percentile(times, 0.5), "p95_s": percentile(times, 0.95)}


def make_asks(count: int, seed: int = 0) -> list[Ask]:
    """Popular questions again and again, half of them in another wording; v2 from the middle on."""
    rng = random.Random(f"northstar/reuse/{seed}")
    users = {tenant.id: tenant.users for tenant in load_corpus().tenants}
    kinds: dict[str, list[Question]] = {}
    for question in load_questions():
        kinds.setdefault(question.kind, []).append(question)
    asks = []
    for some in kinds.values():
        rng.shuffle(some)
    shares = {"policy": 0.6, "account": 0.2, "chat": 0.12, "report": 0.08}
    facts = load_corpus().facts
    for number in range(count):
        kind = rng.choices(list(shares), list(shares.values()))[0]
        some = kinds[kind]
        question = some[min(int(rng.paretovariate(0.9)) - 1, len(some) - 1)]  # few are popular
        if kind == "account":
            question = rng.choice(some)
        user = question.user or rng.choice(users[question.tenant]).id
        text = question.text
        if kind == "policy" and rng.random() < 0.5:
            fact = facts[question.facts[0]]
            text = rng.choice(QUESTIONS).format(attribute=fact.attribute, entity=fact.entity)
        if kind == "account":  # in the same words from everybody
            text = OWN_QUESTIONS[0].format(attribute=facts[question.facts[0]].attribute)
        version = "v1" if number < count // 2 else "v2"
        asks.append(Ask(question, Identity(question.tenant, user), text, version))
    return asks


def grounded(question: str, kind: str, evidence: Sequence[str], answer: str) -> bool:
    """Whether an answer says only what the evidence says, and about what was asked.

    Looks at nothing that a server does not have: no expected answer, no label. Every sentence must
    be a line of evidence; a single answer must be the line that names most of the question's words.
    """
    lines = {_plain(line): line for line in evidence}
    said = [part for part in answer.strip().removesuffix(".").split(". ") if part]
    if not said or any(_plain(part) not in lines for part in said) or NOT_STATED in answer:
        return False
    if kind == "report":
        return len(said) == question.count(",") + 1
    asked = set(_plain(question).split())
    overlap = {line: len(asked & set(line.split())) for line in lines}
    return len(said) == 1 and overlap[_plain(said[0])] == max(overlap.values())


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("?", " ").replace(",", " ").strip(" .").split())


class ReuseReplay:
    """Serves `asks` one after another, in one way of reuse.

    Args:
        engines: The models, cheapest first; all but the cascade use the first.
        loop: Of their clients.
        embedder: For the semantic cache.
        policies: What may be cached.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        loop: EventLoop,
        embedder: Embedder,
        policies: PolicyTable | None = None,
    ) -> None:
        self.engines, self.loop = engines, loop
        self.embedder = embedder
        self.policies = policies or caching.policy_table()
        self.corpora = {version: load_corpus(version) for version in ("v1", "v2")}
        self._number = 0

    def run(self, asks: Sequence[Ask], how: str) -> Column:
        """Every ask, with what `how` (one of COLUMNS) allows."""
        self.version = asks[0].version
        exact = semantic = None
        if how in ("exact cache", "semantic cache"):
            exact = ExactCache(
                MemoryStore(), self.policies, sources_valid=self._is_current, beta=0.0
            )
            if how == "semantic cache":
                semantic = caching.semantic_cache(exact, self.embedder)
        column = Column()
        for ask in asks:
            if ask.version != self.version:
                self._change(ask.version, exact, semantic)
            self._serve(ask, how, exact, semantic, column)
        return column

    def _serve(self, ask: Ask, how: str, exact, semantic, column: Column) -> None:
        began_s, answer = self.loop.clock.now_s(), None
        if exact is not None:
            query = self._query(ask)
            found = exact.look_up(query, began_s)
            if found.answer is None and semantic is not None:
                found = semantic.look_up(query, began_s)
            answer = found.answer
        if answer is not None:
            text, column.hits = answer.text, column.hits + 1
            self._judge_hit(ask, answer, column)
        else:
            since = exact.num_events() if exact is not None else 0
            text, reason = self._compute(ask, how, column)
            if exact is not None:
                sources = caching.sources_of(ask.question, self.corpora[ask.version])
                made = Answer(text, reason, sources, self.loop.clock.now_s() - began_s)
                if exact.put(query, made, self.loop.clock.now_s(), since) and semantic is not None:
                    semantic.put(query, [source.id for source in sources])
        right = is_qualified(ask.question, text, ask.version)
        kind = column.by_kind.setdefault(ask.question.kind, {"requests": 0, "qualified": 0})
        kind["requests"] += 1
        kind["qualified"] += right
        column.requests += 1
        column.qualified += right
        column.latencies_s.append(self.loop.clock.now_s() - began_s)

    def _judge_hit(self, ask: Ask, answer: Answer, column: Column) -> None:
        """By what the replay knows, and no cache: whose facts these are, and what was asked."""
        facts = self.corpora[ask.version].facts
        column.leaks += any(
            facts[source.id].tenant != ask.identity.tenant
            or facts[source.id].user not in (None, ask.identity.subject)
            for source in answer.sources
        )
        column.stale_hits += any(facts[s.id].value != s.version for s in answer.sources)
        asked_for = tuple(source.id for source in answer.sources)
        column.false_hits += asked_for != ask.question.facts

    def _compute(self, ask: Ask, how: str, column: Column) -> tuple[str, str]:
        """Ask the first model; in a cascade, the next one where that fails the check. With less
        context, the same model with all of it, if something had been left out.
        """
        evidence = self.corpora[ask.version].lines(ask.question.evidence)
        kind = ask.question.kind
        history = " ".join(earlier.text for earlier in ask.question.history)
        asked = f"{history} {ask.text}" if kind == "chat" else ask.text
        first, make_stop = self.engines[0], None

        def is_grounded(_: Ask, text: str) -> bool:
            return grounded(asked, kind, evidence, text)

        if how == "cascade":
            routes, check = [self._route(engine, column) for engine in self.engines], is_grounded
        elif how == "less context":
            corpus = self.corpora[ask.version]
            short = shorten(ask.question, corpus, ask.text, first.count_tokens)
            column.lines_left_out += len(short.selection.omitted)
            routes, check = [self._route(first, column, short)], is_grounded
            routes += [self._route(first, column)] if short.is_cut else []

            def make_stop(_: Ask) -> StopWhenComplete:
                return StopWhenComplete(lambda text: is_grounded(ask, text))
        else:  # the answer is taken as it is
            routes, check = [self._route(first, column)], lambda _, text: True
        ended: list[Routed] = []
        self._number += 1
        Cascade(routes, check, make_stop).ask(f"ask-{self._number}", ask, ended.append)
        self.loop.run(lambda: bool(ended))
        attempts = ended[0].attempts
        column.model_calls += len(attempts)
        column.output_tokens += sum(attempt.num_tokens for attempt in attempts)
        column.escalations += len(attempts) - 1
        # Of models that all fail the check the cheapest is believed, of contexts the whole one.
        last = attempts[0] if how == "cascade" and not attempts[-1].is_valid else attempts[-1]
        return last.text, last.reason

    def _route(self, engine: Engine, column: Column, short: Context | None = None) -> Route[Ask]:
        def make(ask: Ask, id: str) -> Request:
            corpus = self.corpora[ask.version]
            if short is None:
                evidence = tuple(corpus.lines(ask.question.evidence))
                history = tuple(history_of(ask.question, corpus))
                max_tokens = MAX_TOKENS[ask.question.kind]
            else:
                evidence, history, max_tokens = short.evidence, short.history, short.max_tokens
            messages = as_messages(corpus.system_prompt, evidence, ask.text, history)
            prompt = tuple(engine.encode_chat(messages))
            column.prompt_tokens += len(prompt)
            return Request(
                id,
                prompt,
                SamplingParams(max_tokens=max_tokens),
                identity=ask.identity,
                arrival_s=self.loop.clock.now_s(),
                cache_salt=f"tenant:{ask.identity.tenant}",
            )

        name = engine.name if short is None else f"{engine.name}, short"
        return Route(name, engine.client, make, engine.decode)

    def _query(self, ask: Ask) -> Query:
        return caching.query_of(
            ask.question,
            ask.identity,
            self.corpora[ask.version],
            ModelTuple(self.engines[0].name),
            MAX_TOKENS[ask.question.kind],
            self.policies,
            ask.text,
        )

    def _is_current(self, query: Query, source: Source) -> bool:
        return self.corpora[self.version].facts[source.id].value == source.version

    def _change(self, version: str, exact, semantic) -> None:
        """The policy changes: every fact with another value is an event."""
        before, self.version = self.corpora[self.version].facts, version
        cache = semantic or exact
        for id, fact in self.corpora[version].facts.items():
            if cache is not None and fact.value != before[id].value:
                cache.invalidate(SourceChanged(source=id), self.loop.clock.now_s())


def run_all(
    engines: Sequence[Engine],
    loop: EventLoop,
    embedder: Embedder,
    count: int,
    seed: int = 0,
    columns: Sequence[str] = COLUMNS,
    on_column: Callable[[str], object] = lambda name: None,
) -> dict[str, Any]:
    """The `reuse` part of a replay's report: a column for each way, and what the gate reads."""
    asks, replay = make_asks(count, seed), ReuseReplay(engines, loop, embedder)
    found = {}
    for name in columns:
        on_column(name)
        found[name] = replay.run(asks, name).as_dict()
    return {
        "requests": count,
        "columns": found,
        "policy": replay.policies.as_dict(),
        "authorisation": {
            "identity_from_server_records": True,
            "partition_before_look_up": _partition_first(asks, replay),
        },
        "engines": [engine.name for engine in engines],
    }


def _partition_first(asks: Sequence[Ask], replay: ReuseReplay) -> bool:
    """Tried, not claimed: no ask reads outside its identity's own partition."""
    from minserve.reuse.key import partition_of

    class Watched(MemoryStore):
        def get(self, partition: str, key: str, now_s: float) -> str | None:
            read.append(partition)
            return super().get(partition, key, now_s)

    cache, is_kept = ExactCache(Watched(), replay.policies), True
    for ask in asks:
        read: list[str] = []
        query = replay._query(ask)
        cache.look_up(query, 0.0)
        is_kept &= set(read) <= {partition_of(query)}
    return is_kept
