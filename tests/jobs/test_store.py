"""What the store promises, on both databases, on a clock that the test moves."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import event, inspect, text

from minserve.errors import ConfigError, InvalidRequest
from minserve.jobs import database, schema
from minserve.jobs.database import connect as _engine
from minserve.jobs.intake import Room
from minserve.jobs.job import (
    Backoff,
    ContractBroken,
    JobNotFound,
    KeyReused,
    Kind,
    LostLease,
    Progress,
    QueueFull,
    State,
    StoreUnavailable,
    Submission,
)
from minserve.jobs.outcomes import Finished
from minserve.jobs.store import JobStore
from minserve.request import Identity
from tests.jobs.conftest import ANN, BOB, KINDS, fresh_schema


def put(store, payload=None, who=ANN, **more):
    return store.enqueue(who, Submission("echo", payload, **more))


def take(store, **more):
    (lease,) = store.claim("w", **more)
    return lease


# -- accepting


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


# -- the database


def test_several_calls_can_be_one_transaction(store):
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.enqueue(ANN, Submission("echo"), tx)
        raise ZeroDivisionError
    assert store.counts().num_open == 0


def test_connection_that_died_while_it_lay_idle_is_replaced_unseen(postgres, monkeypatch):
    store = JobStore(fresh_schema(postgres), KINDS)
    other = _engine(postgres.url)
    ends = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != :own")
    with other.connect() as conn:
        own = conn.scalar(text("SELECT pg_backend_pid()"))
        conn.execute(ends, {"own": own})
    with pytest.raises(StoreUnavailable):  # it was used a moment ago: not tried out
        store.now_s()
    assert store.now_s() > 0
    with other.connect() as conn:
        own = conn.scalar(text("SELECT pg_backend_pid()"))
        conn.execute(ends, {"own": own})
    monkeypatch.setattr(database, "PING_AFTER_S", 0.0)
    put(store)
    assert store.counts().num_open == 1
    store.close()
    other.dispose()


def test_clock_is_the_databases(url):
    store = JobStore(url, KINDS)
    assert abs(store.now_s() - time.time()) < 60
    store.close()


def test_claim_and_sweep_walk_partial_indexes_whatever_has_finished(store):
    finished = text(
        "INSERT INTO jobs (id, tenant, subject, kind, state, payload, digest, priority, turn,"
        " created_at, run_at, attempts, max_attempts, token, completed, total, owner, finished_at)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " SELECT 'j' || i, 'acme', 'ann', 'echo', 'done', '1', 'd', 0, i, 1, 1, 1, 3, 1, 0, 0, 'x',"
        " 2 FROM n"
    )
    with store.transaction() as conn:
        conn.execute(finished)
    for n in range(20):
        put(store, n)
    seen, plans = [], {}
    with store.transaction() as conn:
        is_postgres = conn.dialect.name == "postgresql"
        conn.execute(text("ANALYZE jobs"))

        @event.listens_for(conn, "before_cursor_execute")
        def note(conn, cursor, statement, parameters, context, executemany):
            seen.append((statement, parameters))

        store.claim("w", 30, tx=conn)
        event.remove(conn, "before_cursor_execute", note)
        for statement, parameters in seen:
            explain = "EXPLAIN " if is_postgres else "EXPLAIN QUERY PLAN "
            rows = conn.exec_driver_sql(explain + statement, parameters).all()
            plans[statement] = "\n".join(str(row[-1]) for row in rows)
    for index in ("jobs_queued", "jobs_deadline", "jobs_lease", "jobs_waiting"):
        assert any(index in plan for plan in plans.values()), (index, plans)
    for plan in plans.values():
        assert "Seq Scan on jobs" not in plan and "SCAN jobs" not in plan.splitlines(), plan


# -- the schema


def test_migrations_make_what_the_store_queries(store):
    with store.reading() as conn:
        made = inspect(conn)
        for table in schema.metadata.sorted_tables:
            columns = {column["name"]: column for column in made.get_columns(table.name)}
            assert set(columns) == {c.name for c in table.columns}, table.name
            for c in table.columns:
                assert columns[c.name]["nullable"] == c.nullable, (table.name, c.name)
                made_type = str(columns[c.name]["type"]).replace("DOUBLE PRECISION", "REAL")
                assert made_type == str(c.type).replace("DOUBLE", "REAL"), (table.name, c.name)
            key = made.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [c.name for c in table.primary_key]


def test_store_of_version_1_is_migrated_with_its_jobs(url, clock):
    engine = _engine(url)
    with engine.begin() as conn:
        assert schema.migrate(conn, to=1) == 0
        for n in range(4):
            tenant, state = ("acme", "queued") if n < 3 else ("bolt", "done")
            conn.execute(
                text(
                    "INSERT INTO jobs (id, tenant, subject, kind, state, payload, digest, priority,"
                    " created_at, run_at, attempts, max_attempts, token, completed, total, owner)"
                    f" VALUES ('j{n}', '{tenant}', 'ann', 'echo', '{state}', '{n}', 'd', 0, {n}, 0,"
                    " 0, 3, 0, 0, 0, 'x')"
                )
            )
    engine.dispose()
    store = JobStore(url, KINDS, clock=clock)
    put(store, "new"), put(store, "bobs", BOB)
    order = [lease.job.payload for lease in store.claim("w", 9)]
    assert [n for n in order if n != "bobs"] == [0, 1, 2, "new"] and order.index("bobs") < 3
    assert store.get(Identity("bolt", "ann"), "j3").state is State.DONE
    store.close()
    JobStore(url, KINDS).close()  # opening it again changes nothing


def test_store_of_a_newer_minserve_is_refused(url):
    store = JobStore(url, KINDS)
    with store.transaction() as conn:
        conn.execute(text("INSERT INTO schema_version VALUES (999)"))
    store.close()
    with pytest.raises(ConfigError, match="999"):
        JobStore(url, KINDS)


@pytest.mark.parametrize("bad", ["nonsense", "mysql://x/y", "sqlite://"])
def test_url_of_no_known_database_is_refused(bad):
    with pytest.raises(ConfigError):
        JobStore(bad)


def test_kind_without_an_attempt_is_refused():
    with pytest.raises(ConfigError):
        Kind("x", "m:f", max_attempts=0)
