"""The exact cache on every store: what it must not serve, and what it must not lose."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from minserve.errors import InvalidRequest
from minserve.learn.conformance import KEPT, examine, suite_of
from minserve.learn.conformance.cache_key import PLAIN
from minserve.learn.conformance.response_cache import ANSWER, FRESH_S, MIA, OWN, POLICIES
from minserve.request import Identity
from minserve.reuse import invalidation
from minserve.reuse.invalidation import (
    DataDeleted,
    ModelChanged,
    PermissionChanged,
    SourceChanged,
)
from minserve.reuse.key import Decoding, ModelTuple, Scope, partition_of
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.response import Answer, Evidence, ExactCache, Source
from minserve.reuse.stores import MemoryStore


@pytest.fixture
def cache(new_store):
    return ExactCache(new_store(), POLICIES)


def ask(cache, query=PLAIN, now_s=1.0):
    return cache.look_up(query, now_s).outcome


def test_the_exact_cache_keeps_every_rule_of_the_suite_on_every_store(new_store):
    make = lambda table, key: ExactCache(new_store(), table)  # noqa: E731  its own key is meant
    verdicts = examine(suite_of("response_cache"), make)
    assert [v for v in verdicts if v.state != KEPT] == []


def test_an_answer_comes_back_as_it_was_stored(cache):
    answer = replace(ANSWER, compute_s=2.5, extra={"token_ids": [1, 2]})
    cache.put(PLAIN, answer, 7.0, 0)
    assert cache.get(PLAIN, 8.0) == replace(answer, created_s=7.0)


def test_a_request_is_looked_up_in_no_partition_but_its_own():
    """The store is asked for the asker's own partition, and for nothing else."""

    class Watched(MemoryStore):
        asked = []

        def get(self, partition, key, now_s):
            self.asked.append(partition)
            return super().get(partition, key, now_s)

    cache = ExactCache(Watched(), POLICIES)
    cache.put(PLAIN, ANSWER, 0.0, 0)
    theirs = replace(PLAIN, identity=MIA)
    assert ask(cache, theirs) == "miss"
    assert Watched.asked == [partition_of(theirs)]


def test_an_entry_that_lies_in_the_wrong_place_is_not_served(new_store):
    """Even if a store mixed partitions up, the entry itself says whose it is."""
    store = new_store()
    cache = ExactCache(store, POLICIES)
    cache.put(PLAIN, ANSWER, 0.0, 0)
    key = cache.key_of(PLAIN)
    text = store.get(partition_of(PLAIN), key, 0.0)
    theirs = replace(PLAIN, identity=MIA)
    place = dict(tags=(), expires_s=99.0, now_s=0.0, since=0)
    store.put(partition_of(theirs), cache.key_of(theirs), text, **place)
    assert ask(cache, theirs) == "foreign"
    assert ask(cache, PLAIN) == "hit"


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"v": 1}', '"text"'])
def test_a_damaged_entry_is_a_miss(new_store, damage):
    store = new_store()
    cache = ExactCache(store, POLICIES)
    store.put(partition_of(PLAIN), cache.key_of(PLAIN), damage, tags=(), expires_s=99.0,
              now_s=0.0, since=0)  # fmt: skip
    assert cache.get(PLAIN, 1.0) is None


class Broken:
    """A store that is not there any more."""

    def __getattr__(self, name):
        raise ConnectionError("gone")


def test_a_store_that_fails_is_a_miss_and_an_event_that_is_lost_is_an_error():
    cache = ExactCache(Broken(), POLICIES)
    found = cache.look_up(PLAIN, 1.0)
    assert (found.answer, found.outcome) == (None, "error")
    assert cache.put(PLAIN, ANSWER, 1.0, cache.num_events()) is False
    assert cache.get_evidence(PLAIN, 1.0) is None
    with pytest.raises(ConnectionError):
        cache.invalidate(SourceChanged(source="faq/1"), 1.0)


@pytest.mark.parametrize("check", ["validate", "sources_valid"])
@pytest.mark.parametrize("verdict", [False, None, RuntimeError("no connection")])
def test_a_check_that_fails_or_raises_or_says_nothing_is_a_miss(new_store, check, verdict):
    def says(*args):
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    store = new_store()
    ExactCache(store, POLICIES).put(PLAIN, ANSWER, 0.0, 0)
    assert ExactCache(store, POLICIES, **{check: says}).get(PLAIN, 1.0) is None


def test_output_is_validated_before_it_is_stored(new_store):
    cache = ExactCache(new_store(), POLICIES, validate=lambda query, answer: "days" in answer.text)
    assert not cache.put(PLAIN, replace(ANSWER, text="no idea"), 0.0, 0)
    assert cache.put(PLAIN, ANSWER, 0.0, 0)


def test_a_source_that_changed_without_an_event_is_noticed_at_the_hit(new_store):
    versions = {"faq/1": "v1"}
    cache = ExactCache(
        new_store(),
        POLICIES,
        sources_valid=lambda query, source: versions[source.id] == source.version,
    )
    cache.put(PLAIN, ANSWER, 0.0, 0)
    assert ask(cache) == "hit"
    versions["faq/1"] = "v2"
    assert ask(cache) == "stale_source"
    assert ask(cache) == "miss", "it was removed"


def test_an_asker_who_may_no_longer_see_a_source_gets_no_answer_made_of_it(new_store):
    readers = {"anna", "bob"}
    cache = ExactCache(
        new_store(), POLICIES, sources_valid=lambda query, source: query.identity.subject in readers
    )
    cache.put(PLAIN, ANSWER, 0.0, 0)
    bob = replace(PLAIN, identity=Identity("alder", "bob"))
    assert ask(cache, bob) == "hit"
    readers.remove("bob")
    assert ask(cache, bob) == "stale_source"


def test_a_window_made_shorter_counts_for_what_is_stored_already(new_store):
    store = new_store()
    ExactCache(store, POLICIES).put(PLAIN, ANSWER, 0.0, 0)
    shorter = PolicyTable([ClassPolicy("policy", Scope.TENANT, FRESH_S / 10)])
    assert ask(ExactCache(store, shorter), now_s=FRESH_S / 5) == "expired"


def test_an_entry_from_the_future_of_this_clock_is_a_miss(cache):
    cache.put(PLAIN, ANSWER, 50.0, 0)
    assert ask(cache, now_s=49.0) == "expired"


def test_roles_lost_make_earlier_answers_unreachable(cache):
    admin = replace(PLAIN, identity=Identity("alder", "anna", frozenset({"admin"})))
    cache.put(admin, ANSWER, 0.0, 0)
    assert ask(cache, admin) == "hit"
    assert ask(cache, PLAIN) == "miss"


# -- events that come late


def test_hits_served_between_a_change_and_its_event_are_counted_as_stale(cache):
    cache.put(PLAIN, ANSWER, 0.0, 0)
    cache.put(OWN, replace(ANSWER, sources=()), 0.0, 0)
    for now_s in (1.0, 2.0, 3.0, 4.0):
        assert ask(cache, PLAIN, now_s) == "hit" and ask(cache, OWN, now_s) == "hit"
    assert cache.invalidate(SourceChanged(source="faq/1", happened_s=2.5), 5.0) == 1
    assert cache.num_stale_hits == 2
    (incident,) = cache.incidents
    assert (incident.num_hits, incident.happened_s, incident.noticed_s) == (2, 2.5, 5.0)


def test_an_event_that_comes_in_time_is_no_incident(cache):
    cache.put(PLAIN, ANSWER, 0.0, 0)
    ask(cache, PLAIN, 1.0)
    cache.invalidate(SourceChanged(source="faq/1"), 2.0)
    cache.invalidate(SourceChanged(source="faq/9", happened_s=0.0), 2.0)
    assert cache.num_stale_hits == 0 and not cache.incidents


def test_deleting_a_person_removes_what_they_asked_in_every_scope(cache):
    cache.put(PLAIN, ANSWER, 0.0, 0)
    cache.put(OWN, ANSWER, 0.0, 0)
    assert cache.invalidate(DataDeleted(tenant="alder", subject="anna"), 1.0) == 2
    assert cache.store.size() == (0, 0)


def test_events_are_read_from_json_and_written_to_it():
    for data in (
        {"kind": "source_changed", "source": "faq/1", "happened_s": 3.0},
        {"kind": "permission_changed", "tenant": "alder", "subject": "bob"},
        {"kind": "policy_changed"},
        {"kind": "model_changed", "model": "nano"},
    ):
        event = invalidation.from_dict(json.loads(json.dumps(data)))
        assert invalidation.to_dict(event) == data
    assert invalidation.from_dict({"kind": "model_changed", "model": "nano"}) == ModelChanged(
        model="nano"
    )


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "flood"},
        {"kind": "source_changed"},
        {"kind": "source_changed", "source": 7},
        {"kind": "source_changed", "source": None},
        {"kind": "model_changed", "model": "m", "tenant": "t"},
        {"kind": "policy_changed", "happened_s": True},
        [],
    ],
)
def test_a_malformed_event_is_refused(data):
    with pytest.raises(InvalidRequest):
        invalidation.from_dict(data)


# -- early refresh


def test_early_refresh_spreads_over_the_time_before_the_end(new_store):
    """XFetch: never when there is much time left, often just before the end, and never for free."""
    cache = ExactCache(new_store(), POLICIES, rng=random.Random(4))
    cache.put(PLAIN, replace(ANSWER, compute_s=2.0), 0.0, 0)

    def share(now_s):
        return sum(ask(cache, PLAIN, now_s) == "refresh" for _ in range(400)) / 400

    # P(-2 ln(u) >= left) = exp(-left / 2)
    assert share(FRESH_S - 40.0) == 0.0
    assert share(FRESH_S - 2.0) == pytest.approx(0.368, abs=0.08)
    assert share(FRESH_S - 0.2) == pytest.approx(0.905, abs=0.06)
    assert cache.look_up(PLAIN, FRESH_S - 0.01, refresh=False).outcome == "hit"


def test_an_answer_without_a_cost_is_not_refreshed_early(cache):
    cache.put(PLAIN, ANSWER, 0.0, 0)
    assert {ask(cache, PLAIN, FRESH_S - 0.001) for _ in range(50)} == {"hit"}


# -- evidence, apart

LINES = Evidence(("The refund window is 34 days.",), (Source("faq/1", "v1"),))
WITH_EVIDENCE = PolicyTable([ClassPolicy("policy", Scope.TENANT, 100.0, evidence_s=10.0)])


def test_evidence_outlives_a_change_of_model_and_not_one_of_its_source(new_store):
    cache = ExactCache(new_store(), WITH_EVIDENCE)
    assert cache.put_evidence(PLAIN, LINES, 0.0, 0)
    cache.put(PLAIN, ANSWER, 0.0, 0)
    other = replace(PLAIN, model=ModelTuple("smollm2"), decoding=Decoding(seed=3))
    cache.invalidate(ModelChanged(model="nano"), 1.0)
    assert ask(cache) == "miss"
    assert cache.get_evidence(PLAIN, 1.0) == cache.get_evidence(other, 1.0) == LINES
    assert cache.get_evidence(replace(PLAIN, identity=MIA), 1.0) is None
    cache.invalidate(SourceChanged(source="faq/1"), 1.0)
    assert cache.get_evidence(PLAIN, 1.0) is None


def test_evidence_has_a_window_of_its_own(new_store):
    cache = ExactCache(new_store(), WITH_EVIDENCE)
    cache.put_evidence(PLAIN, LINES, 0.0, 0)
    assert cache.get_evidence(PLAIN, 9.9) == LINES
    assert cache.get_evidence(PLAIN, 10.0) is None
    assert not ExactCache(new_store(), POLICIES).put_evidence(PLAIN, LINES, 0.0, 0)


def test_outcomes_are_counted_by_class_and_an_unknown_class_is_no_label_of_its_own(cache):
    cache.put(PLAIN, ANSWER, 0.0, 0)
    ask(cache)
    ask(cache, replace(PLAIN, identity=Identity("alder", "x", frozenset({"r"}))))
    ask(cache, replace(PLAIN, answer_class="whatever a client says"))
    assert cache.outcomes == {
        ("policy", "hit"): 1,
        ("policy", "miss"): 1,
        ("other", "not_allowed"): 1,
    }


def test_revoking_a_permission_removes_what_the_person_asked(cache):
    cache.put(OWN, ANSWER, 0.0, 0)
    assert cache.invalidate(PermissionChanged(tenant="alder", subject="anna"), 1.0) == 1
    assert ask(cache, OWN) == "miss"


def test_an_answer_is_plain_data():
    assert Answer("x") == Answer("x", "stop", (), 0.0, False, None, None)
