"""Accepting jobs: idempotency keys, the bounds of the queue, and each job's turn in it.

Fairness: start-time fair queuing (Goyal 1996). A job gets its turn when it is enqueued: the next of
its tenant's, but no earlier than the turn now being served; so a claim only walks an index.

Equivalent inputs: one idempotency key with one body. Valid until the job is purged. Scope: the
identity that sent it. Order: the first makes the job. The key of a cancelled job goes on naming it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    case,
    func,
    literal,
    select,
    text,
)

from minserve.errors import InvalidRequest
from minserve.jobs.database import Database, Prepared
from minserve.jobs.job import Job, KeyReused, Kind, QueueFull, State, Submission, canonical
from minserve.jobs.rows import OPEN, Fields, as_job, mine, turn_being_served
from minserve.jobs.schema import jobs, lanes
from minserve.request import Identity

COUNT_AGAIN_S = 1.0
UNCOUNTED_SHARE = 8
"""An eighth of the room that was left may be filled before the queue is counted again."""


class Intake(Database):
    """What may come in, and its place in the queue."""

    def __init__(
        self,
        url: str,
        kinds: Iterable[Kind],
        clock: Callable[[], float] | None,
        keep_s: float,
        new_id: Callable[[], str],
        max_open: int,
        max_open_per_tenant: int | None,
    ) -> None:
        super().__init__(url, clock, keep_s)
        self.kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}
        self.new_id = new_id
        self.max_open = max_open
        self.max_open_per_tenant = max_open_per_tenant or max(1, max_open // 2)
        self._room = Room()
        dialect = self.engine.dialect
        self._next_turns = Prepared(_next_turns(self.insert, self.clock_sql), dialect)
        keyed = self.insert(jobs).on_conflict_do_nothing(
            index_elements=["tenant", "subject", "idempotency_key"],
            index_where=text("idempotency_key IS NOT NULL"),
        )
        self._insert_jobs = Prepared(keyed, dialect, _COLUMNS)

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
            there = self._by_key(conn, identity, [s.key for s in submissions if s.key is not None])
            # A name for each row: its key, or for want of one its place in the list.
            names = [n if s.key is None else s.key for n, s in enumerate(submissions)]
            fresh: dict[str | int, Submission] = {}
            for name, submission in zip(names, submissions, strict=True):
                if name not in there:
                    fresh.setdefault(name, submission)
            if fresh:
                there |= self._add(conn, identity, fresh)
            for submission in submissions:
                if submission.key and there[submission.key]["digest"] != submission.digest:
                    raise KeyReused(
                        f"idempotency key {submission.key!r} stands for another body",
                        "use a new key for a new job, or send the first body again",
                    )
            return [as_job(there[name]) for name in names]

    def _check_payload(self, submission: Submission) -> None:
        kind = self.kinds.get(submission.kind)
        if kind is None:
            known = ", ".join(sorted(self.kinds)) or "none"
            raise InvalidRequest(f"no kind of job is named {submission.kind!r}", f"known: {known}")
        try:
            kind.check_payload(submission.payload)
        except ValueError as error:
            raise InvalidRequest(
                f"a {kind.name} job cannot use this payload: {_in_words(error)}"
            ) from None

    def _by_key(
        self, conn: Connection, identity: Identity, keys: Sequence[str]
    ) -> dict[Any, Fields]:
        found: dict[Any, Fields] = {}
        for start in range(0, len(keys), 500):
            same = jobs.c.idempotency_key.in_(keys[start : start + 500])
            for row in conn.execute(select(jobs).where(mine(identity), same)).mappings():
                found[row["idempotency_key"]] = row
        return found

    def _add(
        self, conn: Connection, identity: Identity, fresh: Mapping[Any, Submission]
    ) -> Mapping[Any, Fields]:
        """Write the rows of `fresh` into the queue; returns them, or whoever came first, by name.

        Rolled back by the caller's transaction if it raises `QueueFull`.
        """
        turns, now = {}, 0.0
        for priority, count in sorted(Counter(s.priority for s in fresh.values()).items()):
            wanted = {"of_tenant": identity.tenant, "at_priority": priority, "count": count}
            end, now = self._next_turns.run(conn, wanted).one()
            turns[priority] = iter(range(end - count, end))
        now = self._clock() if self._clock else now
        self._refuse_if_full(conn, identity.tenant, len(fresh), now)
        rows = {
            name: self._row(identity, submission, next(turns[submission.priority]), now)
            for name, submission in fresh.items()
        }
        added = self._insert_jobs.run(conn, *rows.values())
        if added.rowcount != len(rows):  # another transaction used one of the keys just now
            return rows | self._by_key(conn, identity, [k for k in rows if isinstance(k, str)])
        return rows

    def _row(
        self, identity: Identity, submission: Submission, turn: int, now: float
    ) -> dict[str, Any]:
        kind = self.kinds[submission.kind]
        state = State.WAITING if submission.delay_s else State.QUEUED
        return {
            "id": self.new_id(),
            "tenant": identity.tenant,
            "subject": identity.subject,
            "kind": submission.kind,
            "state": state.value,
            "payload": canonical(submission.payload).decode(),
            "digest": submission.digest,
            "idempotency_key": submission.key,
            "priority": submission.priority,
            "turn": turn,
            "created_at": now,
            "run_at": now + submission.delay_s,
            "deadline_at": submission.deadline_s and now + submission.deadline_s,
            "attempts": 0,
            "max_attempts": kind.max_attempts,
            "token": 0,
            "completed": 0,
            "total": 0,
            "owner": kind.owner,
            "batch": submission.batch,
            "custom_id": submission.custom_id,
        }

    def _refuse_if_full(self, conn: Connection, tenant: str, count: int, now: float) -> None:
        if self._room.has(tenant, count, now):
            return
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
        left_own = self.max_open_per_tenant - num_own - count
        self._room.counted(tenant, left_own, self.max_open - num_all - count)

    def _retry_after_s(self, conn: Connection, now: float, bound: int) -> float:
        """About when a twentieth of the bound has drained, at the pace of the last minute."""
        recent = jobs.c.keep_until > now + self.keep_s - 60  # what its index knows
        counting = select(func.count()).select_from(jobs).where(recent)
        per_s = conn.execute(counting).scalar_one() / 60
        return min(max(1.0, bound / 20 / per_s), 60.0) if per_s else 30.0


class Room:
    """How many jobs may still be accepted before the queue is counted again.

    To count it each time would cost as much as to accept. So for a second a part of the room that
    was found is taken as granted; near the bound that part is nothing, and every job is counted.
    """

    def __init__(self) -> None:
        self._counted_at, self._all = -float("inf"), 0
        self._own: dict[str, int] = {}

    def has(self, tenant: str, count: int, now: float) -> bool:
        """Take `count` places of those granted; False if the queue is to be counted."""
        if not 0 <= now - self._counted_at < COUNT_AGAIN_S:
            self._own, self._all, self._counted_at = {}, 0, now
        if count > min(self._all, self._own.get(tenant, 0)):
            return False
        self._all -= count
        self._own[tenant] -= count
        return True

    def counted(self, tenant: str, left_own: int, left_all: int) -> None:
        """Note what the count has found to be left."""
        self._own[tenant] = left_own // UNCOUNTED_SHARE
        self._all = left_all // UNCOUNTED_SHARE


# -- statements

_COLUMNS = (
    *("id", "tenant", "subject", "kind", "state", "payload", "digest", "idempotency_key"),
    *("priority", "turn", "created_at", "run_at", "deadline_at", "attempts", "max_attempts"),
    *("token", "completed", "total", "owner", "batch", "custom_id"),
)


def _next_turns(insert: Any, clock_sql: Any):
    """Moves a tenant's lane on by `count` from the turn being served; gives its end, and the time.

    The lane's row is locked from here on: a tenant's submissions are numbered one after another.
    """
    tenant, priority, count = (
        bindparam("of_tenant", type_=Text),
        bindparam("at_priority", type_=BigInteger),
        bindparam("count", type_=BigInteger),
    )
    served, own = turn_being_served(priority), lanes.c.turn
    lane = insert(lanes).values(tenant=tenant, priority=priority, turn=served + count)
    lane = lane.on_conflict_do_update(
        index_elements=["tenant", "priority"],
        set_={"turn": case((own > served, own), else_=served) + count},
    )
    return lane.returning(own, clock_sql)


def _how_full():
    """How many jobs are open, of a tenant and in all; counts no further than the bounds."""
    some = select(literal(1)).select_from(jobs).where(OPEN)
    own = some.where(jobs.c.tenant == bindparam("tenant")).limit(
        bindparam("most_own", type_=Integer)
    )
    both = (own, some.limit(bindparam("most", type_=Integer)))
    return select(
        *(select(func.count()).select_from(one.subquery()).scalar_subquery() for one in both)
    )


_HOW_FULL = _how_full()


def _in_words(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in error.errors()
    )
