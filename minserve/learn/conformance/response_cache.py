"""The rules of a response cache: what it must never serve, and what it must still find.

A candidate is called with a `PolicyTable` and a function that names requests, and gives a
`minserve.learn.parts_of_reuse.ResponseCachePart`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite
from minserve.learn.conformance.cache_key import PLAIN, asking
from minserve.request import Identity
from minserve.reuse.invalidation import (
    CacheEvent,
    DataDeleted,
    ModelChanged,
    PermissionChanged,
    PolicyChanged,
    SourceChanged,
    TemplateChanged,
)
from minserve.reuse.key import CanonicalKey, Decoding, NotCacheable, Query, Scope
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.response import Answer, Source

FRESH_S = 100.0
POLICIES = PolicyTable(
    [
        ClassPolicy("help", Scope.PUBLIC, FRESH_S),
        ClassPolicy("policy", Scope.TENANT, FRESH_S),
        ClassPolicy("own", Scope.SUBJECT, FRESH_S),
        ClassPolicy("joke", Scope.PUBLIC, FRESH_S, sampled=True),
        ClassPolicy("action", Scope.SUBJECT, 0.0, why="it changes something"),
    ]
)
BOB, MIA = Identity("alder", "bob"), Identity("marlow", "mia")
ANSWER = Answer("34 days", sources=(Source("faq/1", "v1"),), compute_s=0.0)
HELP = replace(PLAIN, answer_class="help", scope=Scope.PUBLIC)
OWN = replace(PLAIN, answer_class="own", scope=Scope.SUBJECT)
RULES: list[Rule] = []
Make = Callable[[PolicyTable, Callable[[Query], str]], Any]
GET, PUT, INVALIDATE = "get", "put", "invalidate"
KEY = CanonicalKey().of


class Tried:
    """A cache under test. Writes every call down, for the counterexample."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.begin()

    def begin(self, key: Callable[[Query], str] = KEY, told: str = "") -> None:
        """An empty cache that names requests by `key`, and nothing written down but `told`."""
        self.lines = [told] if told else []
        self.cache = self.make(POLICIES, key)

    def put(
        self, query: Query = PLAIN, answer: Answer = ANSWER, now_s=0.0, since=None, told=""
    ) -> bool:
        since = self.cache.num_events() if since is None else since
        self.lines.append(f"put({_named(query)}, {answer.text!r}, now_s={now_s:g}){told}")
        return self.cache.put(query, answer, now_s, since)

    def invalidate(self, event: CacheEvent, now_s: float = 1.0) -> int:
        self.lines.append(f"invalidate({event!r})")
        return self.cache.invalidate(event, now_s)

    def finds(self, query: Query = PLAIN, now_s: float = 1.0, text: str = ANSWER.text) -> None:
        found = self._get(query, now_s)
        if found is None or found.text != text:
            self.fail(f"{text!r} should be served; get returns {found!r}")

    def misses(self, query: Query = PLAIN, now_s: float = 1.0, why: str = "") -> None:
        found = self._get(query, now_s)
        if found is not None:
            self.fail(f"{why}: this must be a miss, and {found.text!r} is served")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)

    def _get(self, query: Query, now_s: float) -> Answer | None:
        self.lines.append(f"get({_named(query)}, now_s={now_s:g})")
        return self.cache.get(query, now_s)


def _named(query: Query) -> str:
    who = query.identity
    return f"{query.answer_class} of {who.tenant}/{who.subject}: {query.question!r}"


def _rule(step: str, invariant: str, hint: str) -> Callable[[Callable], Callable]:
    def add(check: Callable[[Tried], None]) -> Callable:
        def run(make: Make) -> None:
            check(Tried(make))

        RULES.append(Rule(check.__name__.lstrip("_"), step, invariant, hint, run))
        return check

    return add


@_rule(GET, "What was stored is served again; what was not is a miss.", "A dictionary by key.")
def _finds_what_was_stored(cache: Tried) -> None:
    cache.misses(why="nothing was stored")
    if not cache.put():
        cache.fail("put returns False for a complete answer of a class that may be cached")
    cache.finds()
    cache.misses(asking("What is the late fee?"), why="another question")


@_rule(GET, "A tenant never gets another's answer.", "Identity chooses the partition, first.")
def _tenants_are_apart(cache: Tried) -> None:
    cache.put()
    cache.misses(replace(PLAIN, identity=MIA), why="another tenant asks the same")
    cache.finds(replace(PLAIN, identity=BOB))
    cache.put(OWN, replace(ANSWER, text="Anna owes 5 EUR"))
    cache.misses(replace(OWN, identity=BOB), why="another user asks for their own")
    cache.misses(replace(OWN, identity=Identity("marlow", "anna")), why="a namesake elsewhere asks")
    cache.finds(OWN, text="Anna owes 5 EUR")
    cache.put(HELP, replace(ANSWER, text="Press the button"))
    cache.finds(replace(HELP, identity=MIA), text="Press the button")
    forgets = "a key that forgets who asks: key = lambda query: query.question"
    cache.begin(lambda query: query.question, forgets)
    cache.put()
    cache.misses(replace(PLAIN, identity=MIA), why="another tenant asks the same")


@_rule(GET, "An answer is served until it is as old as its class allows.", "now_s - created_s.")
def _freshness_ends(cache: Tried) -> None:
    cache.put(now_s=10.0)
    cache.misses(now_s=10.0 + FRESH_S, why=f"it is {FRESH_S:g} s old")
    cache.put(now_s=10.0)
    cache.finds(now_s=10.0 + FRESH_S - 0.01)


@_rule(GET, "Being served does not make an answer live longer.", "get writes no time.")
def _hits_do_not_extend(cache: Tried) -> None:
    cache.put(now_s=0.0)
    cache.finds(now_s=FRESH_S / 2)
    cache.finds(now_s=FRESH_S - 0.01)
    cache.misses(now_s=FRESH_S + 0.01, why="hits must not extend its life")


@_rule(PUT, "Only a complete answer is stored.", "finish_reason 'stop', some text, no fallback.")
def _only_complete_answers(cache: Tried) -> None:
    for reason in ("length", "cancelled", "error", ""):
        cache.begin()
        if cache.put(answer=replace(ANSWER, finish_reason=reason), told=f"  # {reason!r}"):
            cache.fail(f"put returns True for an answer that ended with {reason!r}")
        cache.misses(why=f"the answer ended with {reason!r}")
    cache.begin()
    cache.put(answer=replace(ANSWER, text="Sorry, try later", is_fallback=True))
    cache.misses(why="that text stood in for a failure")
    for text in ("", "  \n"):
        cache.begin()
        cache.put(answer=replace(ANSWER, text=text))
        cache.misses(why="an empty answer is none")


@_rule(PUT, "The class says what may be cached.", "policies[query.answer_class].allows(query).")
def _class_decides(cache: Tried) -> None:
    for query, why in (
        (replace(PLAIN, answer_class="action", scope=Scope.SUBJECT), "it changes something"),
        (replace(PLAIN, answer_class="unheard-of"), "the table does not name the class"),
        (replace(PLAIN, scope=Scope.PUBLIC), "the scope is wider than the class allows"),
        (replace(PLAIN, decoding=Decoding(temperature=0.7)), "decoding is random"),
        (replace(PLAIN, decoding=Decoding()), "no temperature is given, which is not 0"),
    ):
        if cache.put(query, told=f"  # {why}"):
            cache.fail(f"put returns True, although {why}")
        cache.misses(query, why=why)
    joke = replace(HELP, answer_class="joke", decoding=Decoding(temperature=0.7))
    cache.put(joke)
    cache.finds(joke)


@_rule(PUT, "A newer answer takes the place of the older.", "One entry for each key.")
def _newest_wins(cache: Tried) -> None:
    cache.put(now_s=0.0)
    cache.put(answer=replace(ANSWER, text="58 days"), now_s=50.0)
    cache.finds(now_s=FRESH_S + 1, text="58 days")


@_rule(
    PUT,
    "What has no key is not cached, and does no harm.",
    "`key(query)` may raise: catch it, and keep out.",
)
def _what_has_no_key_is_a_miss(cache: Tried) -> None:
    for query in (replace(PLAIN, tools={"a": float("nan")}), asking("\ud800")):
        try:
            if cache.put(query):
                cache.fail("put returns True for a request without a canonical form")
            cache.misses(query, why="it cannot have been stored")
        except NotCacheable:
            what = cache.lines[-1].split("(")[0]
            cache.fail(f"key(query) raises NotCacheable, and so does {what}: keep out instead")


@_rule(INVALIDATE, "An event removes what rests on it, and no more.", "Keep tags with each entry.")
def _events_reach_what_they_name(cache: Tried) -> None:
    other = replace(ANSWER, text="5 EUR", sources=(Source("faq/2", "v1"),))
    fee = asking("What is the late fee?", replace(PLAIN, identity=BOB))
    elsewhere = replace(PLAIN, identity=MIA, model=replace(PLAIN.model, name="smollm2"))
    template = replace(PLAIN, model=replace(PLAIN.model, template="t1"))
    everything = (PLAIN, fee, elsewhere, template)
    for event, removed in (
        (SourceChanged(source="faq/1"), (PLAIN, template)),
        (SourceChanged(source="faq/9"), ()),
        (PolicyChanged(tenant="alder"), (PLAIN, fee, template)),
        (PolicyChanged(), everything),
        (PermissionChanged(tenant="alder", subject="bob"), (fee,)),
        (PermissionChanged(tenant="marlow"), (elsewhere,)),
        (DataDeleted(tenant="alder", subject="anna"), (PLAIN, template)),
        (ModelChanged(model="nano"), (PLAIN, fee, template)),
        (TemplateChanged(template="t1"), (template,)),
    ):
        cache.lines.clear()
        for query in everything:
            cache.put(query, other if query in (fee, elsewhere) else ANSWER)
        count = cache.invalidate(event)
        if count != len(removed):
            cache.fail(f"{len(removed)} entries rest on that; invalidate returns {count}")
        for query in everything:
            if query in removed:
                cache.misses(query, why="the event made it wrong")
            else:
                cache.finds(query, text=(other if query in (fee, elsewhere) else ANSWER).text)


@_rule(
    INVALIDATE,
    "What was begun before an event is not stored after it.",
    "Remember the number of each tag's last event, and compare it with `since`.",
)
def _no_answer_outlives_its_event(cache: Tried) -> None:
    since = cache.cache.num_events()
    cache.lines.append(f"since = num_events()   # {since}; now the model begins to write")
    cache.invalidate(SourceChanged(source="faq/1"))
    if cache.put(since=since, told="  # since as above"):
        cache.fail("it was computed from a source that has changed meanwhile, and put returns True")
    cache.misses(why="it was computed from a source that has changed meanwhile")
    since = cache.cache.num_events()
    cache.invalidate(SourceChanged(source="faq/2"))
    if not cache.put(since=since):
        cache.fail("that event had nothing to do with it, and put returns False")
    cache.finds()


SUITE = Suite(
    "response_cache",
    (GET, PUT, INVALIDATE),
    tuple(RULES),
    {
        GET: Ladder(
            drawing="""\
query -> policy of its class -> partition (who asks) -> key -> entry
          no: a miss              never looked up elsewhere    as old as allowed: a miss""",
            pseudocode="""\
if not policies[query.answer_class].allows(query): return None
entry = entries.get((partition_of(query), key(query)))
if entry is None or now_s - entry.created_s >= freshness_s: forget it; return None
return entry.answer""",
            near_miss="""\
- entry = entries.get(key(query))
+ entry = entries.get((partition_of(query), key(query)))""",
        ),
        PUT: Ladder(
            drawing="answer -> complete? -> class allows? -> no event since? -> stored",
            pseudocode="""\
if answer.finish_reason != 'stop' or answer.is_fallback or not answer.text.strip(): return False
if not policies[query.answer_class].allows(query): return False""",
            near_miss="""\
- if answer.finish_reason == 'error': return False
+ if answer.finish_reason != 'stop': return False""",
        ),
        INVALIDATE: Ladder(
            drawing="""\
entry   tags: all, tenant alder, asker alder/anna, model nano, source faq/1
event   SourceChanged(faq/1)  ->  tag source faq/1  ->  that entry""",
            pseudocode="""\
events += 1
for tag in event.tags(): last[tag] = events
remove every entry that has one of the tags
put: if any(last.get(tag, 0) > since for tag in tags): return False""",
            near_miss="""\
- def put(...): self.entries[...] = answer
+ def put(...): if no tag of it had an event after `since`: self.entries[...] = answer""",
        ),
    },
)
