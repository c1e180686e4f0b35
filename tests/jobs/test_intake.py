"""Accepting jobs: keys, payloads and bounds, on both databases."""

from __future__ import annotations

import threading

import pytest

from minserve.errors import InvalidRequest
from minserve.jobs.intake import Room
from minserve.jobs.job import KeyReused, QueueFull, State, Submission
from minserve.jobs.store import JobStore
from minserve.request import Identity
from tests.jobs.conftest import ANN, BOB, KINDS, put, take


def test_same_key_and_body_is_the_same_job_whatever_its_state(store):
    first = put(store, {"a": 1}, key="k")
    assert put(store, {"a": 1}, key="k").id == first.id
    lease = take(store)
    assert put(store, {"a": 1}, key="k").state is State.RUNNING
    store.complete(lease, 7)
    again = put(store, {"a": 1}, key="k")
    assert (again.id, again.state, again.result) == (first.id, State.DONE, 7)
    assert store.claim("w") == []


@pytest.mark.parametrize(
    "other",
    [
        Submission("echo", {"a": 2}, "k"),
        Submission("echo", {"a": "1"}, "k"),
        Submission("number", 1, "k"),
        Submission("echo", {"a": 1}, "k", priority=1),
        Submission("echo", {"a": 1}, "k", deadline_s=9.0),
        Submission("echo", {"a": 1}, "k", delay_s=9.0),
    ],
)
def test_same_key_and_another_body_is_refused_and_changes_nothing(store, other):
    first = put(store, {"a": 1}, key="k")
    with pytest.raises(KeyReused):
        store.enqueue_many(ANN, [Submission("echo", "new"), other])
    assert [job.id for job in store.list(None)] == [first.id]


def test_order_of_json_members_is_no_other_body(store):
    assert put(store, {"a": 1, "b": 2}, key="k").id == put(store, {"b": 2, "a": 1}, key="k").id


def test_key_belongs_to_its_identity(store):
    others = [BOB, Identity("acme", "bob"), Identity("bolt", "ann")]
    ids = {put(store, i, who, key="k").id for i, who in enumerate([ANN, *others])}
    assert len(ids) == 4


def test_key_twice_in_one_call_is_one_job(store):
    one, two = store.enqueue_many(ANN, [Submission("echo", 1, "k"), Submission("echo", 1, "k")])
    assert one.id == two.id and len(store.list(ANN)) == 1
    with pytest.raises(KeyReused):
        store.enqueue_many(ANN, [Submission("echo", 1, "z"), Submission("echo", 2, "z")])


def test_concurrent_submissions_of_one_key_are_one_job(url):
    stores = [JobStore(url, KINDS) for _ in range(4)]
    barrier, ids = threading.Barrier(4), []

    def submit(store):
        barrier.wait()
        ids.append(put(store, {"a": 1}, key="k").id)

    threads = [threading.Thread(target=submit, args=(s,)) for s in stores]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(ids) == 4 and len(set(ids)) == 1
    [s.close() for s in stores]


def test_unknown_kind_and_bad_payload_are_refused(store):
    with pytest.raises(InvalidRequest, match="no kind"):
        store.enqueue(ANN, Submission("nonsense"))
    with pytest.raises(InvalidRequest, match="not a number"):
        store.enqueue(ANN, Submission("number", "x"))
    with pytest.raises(InvalidRequest, match="not a JSON value"):
        put(store, object())
    assert store.counts().num_open == 0


@pytest.mark.parametrize(
    "bad", [{"key": ""}, {"key": "k" * 256}, {"priority": 101}, {"delay_s": -1}, {"deadline_s": 0}]
)
def test_submission_without_meaning_is_refused(bad):
    with pytest.raises(InvalidRequest):
        Submission("echo", **bad)


def test_full_queue_refuses_and_says_when_to_return(url, clock):
    store = JobStore(url, KINDS, clock=clock, max_open=4, max_open_per_tenant=3)
    first = put(store, 0, key="k")
    put(store), put(store)
    with pytest.raises(QueueFull, match="of your tenant") as full:
        put(store)
    assert full.value.retry_after_s > 0
    assert put(store, 0, key="k").id == first.id, "what was accepted is still answered for"
    put(store, who=BOB)
    with pytest.raises(QueueFull, match="in all"):
        put(store, who=BOB)
    store.complete(take(store), 1)
    put(store, who=BOB)
    with pytest.raises(QueueFull):
        store.enqueue_many(ANN, [Submission("echo")] * 2)
    assert store.counts().num_open == 4
    store.close()


def test_room_found_is_granted_in_part_and_for_a_second():
    room = Room()
    assert not room.has("acme", 1, now=0.0)
    room.counted("acme", 80, 800)
    assert room.has("acme", 10, now=0.9) and not room.has("acme", 1, now=0.9)
    assert not room.has("bolt", 1, now=0.9), "each tenant has a bound of its own"
    room.counted("bolt", 8_000, 8)
    assert room.has("bolt", 1, now=0.9) and not room.has("bolt", 1, now=0.9), "and all have one"
    room.counted("acme", 80, 800)
    assert not room.has("acme", 1, now=2.5), "others may have filled it since"
    room.counted("acme", 7, 7)
    assert not room.has("acme", 1, now=2.5), "near the bound every job is counted"


def test_processes_that_accept_at_once_overshoot_the_bound_by_an_eighth_at_most(url, clock):
    one, other = (
        JobStore(url, KINDS, clock=clock, max_open=16, max_open_per_tenant=16) for _ in "ab"
    )
    put(one), put(other)
    num = 2
    for store in [one] * 20 + [other] * 20:
        try:
            put(store)
            num += 1
        except QueueFull:
            pass
    assert 16 <= num == one.counts().num_open <= 16 + 2
    clock.pass_s(2)
    with pytest.raises(QueueFull):
        put(other)
    one.close(), other.close()
