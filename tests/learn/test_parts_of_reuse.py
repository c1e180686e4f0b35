"""The parts of lesson 5 run in the real cached service, and cannot leak there if they are wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.learn import hint
from minserve.learn.conformance import examine, suite_of
from minserve.learn.conformance.cache_key import PLAIN, asking, variants
from minserve.learn.parts_of_reuse import (
    KeyPart,
    LearnedCache,
    TaggedCache,
    cache_key,
    gate_part,
    semantic_gate,
)
from minserve.output import Detokenizer
from minserve.request import Identity, Request, SamplingParams
from minserve.reuse.embedding import HashedNgrams
from minserve.reuse.gate import Examples, Thresholds
from minserve.reuse.invalidation import PolicyChanged, SourceChanged
from minserve.reuse.key import CanonicalKey, Message, ModelTuple, Scope, Wording
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.response import Answer, ExactCache
from minserve.reuse.semantic import SemanticCache
from minserve.reuse.stores import MemoryStore
from minserve.service import Piece, Service, Started

POLICIES = PolicyTable([ClassPolicy("policy", Scope.TENANT, 3600.0, semantic=True)])
WINDOW, FEE = "How long is the refund window?", "What does a late payment cost?"


class World:
    """A service with these parts before a simulated engine that counts what it is asked."""

    def __init__(self, make_cache, gate=None):
        self.loop = EventLoop(VirtualClock())
        executor = SimulatedExecutor(
            64, 4, cost=CostModel(1.0, 0, 0, 0), token=lambda row: ord("a") + row.output_position
        )
        engine = Engine(executor)
        service = Service(
            LocalClient(engine, self.loop),
            lambda stop: Detokenizer(lambda ids: "".join(map(chr, ids)), stop),
        )
        self.cache = make_cache(POLICIES)
        semantic = None
        if gate:
            embedder = HashedNgrams()
            examples = Examples(embedder.embed([WINDOW, FEE]), ["refund window", "late fee"])
            thresholds = Thresholds(0.0, {})
            semantic = SemanticCache(self.cache, embedder, examples, thresholds, gate=gate)
        self.service = CachedService(
            service,
            self.cache,
            ModelTuple("m"),
            now_s=self.loop.clock.now_s,
            semantic=semantic,
        )
        self.number = 0

    def ask(self, text, tenant="alder"):
        """(what the cache said, the answer)."""
        self.number += 1
        request = Request(
            f"r{self.number}",
            (1, 2, 3),
            SamplingParams(max_tokens=9, stop=("f",)),
            Identity(tenant, "anna"),
            arrival_s=self.loop.clock.now_s(),
        )
        heard = []
        wording = Wording("policy", (Message("user", text),), ("faq/1",))
        self.service.submit(request, heard.append, wording=wording)
        self.loop.run()
        [started] = [output for output in heard if isinstance(output, Started)]
        return started.cache, "".join(o.text for o in heard if isinstance(o, Piece))


def test_a_learners_key_and_cache_serve_the_real_service():
    asked = []

    def key(query):
        asked.append(query.question)
        return cache_key(query)

    world = World(lambda policies: LearnedCache(policies, TaggedCache, key))
    assert world.ask(WINDOW) == ("miss", "abcde")
    assert world.ask(WINDOW) == ("hit", "abcde")
    assert world.ask(FEE)[0] == world.ask(WINDOW, "marlow")[0] == "miss"
    assert set(asked) == {WINDOW, FEE}
    assert world.service.invalidate(SourceChanged(source="faq/1")) == 3
    assert world.ask(WINDOW)[0] == "miss"


def test_a_learners_key_serves_in_the_engines_own_cache():
    world = World(lambda policies: ExactCache(MemoryStore(), policies, key_of=KeyPart(cache_key)))
    assert [world.ask(WINDOW)[0], world.ask(WINDOW)[0], world.ask(FEE)[0]] == [
        "miss",
        "hit",
        "miss",
    ]


def test_a_learners_gate_decides_about_other_words():
    seen = []

    def gate(asked, stored, cosine, least, verify):
        seen.append((asked, stored, round(cosine, 2), least))
        return semantic_gate(asked, stored, cosine, least, verify)

    world = World(LearnedCache, gate_part(gate, {"refund window": 0.3}, otherwise=0.99))
    other = "Tell me: how long is the refund window?"
    order = "Lengthen the refund window."
    world.ask(WINDOW)
    assert world.ask(other) == ("similar", "abcde")
    assert world.ask(order)[0] == "miss"
    assert [(a, s, least) for a, s, _, least in seen] == [
        (other, WINDOW, 0.3),
        (order, WINDOW, 0.3),
    ]
    assert all(0.3 < cosine < 1 for _, _, cosine, _ in seen)
    assert world.ask(other, "marlow")[0] == "miss" and len(seen) == 2


def test_a_cache_that_forgets_who_asks_costs_hits_and_leaks_nothing():
    class ByQuestion(TaggedCache):
        def place(self, query):
            return "all", query.question

    cache = LearnedCache(POLICIES, ByQuestion, lambda query: query.question)
    answer = Answer("34 days")
    assert cache.put(PLAIN, answer, 0.0, 0)
    theirs = replace(PLAIN, identity=Identity("marlow", "mia"))
    assert cache.part.get(theirs, 1.0) is not None
    assert cache.get(theirs, 1.0) is None
    assert cache.get(PLAIN, 1.0).text == "34 days"


def test_a_part_that_raises_is_a_miss():
    class Broken(TaggedCache):
        def get(self, query, now_s):
            raise KeyError("oops")

    world = World(lambda policies: LearnedCache(policies, Broken))
    assert [world.ask(WINDOW)[0], world.ask(WINDOW)[0]] == ["miss", "miss"]


def test_stale_hits_are_counted_for_a_learners_cache_too():
    cache = LearnedCache(POLICIES)
    cache.put(PLAIN, Answer("34 days"), 0.0, 0)
    assert cache.get(PLAIN, 5.0) is not None
    cache.invalidate(SourceChanged(source="faq/1"), 6.0)
    assert cache.num_stale_hits == 0
    assert cache.invalidate(PolicyChanged(happened_s=4.0), 7.0) == 1
    assert cache.num_stale_hits == 1


def test_the_reference_key_separates_what_the_engines_key_separates():
    queries = [PLAIN, asking("x²"), asking("x2"), *(query for _, query in variants())]
    queries += [replace(query, scope=scope) for query in queries[:3] for scope in Scope]
    for one, other in combinations(queries, 2):
        same = CanonicalKey().of(one) == CanonicalKey().of(other)
        assert (cache_key(one) == cache_key(other)) is same


def test_reference_of_a_step_comes_with_the_helper_that_it_calls(capsys):
    hint("response_cache", 5, step="get")
    said = capsys.readouterr().out
    assert "def get(" in said and "def place(" in said and "def put(" not in said
    hint("response_cache", 5, step="invalidate")
    assert "def place(" not in capsys.readouterr().out


@pytest.mark.parametrize("part", ["cache_key", "response_cache", "semantic_gate"])
def test_counterexamples_show_what_led_there(part):
    def wrong(*args):
        return "x"

    candidate = wrong if part != "response_cache" else _one_place
    broken = [v for v in examine(suite_of(part), candidate) if v.state == "broken"]
    assert broken and all(v.example for v in broken)


def _one_place(policies, key):
    cache = TaggedCache(policies, key)
    cache.place = lambda query: ("all", "one")
    return cache
