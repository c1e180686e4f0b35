"""How jobs end: retries, dead letters, cancelling, deadlines, on both databases."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from minserve.errors import InvalidRequest
from minserve.jobs.job import Backoff, LostLease, Progress, State
from minserve.jobs.store import JobStore
from tests.jobs.conftest import ANN, KINDS, put, take

# -- retries and dead letters


def test_attempts_are_counted_at_claim_so_that_a_poison_job_dies(store, clock):
    put(store)
    for attempt in range(3):
        assert take(store, lease_s=5).job.attempts == attempt + 1
        clock.pass_s(6)  # killed, each time
        store.sweep()
        clock.pass_s(60)
    assert store.claim("w") == []
    (dead,) = store.list(None, state=State.DEAD)
    assert (dead.attempts, dead.owner) == (3, "operator") and "lease ran out" in dead.reason
    assert [f.token for f in store.failures(ANN, dead.id)] == [1, 2, 3]


def test_backoff_doubles_with_full_jitter_and_honours_retry_after(store, clock):
    put(store)
    waits = []
    for retry_after_s in (0.0, 40.0):
        assert store.fail(take(store), "429", retry_after_s=retry_after_s) is State.WAITING
        job = store.list(None)[0]
        waits.append(job.run_at - clock())
        clock.pass_s(waits[-1] - 0.1)
        assert store.claim("w") == []
        clock.pass_s(0.2)
    assert waits == [0.5 * 2, 40 + 0.5 * 4]
    assert store.fail(take(store), "429", retry_after_s=40) is State.DEAD, "within the budget"


def test_jitter_covers_its_whole_window_and_never_exceeds_the_cap():
    backoff = Backoff(1.0, 8.0)
    assert [backoff.delay_s(n, 0.999) for n in (1, 2, 3, 4, 5, 900)] == pytest.approx(
        [1, 2, 4, 8, 8, 8], rel=0.01
    )
    assert backoff.delay_s(3, 0.0) == 0 and backoff.delay_s(3, 0.0, 5.0) == 5


def test_permanent_failure_is_dead_at_once(store):
    put(store)
    assert store.fail(take(store), "no such model", is_permanent=True) is State.DEAD


def test_redriven_job_has_a_fresh_budget_and_keeps_its_past(store, clock):
    put(store, key="k", deadline_s=100)
    lease = take(store)
    store.effect(lease, "e", 1)
    store.fail(lease, "no", is_permanent=True)
    clock.pass_s(200)
    job = store.redrive(ANN, lease.job.id)
    assert (job.state, job.attempts, job.deadline_at) == (State.QUEUED, 0, None)
    again = take(store)
    assert again.token == 2 and store.ledger(ANN, job.id) == {"e": 1}
    assert store.failures(ANN, job.id)[0].reason == "no"
    with pytest.raises(InvalidRequest, match="not dead"):
        store.redrive(ANN, job.id)


# -- cancelling, deadlines, keeping


def test_cancel_before_the_claim_wins(store):
    job = put(store)
    assert store.cancel(ANN, job.id).state is State.CANCELLED
    assert store.claim("w") == []


def test_cancel_of_a_running_job_wins_over_a_later_finish(store):
    put(store)
    lease = take(store)
    assert store.cancel(ANN, lease.job.id).state is State.CANCELLED
    assert store.renew([Progress(lease.job.id, lease.token)]) == set()
    with pytest.raises(LostLease, match="cancelled"):
        store.complete(lease, 1, {"e": 1})
    assert store.ledger(ANN, lease.job.id) == {}
    assert store.cancel(ANN, lease.job.id).state is State.CANCELLED


def test_cancel_after_the_finish_says_that_the_finish_won(store):
    put(store)
    lease = take(store)
    store.complete(lease, 1)
    assert store.cancel(ANN, lease.job.id).state is State.DONE


def test_cancel_racing_a_finish_leaves_one_terminal_state_and_says_which(url):
    store, other = JobStore(url, KINDS), JobStore(url, KINDS)
    for _ in range(20):
        put(store)
        lease, barrier, said = take(store), threading.Barrier(2), []

        def finish(lease=lease, barrier=barrier, said=said):
            barrier.wait()
            try:
                store.complete(lease, 1, {"e": 1})
                said.append(State.DONE)
            except LostLease:
                said.append(State.CANCELLED)

        thread = threading.Thread(target=finish)
        thread.start()
        barrier.wait()
        state = other.cancel(ANN, lease.job.id).state
        thread.join()
        assert said == [state] == [store.get(ANN, lease.job.id).state]
        assert store.ledger(ANN, lease.job.id) == ({"e": 1} if state is State.DONE else {})
    store.close(), other.close()


def test_retry_that_is_due_is_claimed_though_other_leases_run_out_just_then(store, clock):
    for n in range(3):
        put(store, n)
    first, *_ = store.claim("w", 3, lease_s=10)
    store.fail(first, "no")
    clock.pass_s(11)
    assert [lease.job.payload for lease in store.claim("w", 3)] == [0]
    assert store.sweep() == 0


@pytest.mark.parametrize("claimed", [False, True])
def test_job_past_its_deadline_expires_and_cannot_finish(store, clock, claimed):
    job = put(store, deadline_s=10)
    lease = take(store, lease_s=60) if claimed else None
    clock.pass_s(11)
    if claimed:
        with pytest.raises(LostLease):
            store.complete(lease, 1)
        assert store.renew([Progress(job.id, lease.token)]) == set()
    assert store.claim("w") == []
    assert store.get(ANN, job.id).state is State.EXPIRED


def test_delayed_job_waits_for_its_time(store, clock):
    put(store, delay_s=10)
    assert store.claim("w") == []
    clock.pass_s(10)
    take(store)


def test_finished_jobs_are_purged_after_their_time_and_dead_ones_are_kept(url, clock):
    store = JobStore(url, KINDS, clock=clock, keep_s=100)
    for n in range(4):
        put(store, n)
    done, dead, cancelled, _running = store.claim("w", 4, lease_s=10_000)
    store.complete(done, 1, {"e": 1})
    store.fail(dead, "x", is_permanent=True)
    store.cancel(ANN, cancelled.job.id)
    assert store.purge() == 0
    clock.pass_s(101)
    assert store.purge() == 2 and store.purge() == 0
    assert store.counts().by_state == {"dead": 1, "running": 1}
    with store.reading() as conn:
        assert conn.scalar(text("SELECT count(*) FROM effects")) == 0
    store.close()
