"""The response cache through real HTTP: hits are fast and equal, and nobody gets another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from live_server import Live

from minserve.cached_service import CachedService
from minserve.cli.served_engine import EngineSettings, cache_maker
from minserve.events import Submitted
from minserve.northstar.caching import policy_table
from minserve.reuse.key import ModelTuple
from minserve.reuse.redis_store import RedisStore
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore, SqliteStore
from minserve.serving.identity import ApiKey, KeyRing, hash_of

ASK = {"prompt": "What is my balance?", "temperature": 0, "stop": "f", "max_tokens": 20}


def key(subject: str, tenant: str, *roles: str) -> ApiKey:
    return ApiKey(subject, hash_of(f"key of {subject}"), tenant, subject, roles)


class Cached(Live):
    """A server with a response cache; counts what reaches the engine."""

    def __init__(self, store, **options) -> None:
        keys = KeyRing(
            [key("ann", "a"), key("abe", "a"), key("bob", "b"), key("ops", "o", "operator")]
        )

        def wrap(service):
            cache = ExactCache(store, policy_table())
            return CachedService(service, cache, ModelTuple("letters"), now_s=lambda: self.now_s)

        self.now_s, self.prompt = 1000.0, ASK["prompt"]
        super().__init__(keys=keys, wrap=wrap, **options)
        self.num_submitted = 0
        self.engine.log.listen(self._count)

    def _count(self, event) -> None:
        self.num_submitted += isinstance(event, Submitted)

    def ask(self, who="ann", **change):
        body = ASK | {"prompt": self.prompt} | change
        response = self.post("/v1/completions", body, f"key of {who}")
        assert response.status_code == 200, response.text
        return response


@pytest.fixture(scope="module")
def servers(redis_url, tmp_path_factory):
    """One server for each store; a test asks what no other test asks."""
    file = tmp_path_factory.mktemp("cache") / "cache.db"
    redis = RedisStore(redis_url, prefix="{http}")
    redis._redis.flushall()
    stores = {"memory": MemoryStore(), "sqlite": SqliteStore(file), "redis": redis}
    with ExitStack() as stack:
        yield {name: stack.enter_context(Cached(store)) for name, store in stores.items()}
    for store in stores.values():
        store.close()


@pytest.fixture
def server(servers, request):
    server = servers[getattr(request, "param", "memory")]
    server.num_submitted, server.prompt = 0, request.node.name
    return server


every_store = pytest.mark.parametrize("server", ["memory", "sqlite", "redis"], indirect=True)


def text(response) -> str:
    return response.json()["choices"][0]["text"]


@every_store
def test_the_same_request_of_the_same_caller_is_answered_from_the_cache(server):
    first, second = server.ask(), server.ask()
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert text(first) == text(second) == "abcde"
    assert first.json()["usage"]["completion_tokens"] == second.json()["usage"]["completion_tokens"]
    assert second.json()["choices"][0]["finish_reason"] == "stop"
    assert server.num_submitted == 1


@every_store
def test_nobody_gets_another_tenants_or_another_users_answer(server):
    server.ask("ann")
    for who in ("bob", "abe"):
        assert server.ask(who).headers["x-cache"] == "miss"
    assert server.num_submitted == 3


def test_a_tenant_or_salt_in_the_body_is_refused_and_reaches_no_partition(server):
    server.ask("ann")
    for name, value in (("tenant", "a"), ("cache_salt", "a"), ("scope", "public")):
        body = ASK | {"prompt": server.prompt, name: value}
        response = server.post("/v1/completions", body, "key of bob")
        assert response.status_code == 400 and "x-cache" not in response.headers


@pytest.mark.parametrize(
    "change", [{"max_tokens": 21}, {"stop": "e"}, {"prompt": "What?"}, {"top_k": 3}]
)
def test_another_request_is_a_miss(server, change):
    server.ask()
    assert server.ask(**change).headers["x-cache"] == "miss"


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"temperature": None}, {"n": 2}])
def test_what_is_random_or_plural_goes_by_the_cache(server, change):
    for _ in range(2):
        assert "x-cache" not in server.ask(**change).headers
    assert server.num_submitted >= 2


def test_a_truncated_answer_is_not_stored(server):
    for _ in range(2):
        response = server.ask(max_tokens=3)
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.headers["x-cache"] == "miss"


def test_a_hit_streams_as_any_answer_does(server):
    server.ask()
    response = server.ask(stream=True)
    assert response.headers["x-cache"] == "hit"
    assert '"text":"abcde"' in response.text and response.text.endswith("data: [DONE]\n\n")


def test_answers_expire_by_the_caches_own_clock(server):
    server.ask()
    server.now_s += 299.0
    assert server.ask().headers["x-cache"] == "hit"
    server.now_s += 2.0
    assert server.ask().headers["x-cache"] == "miss"


@every_store
def test_an_operator_invalidates_and_reads_the_figures(server):
    server.ask()
    event = {"kind": "data_deleted", "tenant": "a", "subject": "ann"}
    assert server.post("/admin/cache/events", event, "key of ann").status_code == 403
    assert server.get("/admin/cache", "key of ann").status_code == 403
    told = server.post("/admin/cache/events", event, "key of ops")
    assert told.json()["removed"] >= 1
    assert server.ask().headers["x-cache"] == "miss"
    picture = server.get("/admin/cache", "key of ops").json()
    assert picture["entries"] >= 1 and picture["outcomes"]["default miss"] >= 2
    wrong = server.post("/admin/cache/events", {"kind": "flood"}, "key of ops")
    assert wrong.status_code == 400 and "source_changed" in wrong.text
    wrong = server.post("/admin/cache/events", [event], "key of ops")
    assert wrong.status_code == 400 and "application/json" in wrong.text


def test_a_late_event_shows_as_an_incident(server):
    before = server.get("/admin/cache", "key of ops").json()["stale_hits"]
    server.ask()
    server.now_s += 5.0
    server.ask()
    event = {"kind": "model_changed", "model": "letters", "happened_s": server.now_s - 1.0}
    server.post("/admin/cache/events", event, "key of ops")
    picture = server.get("/admin/cache", "key of ops").json()
    assert picture["stale_hits"] == before + 1
    assert picture["incidents"][-1]["event"]["kind"] == "model_changed"


def test_a_server_without_a_cache_says_so():
    with Live() as server:
        assert server.get("/admin/cache").status_code == 404
        response = server.post("/v1/completions", ASK)
        assert response.status_code == 200 and "x-cache" not in response.headers


def test_many_who_ask_at_once_make_one_request():
    with Cached(MemoryStore(), step_s=0.2) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.ask(), range(8)))
        assert {text(answer) for answer in answers} == {"abcde"}
        assert server.num_submitted == 1
        kinds = [answer.headers["x-cache"] for answer in answers]
        assert kinds.count("miss") == 1 and set(kinds) <= {"miss", "shared", "hit"}


def test_a_store_that_does_not_answer_is_told_of_at_the_start(caplog):
    assert cache_maker(EngineSettings(response_cache="redis://127.0.0.1:1")) is not None
    assert "redis://127.0.0.1:1 does not answer" in caplog.text
    caplog.clear()
    assert cache_maker(EngineSettings(response_cache="memory")) is not None
    assert not caplog.text
