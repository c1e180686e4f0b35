"""The store against a model of the queue that fits on a screen, with a crash at every statement.

Each step may be hit by a crash: the connection is lost before its k-th statement, before its
commit, or after it. In the first two cases nothing may have happened, in the last everything; the
model goes on accordingly, and the whole store must agree with it after each step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event
from support import small

from minserve.jobs.job import OPEN, Backoff, Kind, LostLease, Progress, QueueFull, State, Submission
from minserve.jobs.outcomes import Finished
from minserve.jobs.store import JobStore
from tests.jobs.conftest import ANN, BOB, FakeClock, fresh_schema

KIND = Kind("echo", "m:f", max_attempts=2, backoff=Backoff(4.0, 60.0))
MAX_OPEN = 6
LEASE_S, KEEP_S = 10.0, 40.0
AFTER_COMMIT, BEFORE_COMMIT = "after the commit", "before the commit"
crashes = st.sampled_from([None] * 12 + list(range(10)) + [AFTER_COMMIT, BEFORE_COMMIT])


class Crash(Exception):
    """The process that made the call is gone."""


class Crasher:
    """Loses the connection at the moment asked for."""

    def __init__(self, engine) -> None:
        self.at = None
        self.countdown = None
        event.listen(engine, "before_cursor_execute", self._statement)
        event.listen(engine, "commit", self._commit)

    def _statement(self, conn, *rest) -> None:
        if isinstance(self.at, int):
            if self.countdown == 0:
                self.at = None
                conn.invalidate()
                raise Crash
            self.countdown -= 1

    def _commit(self, conn) -> None:
        if self.at in (AFTER_COMMIT, BEFORE_COMMIT):
            if self.at == AFTER_COMMIT:
                conn.connection.driver_connection.execute("COMMIT")
            self.at = None
            conn.invalidate()
            raise Crash


@dataclass
class ModelJob:
    id: str
    who: object
    number: int
    priority: int
    state: State = State.QUEUED
    attempts: int = 0
    token: int = 0
    run_at: float = 0.0
    deadline_at: float = float("inf")
    lease_until: float = 0.0
    keep_until: float = float("inf")
    effects: dict = field(default_factory=dict)
    num_failures: int = 0


class Model:
    """What the store is to do, on plain objects."""

    def __init__(self, clock) -> None:
        self.clock, self.jobs = clock, {}

    @property
    def num_open(self):
        return sum(job.state in OPEN for job in self.jobs.values())

    def held(self, lease):
        job = self.jobs.get(lease.job.id)
        return job and job.state is State.RUNNING and job.token == lease.token and job

    def end(self, job, state):
        job.state, job.keep_until = state, self.clock() + KEEP_S
        if state is State.DEAD:
            job.keep_until = float("inf")

    def fail(self, job):
        job.num_failures += 1
        job.attempts = max(1, job.attempts)
        if job.attempts == KIND.max_attempts:
            self.end(job, State.DEAD)
        else:
            job.state, job.run_at = State.WAITING, self.clock() + 4 * 2 ** (job.attempts - 1)

    def sweep(self):
        now = self.clock()
        for job in self.jobs.values():
            if job.state in OPEN and job.deadline_at <= now:
                self.end(job, State.EXPIRED)
            if job.state is State.RUNNING and job.lease_until <= now:
                if job.attempts == 0:  # claimed ahead, and never seen to start
                    job.state = State.QUEUED
                else:
                    self.fail(job)
            if job.state is State.WAITING and job.run_at <= now:
                job.state = State.QUEUED

    def claimable(self):
        now = self.clock()
        return [j for j in self.jobs.values() if j.state is State.QUEUED and j.deadline_at > now]


class StoreMachine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = Model(self.clock)
        self.leases: list = []
        self.numbers = itertools.count()
        url = self.url() if callable(self.url) else self.url
        # `draw` at its largest makes the jitter known to the model.
        self.store = JobStore(
            url, [KIND], clock=self.clock, draw=lambda: 1.0, max_open=MAX_OPEN, keep_s=KEEP_S,
            max_open_per_tenant=MAX_OPEN, new_id=lambda: f"j{next(self.numbers):03d}",
        )  # fmt: skip
        self.crasher = Crasher(self.store.engine)

    def teardown(self) -> None:
        self.store.close()

    def attempt(self, crash, call):
        """(has it happened, what it returned) of a call that `crash` may hit."""
        self.crasher.at, self.crasher.countdown = crash, crash
        try:
            return True, call()
        except Crash:
            return crash == AFTER_COMMIT, None
        finally:
            self.crasher.at = None

    @rule(
        who=st.sampled_from([ANN, BOB]),
        priority=st.integers(0, 1),
        delay_s=st.sampled_from([0, 0, 5]),
        deadline_s=st.sampled_from([None, None, 12]),
        crash=crashes,
    )
    def enqueue(self, who, priority, delay_s, deadline_s, crash):
        number = next(self.numbers)
        wanted = Submission(
            "echo", number, f"k{number}", priority, delay_s=delay_s, deadline_s=deadline_s
        )
        if self.model.num_open >= MAX_OPEN:
            with pytest.raises(QueueFull):
                self.store.enqueue(who, wanted)
            return
        self.attempt(crash, lambda: self.store.enqueue(who, wanted))
        # Whoever does not hear back asks again with the same key, and gets the same job.
        found = [job for job in self.store.list(who) if job.payload == number]
        job = self.store.enqueue(who, wanted)
        assert len(found) == (crash is None or crash == AFTER_COMMIT or bool(found))
        assert not found or found[0].id == job.id
        now = self.clock()
        self.model.jobs[job.id] = ModelJob(
            job.id, who, number, priority, State.WAITING if delay_s else State.QUEUED,
            run_at=now + delay_s, deadline_at=now + (deadline_s or float("inf")),
        )  # fmt: skip

    @rule(count=st.integers(0, 3), ahead=st.sampled_from([0, 0, 1, 3]), crash=crashes)
    def claim(self, count, ahead, crash):
        happened, leases = self.attempt(
            crash, lambda: self.store.claim("w", count, ahead=ahead, lease_s=LEASE_S)
        )
        if not happened:
            return
        first = self.model.claimable()
        if len(first) < count:
            self.model.sweep()
        can = {job.id: job for job in self.model.claimable()}
        if leases is None:  # committed, and nobody knows: found out by looking
            jobs = [self.store.get(None, job_id) for job_id in can]
            running = [job for job in jobs if job.state is State.RUNNING]
            taken = [job.id for job in running if job.attempts > can[job.id].attempts]
            waiting = [job.id for job in running if job.id not in taken]
        else:
            taken = [lease.job.id for lease in leases if not lease.is_ahead]
            waiting = [lease.job.id for lease in leases if lease.is_ahead]
            self.leases += leases
        assert len(taken) == min(count, len(can))
        assert set(taken) | set(waiting) <= set(can)
        fresh = [job_id for job_id in can if job_id not in taken and can[job_id].token == 0]
        assert len(waiting) == (min(ahead, len(fresh)) if len(taken) == count else 0)
        assert set(waiting) <= set(fresh)
        if len(first) >= count and taken:  # in one go: by priority
            worst = min(can[job_id].priority for job_id in taken)
            assert all(job.priority <= worst for i, job in can.items() if i not in taken)
        for job_id in [*taken, *waiting]:
            job = can[job_id]
            job.state, job.lease_until = State.RUNNING, self.clock() + LEASE_S
            job.attempts += job_id in taken
            job.token += 1

    @initialize(count=st.integers(1, 3))
    def some_jobs_run(self, count):
        for _ in range(count):
            self.enqueue(ANN, 0, 0, None, None)
        self.claim(count, 0, None)

    @rule(data=st.data(), seconds=st.sampled_from([11.0, 20.0]))
    def lease_is_lost_and_the_job_claimed_again(self, data, seconds):
        self.time_passes(seconds)
        self.claim(3, 0, None)
        self.time_passes(8.0)
        self.claim(3, 0, None)

    @rule(crash=crashes)
    def worker_is_lost_with_what_it_had_ahead(self, crash):
        for _ in range(2):
            self.enqueue(BOB, 1, 0, None, None)
        self.claim(1, 3, None)
        self.time_passes(11.0)
        self.sweep(crash)

    def lease(self, data):
        return data.draw(st.sampled_from(self.leases), label="lease") if self.leases else None

    @rule(data=st.data(), crash=crashes, is_started=st.booleans())
    def renew(self, data, crash, is_started):
        if lease := self.lease(data):
            progress = [Progress(lease.job.id, lease.token, is_started=is_started)]
            happened, ids = self.attempt(crash, lambda: self.store.renew(progress, LEASE_S))
            job = self.model.held(lease)
            may = bool(job) and job.deadline_at > self.clock()
            if happened:
                assert ids is None or ids == ({lease.job.id} if may else set())
                if may:
                    job.lease_until = self.clock() + LEASE_S
                    job.attempts = max(job.attempts, is_started)

    @rule(data=st.data(), crash=crashes)
    def release(self, data, crash):
        if lease := self.lease(data):
            job = self.model.held(lease)
            if self.attempt(crash, lambda: self.store.release(lease))[0] and job:
                job.state, job.attempts = State.QUEUED, max(0, job.attempts - 1)

    @rule(data=st.data(), crash=crashes, num=st.integers(2, 4))
    def complete_many(self, data, crash, num):
        if len(self.leases) < 2:
            return
        leases = st.sampled_from(self.leases)
        choice = st.lists(leases, min_size=2, max_size=num, unique_by=lambda one: one.job.id)
        some = data.draw(choice, label="leases")
        finished = [Finished(lease, lease.token, {"sent": lease.token}) for lease in some]
        held = [self.model.held(lease) for lease in some]
        may = [bool(job) and job.deadline_at > self.clock() for job in held]
        known = [self.model.jobs.get(lease.job.id) for lease in some]
        was = [k and (k.state, k.token) == (State.DONE, lease.token)
               for k, lease in zip(known, some, strict=True)]  # fmt: skip
        happened, answers = self.attempt(crash, lambda: self.store.complete_many(finished))
        if not happened:
            return
        for n, job in enumerate(held):
            if answers is not None:
                assert (answers[n] is None) == bool(may[n] or was[n])
                assert answers[n] is None or isinstance(answers[n], LostLease)
            if may[n]:
                self.done(job, some[n])

    def done(self, job, lease):
        self.model.end(job, State.DONE)
        job.attempts = max(1, job.attempts)
        job.effects.setdefault("sent", lease.token)

    @rule(data=st.data(), crash=crashes, again=st.booleans())
    def complete(self, data, crash, again):
        if lease := self.lease(data):
            effects = {"sent": lease.token}
            job = self.model.held(lease)
            known = self.model.jobs.get(lease.job.id)
            was_by_me = known and known.state is State.DONE and known.token == lease.token
            may = bool(job) and job.deadline_at > self.clock()
            try:
                happened, _ = self.attempt(
                    crash, lambda: self.store.complete(lease, lease.token, effects)
                )
                if again:  # a worker that did not hear back repeats itself
                    self.store.complete(lease, lease.token, effects)
                    happened = True
                assert may or was_by_me or not happened or crash == AFTER_COMMIT
            except LostLease:
                assert not may and not was_by_me
                happened = False
            if happened and may:
                self.done(job, lease)

    @rule(data=st.data(), crash=crashes)
    def effect(self, data, crash):
        if lease := self.lease(data):
            job = self.model.held(lease)
            try:
                happened, value = self.attempt(
                    crash, lambda: self.store.effect(lease, "early", lease.token)
                )
                assert job or not happened
            except LostLease:
                assert not job
                return
            if happened:
                job.attempts = max(1, job.attempts)
                stands = job.effects.setdefault("early", lease.token)
                assert value in (None, stands)

    @rule(data=st.data(), crash=crashes)
    def fail(self, data, crash):
        if lease := self.lease(data):
            job = self.model.held(lease)
            try:
                happened, _ = self.attempt(crash, lambda: self.store.fail(lease, "no"))
            except LostLease:
                assert not job
                return
            assert job or not happened
            if happened:
                self.model.fail(job)

    @rule(data=st.data(), crash=crashes)
    def cancel(self, data, crash):
        if self.model.jobs:
            job = self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)), label="job")]
            happened, found = self.attempt(crash, lambda: self.store.cancel(job.who, job.id))
            if happened:
                if job.state in OPEN:
                    self.model.end(job, State.CANCELLED)
                assert found is None or found.state is job.state

    @rule(data=st.data(), crash=crashes)
    def redrive(self, data, crash):
        dead = sorted(job.id for job in self.model.jobs.values() if job.state is State.DEAD)
        if dead:
            job = self.model.jobs[data.draw(st.sampled_from(dead), label="job")]
            happened, _ = self.attempt(crash, lambda: self.store.redrive(None, job.id))
            if happened:
                job.state, job.attempts = State.QUEUED, 0
                if job.deadline_at <= self.clock():
                    job.deadline_at = float("inf")

    @rule(crash=crashes)
    def sweep(self, crash):
        if self.attempt(crash, self.store.sweep)[0]:
            self.model.sweep()

    @rule(crash=crashes)
    def purge(self, crash):
        if self.attempt(crash, self.store.purge)[0]:
            now = self.clock()
            kept = {i: j for i, j in self.model.jobs.items() if j.keep_until > now}
            self.model.jobs = kept

    @rule(seconds=st.sampled_from([1.0, 5.0, 11.0, 41.0]))
    def time_passes(self, seconds):
        self.clock.pass_s(seconds)

    @invariant()
    def store_agrees_with_the_model(self):
        found = {job.id: job for job in self.store.list(None, limit=10_000)}
        assert set(found) == set(self.model.jobs)
        for job_id, job in self.model.jobs.items():
            there = found[job_id]
            assert (there.state, there.attempts, there.token) == (
                job.state, job.attempts, job.token
            ), job  # fmt: skip
            assert there.identity == job.who and there.payload == job.number
            if job.state is State.RUNNING:
                assert there.lease_until == job.lease_until
            if job.state is State.WAITING:
                assert there.run_at == job.run_at
            assert self.store.ledger(None, job_id) == job.effects
            if job.state is State.DONE:
                assert there.result == job.effects["sent"] == job.token
            assert len(self.store.failures(None, job_id)) == job.num_failures


def run_machine(url, max_examples: int, steps: int) -> None:
    machine = type("Machine", (StoreMachine,), {"url": staticmethod(url)})
    run_state_machine_as_test(machine, settings=small(max_examples, stateful_step_count=steps))


def sqlite_urls(tmp_path):
    numbers = itertools.count()
    return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"


def test_store_agrees_with_its_model_whatever_crashes(tmp_path):
    run_machine(sqlite_urls(tmp_path), 25, 25)


@pytest.mark.slow
def test_store_agrees_with_its_model_whatever_crashes_at_length(tmp_path):
    run_machine(sqlite_urls(tmp_path), 120, 50)


@pytest.mark.slow
def test_postgres_store_agrees_with_its_model_whatever_crashes(postgres):
    run_machine(lambda: fresh_schema(postgres), 60, 40)
