"""Claiming jobs: leases, fencing, order and scope, on both databases."""

from __future__ import annotations

import pytest

from minserve.errors import InvalidRequest
from minserve.jobs.job import (
    ContractBroken,
    JobNotFound,
    Kind,
    LostLease,
    Progress,
    State,
    Submission,
)
from minserve.jobs.outcomes import Finished
from minserve.jobs.store import JobStore
from minserve.request import Identity
from tests.jobs.conftest import ANN, BOB, put, take

# -- leases and fencing


def test_claims_are_disjoint_and_each_has_a_fresh_token(store, clock):
    for n in range(5):
        put(store, n)
    ids = [lease.job.id for _ in range(3) for lease in store.claim("w", 2)]
    assert len(ids) == len(set(ids)) == 5
    clock.pass_s(31)
    store.sweep()
    clock.pass_s(10)
    assert {lease.token for lease in store.claim("w", 5)} == {2}


def test_renewed_lease_is_not_claimed_by_another(store, clock):
    put(store)
    lease = take(store, lease_s=10)
    for step in range(3):
        clock.pass_s(9)
        assert store.renew([Progress(lease.job.id, lease.token, step, 3)], 10) == {lease.job.id}
        assert store.claim("other") == []
    job = store.get(ANN, lease.job.id)
    assert (job.attempts, job.completed, job.total) == (1, 2, 3)


def test_zombie_with_an_old_token_can_do_nothing(store, clock):
    put(store)
    zombie = take(store, lease_s=5)
    clock.pass_s(6)
    assert store.claim("other") == [], "the lost attempt waits for its backoff"
    clock.pass_s(2)
    new = take(store)
    assert (new.job.id, new.token, new.job.attempts) == (zombie.job.id, 2, 2)
    for write in (
        lambda: store.complete(zombie, 1, {"sent": 1}),
        lambda: store.fail(zombie, "x"),
        lambda: store.effect(zombie, "sent", 1),
    ):
        with pytest.raises(LostLease):
            write()
    assert store.renew([Progress(zombie.job.id, zombie.token)]) == set()
    store.release(zombie)
    assert store.ledger(ANN, new.job.id) == {}
    assert store.get(ANN, new.job.id).state is State.RUNNING
    store.complete(new, 2, {"sent": 2})
    with pytest.raises(LostLease):
        store.complete(zombie, 1, {"sent": 1})
    assert store.ledger(ANN, new.job.id) == {"sent": 2}
    assert store.get(ANN, new.job.id).result == 2


def test_completion_whose_acknowledgement_was_lost_can_be_repeated(store):
    put(store)
    lease = take(store)
    store.complete(lease, 1, {"e": 1})
    store.complete(lease, 1, {"e": 1})
    assert store.ledger(ANN, lease.job.id) == {"e": 1}


def test_crash_after_an_effect_and_before_the_result_counts_the_effect_once(store, clock):
    put(store)
    lease = take(store, lease_s=5)
    assert store.effect(lease, "invoice", {"n": 1}) == {"n": 1}
    clock.pass_s(6)  # the worker is gone
    store.sweep()
    clock.pass_s(2)
    again = take(store)
    assert store.effect(again, "invoice", {"n": 2}) == {"n": 1}, "the first one stands"
    store.complete(again, "ok", {"invoice": {"n": 3}, "mail": 1})
    assert store.ledger(ANN, again.job.id) == {"invoice": {"n": 1}, "mail": 1}


def test_result_and_effects_commit_together_or_not_at_all(store):
    put(store)
    lease = take(store)
    with pytest.raises(InvalidRequest):
        store.complete(lease, 1, {"bad": object()})
    assert store.get(ANN, lease.job.id).state is State.RUNNING
    assert store.ledger(ANN, lease.job.id) == {}


def test_result_that_breaks_its_contract_is_not_committed(store):
    store.enqueue(ANN, Submission("number", 1))
    lease = take(store)
    for wrong in ("text", None, float("nan")):
        with pytest.raises(ContractBroken):
            store.complete(lease, wrong, {"e": 1})
    assert store.ledger(ANN, lease.job.id) == {}
    store.complete(lease, 4)


def test_release_gives_the_attempt_back(store):
    put(store)
    store.release(take(store))
    lease = take(store)
    assert (lease.job.attempts, lease.token) == (1, 2)


# -- claimed ahead, and settled together


def test_job_claimed_ahead_counts_no_attempt_until_it_has_started(store, clock):
    for n in range(3):
        put(store, n)
    now, second, third = store.claim("w", 1, ahead=5, lease_s=10)
    assert [lease.is_ahead for lease in (now, second, third)] == [False, True, True]
    assert [store.get(None, lease.job.id).attempts for lease in (now, second, third)] == [1, 0, 0]
    assert second.job.attempts == 1, "to its handler it is the first attempt all the same"
    started = Progress(second.job.id, second.token)
    waiting = Progress(third.job.id, third.token, is_started=False)
    assert store.renew([started, waiting], 10) == {second.job.id, third.job.id}
    assert store.get(None, second.job.id).attempts == 1
    assert store.get(None, third.job.id).attempts == 0
    store.complete(third, 3)
    assert store.get(None, third.job.id).attempts == 1
    assert store.fail(now, "no") is State.WAITING


def test_job_lost_while_it_waited_its_turn_returns_as_it_was_and_only_once(store, clock):
    put(store, "head"), put(store, "behind")
    head, behind = store.claim("w", 1, ahead=1, lease_s=5)
    clock.pass_s(6)  # the worker is gone
    store.sweep()
    store.cancel(ANN, head.job.id)
    job = store.get(None, behind.job.id)
    assert (job.state, job.attempts, store.failures(None, job.id)) == (State.QUEUED, 0, [])
    with pytest.raises(LostLease):
        store.complete(behind, 1)
    assert store.claim("w", 0, ahead=5) == [], "never ahead again: it may have killed the worker"
    for attempt in (1, 2, 3):
        assert take(store, lease_s=5).job.attempts == attempt
        clock.pass_s(6)
        store.sweep()
        clock.pass_s(60)
    assert store.get(None, job.id).state is State.DEAD, "the budget holds from there on"


def test_job_that_may_be_tried_once_is_never_claimed_ahead(url, clock):
    store = JobStore(url, [Kind("once", "m:f", max_attempts=1)], clock=clock)
    store.enqueue_many(ANN, [Submission("once"), Submission("once")])
    assert len(store.claim("w", 1, ahead=5)) == 1
    store.close()


def test_jobs_settled_together_are_each_in_it_whole_or_not_at_all(store, clock):
    store.enqueue_many(ANN, [Submission("number", n) for n in range(5)])
    well, late, broken, bad_effect, again = store.claim("w", 5)
    store.cancel(ANN, late.job.id)
    store.complete(again, 9, {"e": 9})
    told = store.complete_many(
        [
            Finished(well, 1, {"e": 1}),
            Finished(late, 2, {"e": 2}),
            Finished(broken, "no number", {"e": 3}),
            Finished(bad_effect, 4, {"e": object()}),
            Finished(again, 9, {"e": 9}),
        ]
    )
    assert [type(error) for error in told] == [
        type(None), LostLease, ContractBroken, InvalidRequest, type(None)
    ]  # fmt: skip
    ledgers = [store.ledger(ANN, x.job.id) for x in (well, late, broken, bad_effect, again)]
    assert ledgers == [{"e": 1}, {}, {}, {}, {"e": 9}]
    states = [store.get(ANN, x.job.id).state for x in (well, late, broken, bad_effect)]
    assert states == [State.DONE, State.CANCELLED, State.RUNNING, State.RUNNING]


# -- order and scope


def test_higher_priority_first_and_then_the_order_of_arrival(store):
    for n, priority in enumerate([0, 0, 5, -1, 5]):
        put(store, n, priority=priority)
    assert [lease.job.payload for lease in store.claim("w", 9)] == [2, 4, 0, 1, 3]


def test_tenants_take_turns_however_much_one_of_them_queues(store):
    for n in range(6):
        put(store, n)
    store.claim("w", 3)
    for n in range(3):
        put(store, n, BOB)
    tenants = [lease.job.identity.tenant for lease in store.claim("w", 9)]
    assert sorted(tenants[:2]) == sorted(tenants[2:4]) == sorted(tenants[4:]) == ["acme", "bolt"]


def test_tenant_is_not_punished_for_having_used_an_empty_queue(store):
    for n in range(50):
        put(store, n)
    store.claim("w", 50)
    for who in (BOB, ANN, BOB, ANN):
        put(store, who=who)
    tenants = [lease.job.identity.tenant for lease in store.claim("w", 4)]
    assert sorted(tenants[:2]) == ["acme", "bolt"]


def test_retry_rejoins_at_the_turn_being_served(store, clock):
    put(store, "first")
    lease = take(store)
    for n in range(5):
        put(store, n)
    store.claim("w", 3, lease_s=1_000)
    store.fail(lease, "again")
    clock.pass_s(5)
    store.sweep()
    put(store, "new", BOB)
    assert {lease.job.payload for lease in store.claim("w", 3)} == {"first", 3, "new"}


def test_job_is_within_reach_of_its_own_identity_only(store):
    job = put(store)
    put(store, who=BOB)
    for stranger in (BOB, Identity("acme", "bob"), Identity("acme"), Identity("", "ann")):
        for call in (store.get, store.cancel, store.redrive, store.ledger, store.failures):
            with pytest.raises(JobNotFound):
                call(stranger, job.id)
    assert [j.id for j in store.list(ANN)] == [job.id]
    assert store.counts(ANN).by_state == {"queued": 1}
    assert store.get(None, job.id).state is State.QUEUED
    assert len(store.list(None)) == 2


def test_claim_can_be_for_some_kinds_only(store):
    put(store)
    store.enqueue(ANN, Submission("number", 1))
    assert [lease.job.kind for lease in store.claim("w", 5, kinds=["number"])] == ["number"]
