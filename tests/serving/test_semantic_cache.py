"""Classes, wordings and the semantic cache through real HTTP: nobody gets another's answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from live_server import Live

from minserve.cached_service import CachedService
from minserve.events import Submitted
from minserve.northstar.caching import policy_table, semantic_cache
from minserve.northstar.prompts import render_user, split_user
from minserve.reuse.embedding import HashedNgrams
from minserve.reuse.key import ModelTuple
from minserve.reuse.redis_store import RedisStore
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore, SqliteStore
from minserve.serving.identity import ApiKey, KeyRing, hash_of

EVIDENCE = ["The late fee of Umber Club is 5 EUR.", "The deposit of Umber Club is 9 EUR."]
QUESTION = "What is the late fee of Umber Club?"
REWORDED = "Please tell me the late fee of Umber Club."
TURN_ON, TURN_OFF = "How do I turn on dark mode?", "How do I turn off dark mode?"


class Failing:
    """Becomes an embedder that fails, when told."""

    def __init__(self) -> None:
        self.inner, self.is_broken = HashedNgrams(), False

    def embed(self, texts):
        if self.is_broken:
            raise RuntimeError("out of order")
        return self.inner.embed(texts)


def key(subject: str, tenant: str, *classes: str, roles: tuple[str, ...] = ()) -> ApiKey:
    id = hash_of(f"key of {subject}")
    return ApiKey(subject, id, tenant, subject, roles, answer_classes=classes)


KEYS = KeyRing(
    [
        key("ann", "a", "policy", "help", "chat"),
        key("abe", "a", "policy", "help", "chat"),
        key("adm", "a", "policy", roles=("admin",)),
        key("bob", "b", "policy", "help"),
        key("plain", "a"),
        key("ops", "o", roles=("operator",)),
    ]
)


class Cached(Live):
    """A server with both caches; counts what reaches the engine."""

    def __init__(self, store, **options) -> None:
        self.embedder, self.now_s, self.num_submitted = Failing(), 1000.0, 0

        def wrap(service):
            exact = ExactCache(store, policy_table())
            self.semantic = semantic_cache(exact, self.embedder, EXAMPLES)
            return CachedService(
                service,
                exact,
                ModelTuple("letters"),
                now_s=lambda: self.now_s,
                semantic=self.semantic,
                split=split_user,
            )

        super().__init__(keys=KEYS, wrap=wrap, **options)
        self.engine.log.listen(self._count)

    def _count(self, event) -> None:
        self.num_submitted += isinstance(event, Submitted)

    def ask(self, question, who="ann", answer_class="policy", evidence=EVIDENCE, **change):
        """One question in a chat whose system prompt is this test's own."""
        system = change.pop("system", self.name)
        history = change.pop("history", [])
        sources = change.pop("sources", "")
        said = render_user(evidence, question) if evidence is not None else question
        messages = [
            {"role": "system", "content": system},
            *history,
            {"role": "user", "content": said},
        ]
        body = {"messages": messages, "temperature": 0, "stop": "f", "max_tokens": 20} | change
        headers = {"x_answer_class": answer_class} if answer_class else {}
        headers |= {"x_sources": sources} if sources else {}
        response = self.post("/v1/chat/completions", body, f"key of {who}", **headers)
        assert response.status_code == 200, response.text
        return response.headers.get("x-cache")


def _examples() -> tuple[list[str], list[str]]:
    """Northstar's, and an intent in which opposites are nearest neighbours."""
    from minserve.northstar.caching import intent_examples

    texts, intents = intent_examples()
    for text in (TURN_ON, TURN_OFF, "Turn on dark mode how?", "How can I turn off dark mode?"):
        texts.append(text)
        intents.append("dark mode")
    return texts, intents


EXAMPLES = _examples()


@pytest.fixture(scope="module")
def servers(redis_url, tmp_path_factory):
    """One server for each store; each test has a system prompt, and so shelves, of its own."""
    redis = RedisStore(redis_url, prefix="{semantic-http}")
    redis._redis.flushall()
    file = tmp_path_factory.mktemp("cache") / "cache.db"
    stores = {"memory": MemoryStore(), "sqlite": SqliteStore(file), "redis": redis}
    with ExitStack() as stack:
        yield {name: stack.enter_context(Cached(store)) for name, store in stores.items()}
    for store in stores.values():
        store.close()


@pytest.fixture
def server(servers, request):
    server = servers[getattr(request, "param", "memory")]
    server.name, server.num_submitted, server.embedder.is_broken = request.node.name, 0, False
    return server


every_store = pytest.mark.parametrize("server", ["memory", "sqlite", "redis"], indirect=True)


@every_store
def test_another_wording_is_answered_within_the_tenant(server):
    assert server.ask(QUESTION) == "miss"
    assert server.ask(QUESTION) == "hit"
    assert server.ask(REWORDED) == "similar"
    assert server.ask(REWORDED, "abe") == "similar"  # the class is shared by the tenant
    assert server.num_submitted == 1


@every_store
@pytest.mark.parametrize("who", ["bob", "adm"])  # another tenant; other roles in the same one
def test_nobody_gets_anothers_answer_on_either_path(server, who):
    server.ask(QUESTION)
    server.ask(REWORDED + " Thank you!")
    assert server.ask(REWORDED, who) == "miss"
    assert server.ask(QUESTION, who) == "similar"  # to its own
    server.ask(QUESTION, max_tokens=19)
    assert server.ask(QUESTION, who, max_tokens=19) == "miss"


@pytest.mark.parametrize(
    "change",
    [
        {"system": "another system prompt"},
        {"history": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        {"evidence": [*EVIDENCE[1:], "The late fee of Umber Club is 7 EUR."]},
        {"max_tokens": 21},
        {"stop": "e"},
        {"top_k": 3},
        {"min_tokens": 1},
    ],
)
def test_everything_but_the_question_must_be_equal(server, change):
    server.ask(QUESTION)
    assert server.ask(REWORDED, **change) == "miss"
    assert server.ask(QUESTION, **change) == "similar"  # to the one before, so no exact hit either


def test_equal_in_nfc_is_equal_and_nfkc_or_case_is_not(server):
    server.ask("Is caf\u00e9 x\u00b2 US?", evidence=None)
    assert server.ask("Is cafe\u0301 x\u00b2 US?", evidence=None) == "hit"
    for other in ("Is caf\u00e9 x2 US?", "Is caf\u00e9 x\u00b2 us?", "Is caf\u00e9  x\u00b2 US?"):
        assert server.ask(other, evidence=None) == "miss"


def test_opposites_never_match_while_a_paraphrase_does(server):
    assert server.ask(TURN_ON, evidence=None, answer_class="help") == "miss"
    assert server.ask(TURN_OFF, evidence=None, answer_class="help") == "miss"
    paraphrase = server.ask("How can I turn on dark mode?", evidence=None, answer_class="help")
    assert paraphrase == "similar"
    rows = server.get("/admin/cache", "key of ops").json()["lookups"]
    assert any(row["cache"] == "semantic" and row["outcome"] == "polarity" for row in rows)


@pytest.mark.parametrize("empty", ["", "   "])
def test_an_empty_question_never_matches(server, empty):
    server.ask(empty, evidence=None)
    assert server.ask(empty + " ", evidence=None) == "miss"


def test_a_failing_embedder_means_a_miss(server):
    server.ask(QUESTION)
    server.embedder.is_broken = True
    assert server.ask(REWORDED) == "miss"
    assert server.ask(QUESTION) == "hit"


def test_a_class_without_other_wordings_has_none(server):
    for answer_class in ("chat", None):
        assert server.ask(QUESTION, answer_class=answer_class) == "miss"
        assert server.ask(REWORDED, answer_class=answer_class) == "miss"
        assert server.ask(QUESTION, answer_class=answer_class) == "hit"
    assert server.ask(QUESTION, "abe", answer_class="chat") == "miss"  # its asker's alone


def test_only_a_key_that_may_claims_a_class(server):
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    for who, answer_class in (("plain", "policy"), ("bob", "account"), ("ann", "*")):
        response = server.post(
            "/v1/chat/completions", body, f"key of {who}", x_answer_class=answer_class
        )
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "answer_class_not_allowed"


@every_store
def test_what_is_truncated_is_stored_for_no_wording(server):
    assert server.ask(QUESTION, max_tokens=3) == "miss"
    assert server.ask(REWORDED, max_tokens=3) == "miss"
    assert server.ask(QUESTION, max_tokens=3) == "miss"


@every_store
def test_events_reach_the_answers_and_their_wordings(server):
    for event in (
        {"kind": "source_changed", "source": "faq/7"},
        {"kind": "policy_changed", "tenant": "a"},
        {"kind": "data_deleted", "tenant": "a", "subject": "ann"},
        {"kind": "model_changed", "model": "letters"},
    ):
        assert server.ask(QUESTION, sources="faq/7, faq/9") == "miss"
        assert server.ask(REWORDED) == "similar"
        told = server.post("/admin/cache/events", event, "key of ops")
        assert told.json()["removed"] >= 1
        assert server.ask(REWORDED, "abe") == "miss"
        server.post("/admin/cache/events", {"kind": "policy_changed"}, "key of ops")


def test_a_late_event_counts_similar_hits_as_stale(server):
    before = server.get("/admin/cache", "key of ops").json()["stale_hits"]
    server.ask(QUESTION, sources="faq/1")
    server.now_s += 5.0
    assert server.ask(REWORDED) == "similar"
    event = {"kind": "source_changed", "source": "faq/1", "happened_s": server.now_s - 1.0}
    server.post("/admin/cache/events", event, "key of ops")
    assert server.get("/admin/cache", "key of ops").json()["stale_hits"] == before + 1


def test_metrics_count_by_class_and_check_and_name_nobody(server):
    server.ask(QUESTION), server.ask(REWORDED), server.ask(QUESTION)
    text = server.get("/metrics", "key of ops").text
    lines = [line for line in text.splitlines() if line.startswith("minserve_response_cache")]
    told = "\n".join(lines)
    for cache, outcome in (("exact", "hit"), ("exact", "miss"), ("semantic", "hit")):
        labels = f'answer_class="policy",cache="{cache}",model_name="letters",outcome="{outcome}"'
        assert f"minserve_response_cache_lookups_total{{{labels}}}" in told
    assert "minserve_response_cache_stale_hits_total" in told
    assert not {"ann", "bob", "tenant"} & set(told.replace('"', " ").replace("=", " ").split())


def test_a_hundred_who_ask_at_once_make_one_request():
    with Cached(MemoryStore(), step_s=0.2) as server, ThreadPoolExecutor(100) as pool:
        server.name = "storm"
        kinds = list(pool.map(lambda _: server.ask(QUESTION), range(100)))
        assert server.num_submitted == 1
        assert kinds.count("miss") == 1 and set(kinds) <= {"miss", "shared", "hit"}
