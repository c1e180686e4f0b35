"""A learner's parts around the engine: sizing, response caches, the ladder, leases."""

from __future__ import annotations

import built
import pytest

from minserve.jobs.job import Backoff, Kind, Progress, State, Submission
from minserve.jobs.store import JobStore
from minserve.learn import parts as learn_parts
from minserve.learn.conformance.cache_key import PLAIN, asking
from minserve.learn.conformance.response_cache import ANSWER, POLICIES
from minserve.learn.experiments.lesson1 import SMOLLM2
from minserve.learn.serving.install import ServedLadder, ServingParts
from minserve.learn.serving.jobs import ServedStore
from minserve.request import Identity
from minserve.reuse.stores import MemoryStore
from minserve.scheduling.overload import Ladder, LadderState, Rung, Signals

BUSY = Signals(drain_s=10.0)


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(learn_parts, "_live", {})


def named(parts: ServingParts, name: str) -> str:
    return parts.shelf.books[name].why


# -- kv_bytes_per_token


def test_the_pool_is_sized_by_the_part_and_a_wrong_sum_is_left_out():
    assert ServingParts().num_blocks(SMOLLM2, 10**8, 16, "float32") is None
    built.build("kv_bytes_per_token")
    parts = ServingParts()
    assert parts.num_blocks(SMOLLM2, 10**8, 16, "float32") == 10**8 // (16 * 2 * 30 * 3 * 64 * 4)
    assert parts.shelf.told()["at_start"] == ["kv_bytes_per_token"]
    for body in ("return 7", "return None", "return 1 / 0"):
        built.keep("kv_bytes_per_token", "mine", f"def mine(config, bytes_per_value):\n    {body}")
        parts = ServingParts()
        assert parts.num_blocks(SMOLLM2, 10**8, 16, "float32") is None
        assert "kv_bytes_per_token failed" in named(parts, "kv_bytes_per_token")
        assert parts.shelf.told()["at_start"] == []


# -- response caches


def test_cache_and_key_of_a_learner_serve_and_are_counted():
    built.build("cache_key", "response_cache")
    parts = ServingParts()
    cache = parts.exact_cache(MemoryStore(), POLICIES)
    parts.shelf.ledger.begin("r", 0.0)
    with parts.shelf.ledger.during("r"):
        assert cache.look_up(PLAIN, 0.0).outcome == "miss"
        assert cache.put(PLAIN, ANSWER, 0.0, cache.num_events())
        assert cache.look_up(PLAIN, 1.0).answer.text == ANSWER.text
        assert cache.look_up(asking("Another?"), 1.0).answer is None
    [passage] = parts.shelf.ledger.passages()
    assert set(passage["parts"]) == {"cache_key", "response_cache"}


@pytest.mark.parametrize("body", ["return 1 / 0", "return None", "return ''"])
def test_a_key_that_fails_is_a_miss_and_the_reference_goes_on(body):
    built.keep("cache_key", "mine", f"def mine(query):\n    {body}")
    parts = ServingParts()
    cache = parts.exact_cache(MemoryStore(), POLICIES)
    assert cache.look_up(PLAIN, 0.0).answer is None
    assert "cache_key failed" in named(parts, "cache_key")
    assert cache.put(PLAIN, ANSWER, 0.0, cache.num_events())
    assert cache.look_up(PLAIN, 1.0).answer.text == ANSWER.text


CACHE = """
class mine:
    def __init__(self, policies, key):
        {init}
    def get(self, query, now_s):
        raise KeyError(query)
    def num_events(self):
        return 0
    def put(self, query, answer, now_s, since):
        return True
    def invalidate(self, event, now_s):
        return 0
"""


@pytest.mark.parametrize("init", ["pass", "1 / 0"])
def test_a_cache_that_fails_is_a_miss_and_the_reference_goes_on(init):
    built.keep("response_cache", "mine", CACHE.format(init=init))
    parts = ServingParts()
    cache = parts.exact_cache(MemoryStore(), POLICIES)
    assert cache.look_up(PLAIN, 0.0).answer is None
    assert "response_cache failed" in named(parts, "response_cache")
    assert cache.put(PLAIN, ANSWER, 0.0, cache.num_events())
    assert cache.look_up(PLAIN, 1.0).answer.text == ANSWER.text


# -- the ladder


@pytest.mark.parametrize("body", ["1 / 0", "return None", "return LadderState(9)"])
def test_a_ladder_that_fails_gives_way_to_the_reference_and_nobody_is_refused_for_it(body):
    text = f"""
from minserve.learn.admissions import LadderBase
from minserve.scheduling.overload import LadderState
class mine(LadderBase):
    def called_for(self, signals, scale=1.0):
        return 0
    def next(self, state, signals, now_s):
        {body}
"""
    built.keep("overload_ladder", "mine", text)
    parts = ServingParts()
    ladder = ServedLadder(parts.shelf)
    assert ladder.next(LadderState(), BUSY, 0.0) == Ladder().next(LadderState(), BUSY, 0.0)
    assert Ladder().next(LadderState(), BUSY, 0.0).rung > Rung.NORMAL
    assert "overload_ladder failed" in named(parts, "overload_ladder")


# -- leases


@pytest.fixture
def store(tmp_path):
    kind = Kind("echo", "jobs_handlers:echo", max_attempts=2, backoff=Backoff(1.0))
    return JobStore(f"sqlite:///{tmp_path}/jobs.db", [kind], clock=lambda: 0.0, draw=lambda: 0.5)


def live(store: ServedStore) -> State:
    """A job's life: claimed, renewed, completed."""
    who = Identity("t")
    job = store.enqueue(who, Submission("echo", 1))
    [lease] = store.claim("worker", lease_s=10)
    assert store.renew([Progress(job.id, lease.token)], 10) == {job.id}
    store.complete(lease, "done")
    return store.get(who, job.id).state


def test_leases_go_through_the_part_and_are_counted_for_the_job(store):
    built.build("job_lease")
    parts = ServingParts()
    assert live(ServedStore(store, parts.shelf)) is State.DONE
    [passage] = parts.shelf.ledger.passages()
    assert (passage["state"], passage["parts"]) == ("job", {"job_lease": 3})


def test_leases_of_a_part_that_fails_are_the_reference_s(store):
    text = """
from minserve.learn.leases import LeaseBase
class mine(LeaseBase):
    def claim(self, now_s):
        return 1 / 0
"""
    built.keep("job_lease", "mine", text)
    parts = ServingParts()
    assert live(ServedStore(store, parts.shelf)) is State.DONE
    assert "job_lease failed: ZeroDivisionError" in named(parts, "job_lease")


def test_a_server_with_keys_leaves_the_store_as_it_is(store):
    built.build("job_lease")
    assert ServingParts().store(store, "http://127.0.0.1:1", is_open=False) is store
