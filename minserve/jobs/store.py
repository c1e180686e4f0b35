"""The job store: every change of a job's state, each one transaction.

SQLite (one machine, WAL) or PostgreSQL (many workers at once, SKIP LOCKED), by URL. All times are
the database's clock, so workers whose clocks differ agree on leases.

What keeps a job effective once: a claim gives it a fresh fencing token, and whatever its holder
writes later names that token in its WHERE. The result and the effects ledger are one commit.

Fairness: start-time fair queuing (Goyal 1996). A job gets its turn when it is enqueued: the next of
its tenant's, but no earlier than the turn now being served; so a claim only walks an index.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Integer,
    Row,
    Select,
    Text,
    bindparam,
    case,
    create_engine,
    delete,
    event,
    func,
    literal,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from minserve.errors import ConfigError, InvalidRequest
from minserve.jobs import schema
from minserve.jobs.job import (
    Attempt,
    Backoff,
    ContractBroken,
    Counts,
    Job,
    JobNotFound,
    KeyReused,
    Kind,
    Lease,
    LostLease,
    Progress,
    QueueFull,
    State,
    StoreUnavailable,
    Submission,
    canonical,
)
from minserve.jobs.schema import effects, failures, jobs, lanes
from minserve.request import Identity

Scope = Identity | None
"""Who asks: an identity reaches its own jobs only; None, the store's operator, sees all."""

# NOTE: literals, not parameters: a planner must see that a partial index covers the condition.
_QUEUED = text("jobs.state = 'queued'")
_WAITING = text("jobs.state = 'waiting'")
_RUNNING = text("jobs.state = 'running'")
_DEAD = text("jobs.state = 'dead'")
_OPEN = text(f"jobs.state IN {schema.OPEN}")
_ORDER = (jobs.c.priority.desc(), jobs.c.turn, jobs.c.created_at, jobs.c.id)
_SWEEP_AT_ONCE = 500


class JobStore:
    """Jobs in a database. Safe to share between threads; processes each make their own.

    Every method is one transaction, or part of the caller's where `tx` is given (see
    `transaction`); whatever raises has changed nothing. All may raise `StoreUnavailable`.

    Args:
        url: `sqlite:///path/to/jobs.db` or `postgresql://user@host/name`.
        kinds: What jobs there may be. An unknown kind is refused at `enqueue`.
        clock: Seconds, for tests; the database's own clock otherwise.
        draw: Uniform in [0, 1), for the jitter of retries.
        max_open: Most jobs that may be unfinished at once; beyond, `QueueFull`.
        max_open_per_tenant: The same for each tenant; by default half of `max_open`.
        keep_s: How long a finished job and its result are kept; dead ones until they are redriven
            or purged by hand.
    """

    def __init__(
        self,
        url: str,
        kinds: Iterable[Kind] = (),
        *,
        clock: Callable[[], float] | None = None,
        draw: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        max_open: int = 10_000,
        max_open_per_tenant: int | None = None,
        keep_s: float = 7 * 86_400,
    ) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.engine = _engine(url)
        self.max_open = max_open
        self.max_open_per_tenant = max_open_per_tenant or max(1, max_open // 2)
        self.keep_s = keep_s
        self._clock, self._draw, self.new_id = clock, draw, new_id
        is_sqlite = self.engine.dialect.name == "sqlite"
        self._insert = sqlite.insert if is_sqlite else postgresql.insert
        self._now_sql = text(
            "SELECT (julianday('now') - 2440587.5) * 86400.0"
            if is_sqlite
            else "SELECT extract(epoch FROM clock_timestamp())::float8"
        )
        self._lane = _next_turn(self._insert)
        with self.transaction() as conn:
            schema.migrate(conn)

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    @property
    def safe_url(self) -> str:
        """Where it is, without any password."""
        return self.engine.url.render_as_string(hide_password=True)

    # -- transactions

    @contextmanager
    def transaction(
        self, tx: Connection | None = None, *, is_durable: bool = True
    ) -> Iterator[Connection]:
        """One transaction for several calls: `with store.transaction() as tx: store.x(..., tx=tx)`.

        It commits at the end of the block, or nothing of it happens. Given a `tx`, joins that.
        `is_durable=False` lets SQLite put off its fsync: a power cut may undo the commit, which
        for a claim or a renewal means no more than that it never was.
        """
        if tx is not None:
            yield tx
            return
        try:
            with self.engine.connect() as conn:
                level = "FULL" if is_durable else "NORMAL"
                conn = conn.execution_options(minserve_begin="IMMEDIATE", minserve_sync=level)
                with conn.begin():
                    yield conn
        except (OperationalError, InterfaceError) as error:
            raise _unavailable(error) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise _unavailable(error) from error
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        try:
            with self.engine.connect() as conn, conn.begin():
                yield conn
        except (OperationalError, InterfaceError) as error:
            raise _unavailable(error) from error

    def now_s(self, tx: Connection | None = None) -> float:
        """Seconds since 1970, on the store's one clock."""
        if self._clock:
            return self._clock()
        if tx is not None:
            return tx.scalar(self._now_sql)
        with self.reading() as conn:
            return conn.scalar(self._now_sql)

    # -- accepting

    def enqueue(
        self, identity: Identity, submission: Submission, tx: Connection | None = None
    ) -> Job:
        """Accept a job: once this returns it survives a crash. See `enqueue_many`."""
        return self.enqueue_many(identity, [submission], tx)[0]

    def enqueue_many(
        self, identity: Identity, submissions: Sequence[Submission], tx: Connection | None = None
    ) -> list[Job]:
        """Accept all or none; one job for each submission, in order.

        A submission whose idempotency key this identity has used before, with the same body, gives
        the job that is there, whatever has become of it.

        Raises `KeyReused` (same key, other body), `InvalidRequest` (unknown kind, bad payload),
        `QueueFull` with `retry_after_s`.
        """
        for submission in submissions:
            self._check_payload(submission)
        with self.transaction(tx) as conn:
            now = self.now_s(conn)
            keys = [s.key for s in submissions if s.key is not None]
            there = self._by_key(conn, identity, keys)
            fresh: dict[str | int, tuple[Submission, str]] = {}
            for number, submission in enumerate(submissions):
                if submission.key not in there:
                    name = number if submission.key is None else submission.key
                    fresh.setdefault(name, (submission, self.new_id()))
            if fresh:
                self._refuse_if_full(conn, identity.tenant, len(fresh), now)
                rows = self._rows(conn, identity, list(fresh.values()), now)
                keyed = self._insert(jobs).on_conflict_do_nothing(
                    index_elements=["tenant", "subject", "idempotency_key"]
                )
                conn.execute(keyed, rows)
                by_id = {row["id"]: row for row in rows}
                there |= self._by_key(conn, identity, [k for k in fresh if isinstance(k, str)])
            accepted = []
            for number, submission in enumerate(submissions):
                if submission.key is None:
                    accepted.append(_job(by_id[fresh[number][1]]))
                    continue
                row = there[submission.key]
                if row.digest != submission.digest:
                    raise KeyReused(
                        f"idempotency key {submission.key!r} stands for another body",
                        "use a new key for a new job, or send the first body again",
                    )
                accepted.append(_job(row._mapping))
            return accepted

    def _check_payload(self, submission: Submission) -> None:
        kind = self.kinds.get(submission.kind)
        if kind is None:
            known = ", ".join(sorted(self.kinds)) or "none"
            raise InvalidRequest(f"no kind of job is named {submission.kind!r}", f"known: {known}")
        try:
            kind.check_payload(submission.payload)
        except ValueError as error:
            raise InvalidRequest(f"a {kind.name} job cannot use this payload: {error}") from None

    def _by_key(self, conn: Connection, identity: Identity, keys: Sequence[str]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for start in range(0, len(keys), 500):
            same = jobs.c.idempotency_key.in_(keys[start : start + 500])
            for row in conn.execute(select(jobs).where(_mine(identity), same)):
                found[row.idempotency_key] = row
        return found

    def _refuse_if_full(self, conn: Connection, tenant: str, count: int, now: float) -> None:
        bounds = {"most": self.max_open, "most_own": self.max_open_per_tenant, "tenant": tenant}
        num_own, num_all = conn.execute(_HOW_FULL, bounds).one()
        for num_open, bound, whose in (
            (num_own, self.max_open_per_tenant, "of your tenant"),
            (num_all, self.max_open, "in all"),
        ):
            if num_open + count > bound:
                raise QueueFull(
                    f"the job queue is full: {num_open} of at most {bound} jobs {whose} are open"
                    + (f", {count} more were asked for" if count > 1 else ""),
                    "wait as told, then ask again with the same idempotency key",
                    self._retry_after_s(conn, now, bound),
                )

    def _retry_after_s(self, conn: Connection, now: float, bound: int) -> float:
        """About when a twentieth of the bound has drained, at the pace of the last minute."""
        recent = jobs.c.keep_until > now + self.keep_s - 60
        per_s = conn.scalar(select(func.count()).select_from(jobs).where(recent)) / 60
        return min(max(1.0, bound / 20 / per_s), 60.0) if per_s else 30.0

    def _rows(
        self, conn: Connection, identity: Identity, fresh: list[tuple[Submission, str]], now: float
    ) -> list[dict[str, Any]]:
        turns = {
            priority: iter(self._turns(conn, identity.tenant, priority, count))
            for priority, count in sorted(_tally(s.priority for s, _ in fresh).items())
        }
        return [
            {
                "id": job_id,
                "tenant": identity.tenant,
                "subject": identity.subject,
                "kind": submission.kind,
                "state": (State.WAITING if submission.delay_s else State.QUEUED).value,
                "payload": canonical(submission.payload).decode(),
                "digest": submission.digest,
                "idempotency_key": submission.key,
                "priority": submission.priority,
                "turn": next(turns[submission.priority]),
                "created_at": now,
                "run_at": now + submission.delay_s,
                "deadline_at": submission.deadline_s and now + submission.deadline_s,
                "attempts": 0,
                "max_attempts": self.kinds[submission.kind].max_attempts,
                "token": 0,
                "completed": 0,
                "total": 0,
                "owner": self.kinds[submission.kind].owner,
                "batch": submission.batch,
                "custom_id": submission.custom_id,
            }
            for submission, job_id in fresh
        ]

    def _turns(self, conn: Connection, tenant: str, priority: int, count: int) -> range:
        """The next `count` turns of a tenant, none earlier than the turn now being served."""
        wanted = {"of_tenant": tenant, "at_priority": priority, "count": count}
        end = conn.scalar(self._lane, wanted)
        return range(end - count, end)

    # -- working

    def claim(
        self,
        worker: str,
        count: int = 1,
        *,
        lease_s: float = 30.0,
        kinds: Sequence[str] | None = None,
        tx: Connection | None = None,
    ) -> list[Lease]:
        """Take up to `count` jobs, first in order first. Each counts as an attempt from here on.

        Where the queue runs short, retries that are due and leases that ran out are swept first.
        """
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            taken = self._take(conn, worker, count, now, lease_s, kinds)
            if len(taken) < count and self.sweep(tx=conn):
                taken += self._take(conn, worker, count - len(taken), now, lease_s, kinds)
            return taken

    def _take(
        self,
        conn: Connection,
        worker: str,
        count: int,
        now: float,
        lease_s: float,
        kinds: Sequence[str] | None,
    ) -> list[Lease]:
        picked = _unlocked(_QUEUED, _in_time(now)).order_by(*_ORDER).limit(count)
        if kinds is not None:
            picked = picked.where(jobs.c.kind.in_(kinds))
        taking = _update(picked).values(
            state=State.RUNNING.value,
            token=jobs.c.token + 1,
            attempts=jobs.c.attempts + 1,
            worker=worker,
            lease_until=now + lease_s,
            completed=0,
            total=0,
        )
        rows = conn.execute(taking.returning(jobs)).all()
        rows.sort(key=lambda row: (-row.priority, row.turn, row.created_at, row.id))
        return [Lease(_job(row._mapping), row.token, row.lease_until) for row in rows]

    def renew(
        self, progress: Iterable[Progress], lease_s: float = 30.0, tx: Connection | None = None
    ) -> set[str]:
        """Extend leases and note progress; returns the ids of the jobs that are still held.

        A job that is missing in the answer was cancelled, has expired or is another's by now: stop
        working on it, nothing of it can be committed.
        """
        held = set()
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            for p in progress:
                renewed = conn.execute(
                    update(jobs)
                    .where(_held(p.job_id, p.token), _in_time(now))
                    .values(lease_until=now + lease_s, completed=p.completed, total=p.total)
                )
                if renewed.rowcount:
                    held.add(p.job_id)
        return held

    def complete(
        self,
        lease: Lease,
        result: Any = None,
        effects: Mapping[str, Any] | None = None,
        tx: Connection | None = None,
    ) -> None:
        """Commit result and effects together, or neither. Repeating it changes nothing.

        An effect whose key the job has in its ledger already stays as it was first written.

        Raises `ContractBroken` (the kind refuses the result) and `LostLease` (the token is old, or
        the job was cancelled or has expired).
        """
        kind = self.kinds.get(lease.job.kind)
        try:
            if kind:
                kind.check_result(result)
            values = {
                "result": canonical(result).decode(),
                "completed": case((jobs.c.total > 0, jobs.c.total), else_=jobs.c.completed),
            }
        except (ValueError, InvalidRequest) as error:
            raise ContractBroken(
                f"the result of job {lease.job.id} breaks its contract: {_line(error)}"
            ) from None
        with self.transaction(tx) as conn:
            now = self.now_s(conn)
            done = conn.execute(
                update(jobs)
                .where(_held(lease.job.id, lease.token), _in_time(now))
                .values(**self._ended(State.DONE, now), **values, reason=None)
            )
            if not done.rowcount:
                self._ensure_done_by(conn, lease)
            elif effects:
                self._record(conn, lease, effects, now)

    def _ensure_done_by(self, conn: Connection, lease: Lease) -> None:
        """A commit whose acknowledgement was lost is repeated: then this token did the job."""
        now_is = conn.execute(
            select(jobs.c.state, jobs.c.token).where(jobs.c.id == lease.job.id)
        ).first()
        if now_is is None or (now_is.state, now_is.token) != (State.DONE.value, lease.token):
            raise _lost(lease, now_is)

    def effect(self, lease: Lease, key: str, value: Any, tx: Connection | None = None) -> Any:
        """Commit one effect now, ahead of the result; returns the value that stands in the ledger.

        That is an earlier attempt's, if one came so far. Raises `LostLease`.
        """
        with self.transaction(tx) as conn:
            touched = conn.execute(
                update(jobs).where(_held(lease.job.id, lease.token)).values(token=jobs.c.token)
            )
            if not touched.rowcount:
                raise _lost(lease)
            self._record(conn, lease, {key: value}, self.now_s(conn))
            mine = (effects.c.job_id == lease.job.id) & (effects.c.key == key)
            return json.loads(conn.scalar(select(effects.c.value).where(mine)))

    def _record(
        self, conn: Connection, lease: Lease, ledger: Mapping[str, Any], now: float
    ) -> None:
        rows = [
            {
                "job_id": lease.job.id,
                "key": key,
                "value": canonical(value).decode(),
                "token": lease.token,
                "committed_at": now,
            }
            for key, value in ledger.items()
        ]
        conn.execute(self._insert(effects).on_conflict_do_nothing(), rows)

    def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        retry_after_s: float = 0.0,
        is_permanent: bool = False,
        tx: Connection | None = None,
    ) -> State:
        """End an attempt: WAITING for the next one, or DEAD. Returns which. Raises `LostLease`."""
        with self.transaction(tx) as conn:
            columns = _failing_columns()
            held = select(*columns).where(_held(lease.job.id, lease.token)).with_for_update()
            row = conn.execute(held).first()
            if row is None:
                raise _lost(lease)
            return self._end_attempt(
                conn, row, self.now_s(conn), reason, retry_after_s, is_permanent
            )

    def _end_attempt(
        self,
        conn: Connection,
        row: Row,
        now: float,
        reason: str,
        retry_after_s: float = 0.0,
        is_permanent: bool = False,
    ) -> State:
        reason = reason[:2000]
        if is_permanent or row.attempts >= row.max_attempts:
            state = State.DEAD
            # A dead letter is kept until somebody has looked at it.
            values = self._ended(state, now) | {"keep_until": None}
        else:
            state = State.WAITING
            backoff = self.kinds[row.kind].backoff if row.kind in self.kinds else Backoff()
            delay_s = backoff.delay_s(row.attempts, self._draw(), retry_after_s)
            values = {"state": state.value, "run_at": now + delay_s, "lease_until": None}
        conn.execute(update(jobs).where(jobs.c.id == row.id).values(**values, reason=reason))
        conn.execute(
            failures.insert().values(job_id=row.id, token=row.token, failed_at=now, reason=reason)
        )
        return state

    def release(self, lease: Lease, tx: Connection | None = None) -> None:
        """Give back a job that was claimed and never started: the attempt does not count.

        Does nothing if the lease was lost.
        """
        with self.transaction(tx) as conn:
            conn.execute(
                update(jobs)
                .where(_held(lease.job.id, lease.token))
                .values(
                    state=State.QUEUED.value,
                    attempts=jobs.c.attempts - 1,
                    lease_until=None,
                    worker=None,
                )
            )

    # -- what time brings

    def sweep(self, tx: Connection | None = None) -> int:
        """What time has brought; returns how many jobs changed.

        Jobs past their deadline expire, leases that ran out end their attempt, retries and delayed
        jobs that are due are queued.
        """
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            overdue = _unlocked(_OPEN, jobs.c.deadline_at <= now)
            expiring = _update(overdue).values(
                **self._ended(State.EXPIRED, now), reason="its deadline has passed"
            )
            changed = _count(conn, expiring)
            lost = (
                select(*_failing_columns(), jobs.c.worker)
                .where(_RUNNING, jobs.c.lease_until <= now)
                .order_by(jobs.c.lease_until)
                .limit(_SWEEP_AT_ONCE)
                .with_for_update(skip_locked=True)
            )
            for row in conn.execute(lost).all():
                why = f"attempt {row.attempts}: its lease ran out at worker {row.worker}"
                self._end_attempt(conn, row, now, why)
                changed += 1
            due = _unlocked(_WAITING, jobs.c.run_at <= now).limit(_SWEEP_AT_ONCE)
            queueing = _update(due).values(state=State.QUEUED.value, turn=_rejoined_turn())
            return changed + _count(conn, queueing)

    def purge(self, tx: Connection | None = None) -> int:
        """Delete finished jobs whose time of keeping is over, some at a time; returns how many."""
        with self.transaction(tx, is_durable=False) as conn:
            old = jobs.c.keep_until <= self.now_s(conn)
            ids = conn.scalars(_unlocked(old).limit(_SWEEP_AT_ONCE)).all()
            for table, column in (
                (effects, effects.c.job_id),
                (failures, failures.c.job_id),
                (jobs, jobs.c.id),
            ):
                conn.execute(delete(table).where(column.in_(ids)))
            return len(ids)

    # -- looking and steering

    def get(self, scope: Scope, job_id: str, tx: Connection | None = None) -> Job:
        """The job. Raises `JobNotFound` also where it is another's."""
        wanted = select(jobs).where(jobs.c.id == job_id, _mine(scope))
        if tx is not None:
            row = tx.execute(wanted).first()
        else:
            with self.reading() as conn:
                row = conn.execute(wanted).first()
        if row is None:
            raise JobNotFound(f"no job {job_id!r}", "see your jobs with `minserve jobs list`")
        return _job(row._mapping)

    def list(
        self,
        scope: Scope,
        *,
        state: State | None = None,
        kind: str | None = None,
        batch: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs, the newest first; those of a batch in the order they were accepted."""
        wanted: Select = select(jobs).where(_mine(scope)).limit(limit)
        if state is not None:
            wanted = wanted.where(_DEAD if state is State.DEAD else jobs.c.state == state.value)
        if kind is not None:
            wanted = wanted.where(jobs.c.kind == kind)
        if batch is not None:
            wanted = wanted.where(jobs.c.batch == batch).order_by(jobs.c.created_at, jobs.c.turn)
        else:
            wanted = wanted.order_by(jobs.c.created_at.desc(), jobs.c.turn.desc())
        with self.reading() as conn:
            return [_job(row._mapping) for row in conn.execute(wanted)]

    def cancel(self, scope: Scope, job_id: str, tx: Connection | None = None) -> Job:
        """End an open job now. The answer's `state` says which terminal state won.

        A handler that runs is told at its next renewal; it can no longer commit anything.
        """
        with self.transaction(tx) as conn:
            ending = (
                update(jobs)
                .where(jobs.c.id == job_id, _mine(scope), _OPEN)
                .values(**self._ended(State.CANCELLED, self.now_s(conn)))
            )
            conn.execute(ending)
            return self.get(scope, job_id, conn)

    def redrive(self, scope: Scope, job_id: str, tx: Connection | None = None) -> Job:
        """Queue a dead job again, with a fresh retry budget; a deadline that has passed is lifted.

        Its ledger and its failures stay. Raises `JobNotFound`, and `InvalidRequest` unless dead.
        """
        with self.transaction(tx) as conn:
            now = self.now_s(conn)
            queueing = (
                update(jobs)
                .where(jobs.c.id == job_id, _mine(scope), _DEAD)
                .values(
                    state=State.QUEUED.value,
                    attempts=0,
                    run_at=now,
                    finished_at=None,
                    deadline_at=case((jobs.c.deadline_at > now, jobs.c.deadline_at), else_=None),
                    turn=_rejoined_turn(),
                )
            )
            done = conn.execute(queueing).rowcount
            job = self.get(scope, job_id, conn)
            if not done:
                raise InvalidRequest(
                    f"job {job_id!r} is {job.state}, not dead", "only a dead job can be redriven"
                )
            return job

    def ledger(self, scope: Scope, job_id: str) -> dict[str, Any]:
        """The effects that were committed for a job, by key."""
        self.get(scope, job_id)
        with self.reading() as conn:
            wanted = select(effects).where(effects.c.job_id == job_id)
            rows = conn.execute(wanted.order_by(effects.c.committed_at, effects.c.key)).all()
        return {row.key: json.loads(row.value) for row in rows}

    def failures(self, scope: Scope, job_id: str) -> list[Attempt]:
        """The attempts of a job that failed, in order."""
        self.get(scope, job_id)
        with self.reading() as conn:
            wanted = select(failures).where(failures.c.job_id == job_id)
            rows = conn.execute(wanted.order_by(failures.c.token)).all()
        return [Attempt(row.token, row.failed_at, row.reason) for row in rows]

    def counts(self, scope: Scope = None, *, batch: str | None = None, open_only=False) -> Counts:
        """How many jobs are in each state. With `open_only`, finished jobs cost nothing."""
        chosen = [_mine(scope)] + ([_OPEN] if open_only else [])
        if batch is not None:
            chosen.append(jobs.c.batch == batch)
        with self.reading() as conn:
            grouped = select(jobs.c.state, func.count()).where(*chosen).group_by(jobs.c.state)
            by_state = {row[0]: row[1] for row in conn.execute(grouped)}
            oldest = conn.scalar(select(func.min(jobs.c.created_at)).where(_QUEUED, *chosen))
            now = self.now_s(conn)
        return Counts(by_state, max(0.0, now - oldest) if oldest is not None else 0.0)

    def _ended(self, state: State, now: float) -> dict[str, Any]:
        return {
            "state": state.value,
            "finished_at": now,
            "keep_until": now + self.keep_s,
            "lease_until": None,
        }


# -- pieces of SQL


def _mine(scope: Scope):
    """The partition is chosen before anything is looked up."""
    if scope is None:
        return literal(True)
    return (jobs.c.tenant == scope.tenant) & (jobs.c.subject == scope.subject)


def _held(job_id: str, token: int):
    """The fence: this token is the job's latest, and the job is still running."""
    return (jobs.c.id == job_id) & (jobs.c.token == token) & _RUNNING


def _in_time(now: float):
    return (jobs.c.deadline_at.is_(None)) | (jobs.c.deadline_at > now)


def _unlocked(*where) -> Select:
    """Ids of jobs that nobody else is changing right now."""
    return select(jobs.c.id).where(*where).with_for_update(skip_locked=True)


def _update(picked: Select):
    """An update of the picked jobs."""
    # NOTE: a CTE, for PostgreSQL may run a sub-select with LIMIT more than once.
    chosen = picked.cte("picked")
    return update(jobs).where(jobs.c.id == chosen.c.id)


def _count(conn: Connection, changing) -> int:
    """Carry out an update; returns how many rows it changed."""
    # NOTE: not rowcount, which SQLite's driver gives as -1 for a statement that begins with WITH.
    return len(conn.execute(changing.returning(jobs.c.id)).all())


def _turn_being_served(priority):
    """The earliest turn in the queue at a priority; the latest ever given if nobody queues."""
    other = jobs.alias("other")
    first = select(func.min(other.c.turn)).where(
        text("other.state = 'queued'"), other.c.priority == priority
    )
    last = select(func.max(lanes.c.turn)).where(lanes.c.priority == priority)
    return func.coalesce(first.scalar_subquery(), last.scalar_subquery(), 0)


def _next_turn(insert):
    """Moves a tenant's lane on by `count` turns from the turn being served; returns its end."""
    tenant, priority = (
        bindparam("of_tenant", type_=Text),
        bindparam("at_priority", type_=BigInteger),
    )
    count = bindparam("count", type_=BigInteger)
    served, own = _turn_being_served(priority), lanes.c.turn
    lane = insert(lanes).values(tenant=tenant, priority=priority, turn=served + count)
    lane = lane.on_conflict_do_update(
        index_elements=["tenant", "priority"],
        set_={"turn": case((own > served, own), else_=served) + count},
    )
    return lane.returning(lanes.c.turn)


def _how_full():
    """How many jobs are open, of a tenant and in all; counts no further than the bounds."""
    some = select(literal(1)).select_from(jobs).where(_OPEN)
    own = some.where(jobs.c.tenant == bindparam("tenant")).limit(
        bindparam("most_own", type_=Integer)
    )
    both = (own, some.limit(bindparam("most", type_=Integer)))
    return select(
        *(select(func.count()).select_from(one.subquery()).scalar_subquery() for one in both)
    )


def _rejoined_turn():
    """A job that joins the queue later than it got its turn is not ahead of those served now."""
    served = _turn_being_served(jobs.c.priority)
    return case((jobs.c.turn > served, jobs.c.turn), else_=served)


# Built once: to build a statement takes longer than to run it.
_HOW_FULL = _how_full()


def _failing_columns():
    return (jobs.c.id, jobs.c.kind, jobs.c.token, jobs.c.attempts, jobs.c.max_attempts)


# -- rows and errors


def _job(row: Mapping[str, Any]) -> Job:
    get = row.get
    result = get("result")
    return Job(
        id=row["id"],
        identity=Identity(row["tenant"], row["subject"]),
        kind=row["kind"],
        state=State(row["state"]),
        payload=json.loads(row["payload"]),
        priority=row["priority"],
        key=row["idempotency_key"],
        batch=row["batch"],
        custom_id=row["custom_id"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        deadline_at=row["deadline_at"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        token=row["token"],
        worker=get("worker"),
        lease_until=get("lease_until"),
        completed=row["completed"],
        total=row["total"],
        result=None if result is None else json.loads(result),
        reason=get("reason"),
        owner=row["owner"],
        finished_at=get("finished_at"),
        keep_until=get("keep_until"),
    )


def _tally(values: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _lost(lease: Lease, now_is: Row | None = None) -> LostLease:
    found = f"; it is {now_is.state} under token {now_is.token}" if now_is else ""
    return LostLease(
        f"job {lease.job.id} is no longer held by token {lease.token}{found}",
        "nothing was written; drop the work",
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def _unavailable(error: DBAPIError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the job store does not answer: {_line(error.orig or error)}",
        "see that the database runs and its URL is right; accepted jobs are safe",
    )


# -- connections


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(f"{url!r} is no database URL", "use sqlite:///jobs.db") from None
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(parsed, pool_pre_ping=True, pool_size=5, max_overflow=20)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ConfigError(
            f"no job store at {parsed.render_as_string()}",
            "use sqlite:///path/to/jobs.db or postgresql://user@host/name",
        )
    engine = create_engine(parsed, connect_args={"timeout": 30}, pool_size=5, max_overflow=40)

    @event.listens_for(engine, "connect")
    def connected(connection, record) -> None:
        connection.isolation_level = None  # the driver is not to begin transactions by itself
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        options = conn.get_execution_options()
        level = options.get("minserve_sync", "FULL")
        conn.connection.driver_connection.execute(f"PRAGMA synchronous = {level}")
        conn.exec_driver_sql(f"BEGIN {options.get('minserve_begin', 'DEFERRED')}")

    return engine
