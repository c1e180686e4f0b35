"""Claims: who works on a job, for how long, and what time makes of a lease.

A claim gives its job a fresh fencing token and counts as an attempt. A worker whose jobs are short
also claims some ahead, to be started one after another: such a job has no attempts yet, and the
first sign that it has started counts one. If its lease runs out before any sign, it goes back to
the queue uncounted, and is never again claimed ahead; so a job that kills its worker can cost its
neighbours no attempt before they start, and itself one delivery more than its budget at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Double, Integer, bindparam, case, delete, select, update

from minserve.jobs.job import Lease, Progress, State
from minserve.jobs.outcomes import FAILING, Outcomes, is_held, locked
from minserve.jobs.rows import (
    AT_ONCE,
    KEEP_S,
    NOW,
    OPEN,
    QUEUED,
    RUNNING,
    STARTED,
    WAITING,
    as_job,
    ended,
    held,
    in_time,
    rejoined_turn,
    unlocked,
    updating,
)
from minserve.jobs.schema import effects, failures, jobs


class Claims(Outcomes):
    """Gives jobs to workers, and takes them back."""

    def claim(
        self,
        worker: str,
        count: int = 1,
        *,
        ahead: int = 0,
        lease_s: float = 30.0,
        kinds: Sequence[str] | None = None,
        tx: Connection | None = None,
    ) -> list[Lease]:
        """Take up to `count` jobs, first in order first. Each counts as an attempt from here on.

        Where the queue runs short, retries that are due and leases that ran out are swept first.
        Then up to `ahead` more (`Lease.is_ahead`), which only wait for their turn with this worker
        and do not count yet: of jobs never claimed before that may be tried more than once.
        """
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            wanted: dict[str, Any] = {"now": now, "until": now + lease_s, "by_worker": worker}
            if kinds is not None:
                wanted["kinds"] = list(kinds)
            taken = self._take(conn, wanted, count, is_ahead=False)
            if len(taken) < count and self.sweep(tx=conn):
                taken += self._take(conn, wanted, count - len(taken), is_ahead=False)
            if ahead and len(taken) == count:
                taken += self._take(conn, wanted, ahead, is_ahead=True)
            return taken

    def _take(
        self, conn: Connection, wanted: dict[str, Any], count: int, is_ahead: bool
    ) -> list[Lease]:
        if not count:
            return []
        taking = _TAKE["kinds" in wanted, is_ahead]
        rows = conn.execute(taking, wanted | {"count": count}).mappings().all()
        leases = []
        for row in sorted(rows, key=_place):
            # An attempt that does not count yet is the first one all the same.
            job = as_job({**row, "attempts": max(1, row["attempts"])})
            leases.append(Lease(job, row["token"], row["lease_until"], is_ahead))
        return leases

    def renew(
        self, progress: Iterable[Progress], lease_s: float = 30.0, tx: Connection | None = None
    ) -> set[str]:
        """Extend leases and note progress; returns the ids of the jobs that are still held.

        A job that is missing in the answer was cancelled, has expired or is another's by now: stop
        working on it, nothing of it can be committed.
        """
        progress = list(progress)
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            there = locked(conn, progress)
            rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
            for p in progress:
                row = there.get(p.job_id)
                if is_held(row, p) and (row.deadline_at is None or row.deadline_at > now):
                    rows[p.is_started].append(
                        {
                            "of_job": p.job_id,
                            "of_token": p.token,
                            "until": now + lease_s,
                            "num_completed": p.completed,
                            "num_total": p.total,
                        }
                    )
            for is_started, some in rows.items():
                if some:
                    conn.execute(_RENEW[is_started], some)
            return {row["of_job"] for some in rows.values() for row in some}

    def release(self, lease: Lease, tx: Connection | None = None) -> None:
        """Give back a job that was claimed and never started: the attempt does not count.

        Does nothing if the lease was lost.
        """
        with self.transaction(tx) as conn:
            conn.execute(_RELEASE, {"of_job": lease.job.id, "of_token": lease.token})

    # -- what time brings

    def sweep(self, tx: Connection | None = None) -> int:
        """What time has brought; returns how many jobs changed.

        Jobs past their deadline expire, leases that ran out end their attempt (or return a job that
        was claimed ahead), retries and delayed jobs that are due are queued.
        """
        with self.transaction(tx, is_durable=False) as conn:
            now = self.now_s(conn)
            changed = _count(conn, _EXPIRE, {"now": now, "keep_s": self.keep_s})
            changed += _count(conn, _RETURN, {"now": now})
            for row in conn.execute(_RUN_OUT, {"now": now}).all():
                why = f"attempt {row.attempts}: its lease ran out at worker {row.worker}"
                self.end_attempt(conn, row, now, why)
                changed += 1
            return changed + _count(conn, _QUEUE_DUE, {"now": now})

    def purge(self, tx: Connection | None = None) -> int:
        """Delete finished jobs whose time of keeping is over, some at a time; returns how many."""
        with self.transaction(tx, is_durable=False) as conn:
            old = jobs.c.keep_until <= self.now_s(conn)
            ids = conn.scalars(unlocked(old).limit(AT_ONCE)).all()
            for table, column in (
                (effects, effects.c.job_id),
                (failures, failures.c.job_id),
                (jobs, jobs.c.id),
            ):
                conn.execute(delete(table).where(column.in_(ids)))
            return len(ids)


def _place(row: Any) -> tuple:
    return -row["priority"], row["turn"], row["created_at"], row["id"]


def _count(conn: Connection, changing: Any, values: dict[str, Any]) -> int:
    """Carry out an update; returns how many rows it changed."""
    # NOTE: not rowcount, which SQLite's driver gives as -1 for a statement that begins with WITH.
    return len(conn.execute(changing, values).all())


# -- statements, made once: to build one takes longer than to run it


def _take(has_kinds: bool, is_ahead: bool):
    picked = unlocked(QUEUED, in_time(NOW))
    if has_kinds:
        picked = picked.where(jobs.c.kind.in_(bindparam("kinds", expanding=True)))
    if is_ahead:
        picked = picked.where(jobs.c.token == 0, jobs.c.max_attempts > 1)
    picked = picked.order_by(jobs.c.priority.desc(), jobs.c.turn, jobs.c.created_at, jobs.c.id)
    taking = updating(picked.limit(bindparam("count", type_=Integer))).values(
        state=State.RUNNING.value,
        token=jobs.c.token + 1,
        attempts=jobs.c.attempts + (0 if is_ahead else 1),
        worker=bindparam("by_worker"),
        lease_until=UNTIL,
        completed=0,
        total=0,
    )
    return taking.returning(jobs)


def _renew(is_started: bool):
    values = {"attempts": STARTED} if is_started else {}
    return (
        update(jobs)
        .where(held(bindparam("of_job"), bindparam("of_token")))
        .values(
            lease_until=UNTIL,
            completed=bindparam("num_completed"),
            total=bindparam("num_total"),
            **values,
        )
    )


UNTIL = bindparam("until", type_=Double)
_BOOLS = (False, True)
_TAKE = {(kinds, ahead): _take(kinds, ahead) for kinds in _BOOLS for ahead in _BOOLS}
_RENEW = {is_started: _renew(is_started) for is_started in _BOOLS}
_RELEASE = (
    update(jobs)
    .where(held(bindparam("of_job"), bindparam("of_token")))
    .values(
        state=State.QUEUED.value,
        attempts=case((jobs.c.attempts > 0, jobs.c.attempts - 1), else_=0),
        lease_until=None,
        worker=None,
    )
)
_EXPIRE = (
    updating(unlocked(OPEN, jobs.c.deadline_at <= NOW))
    .values(**ended(State.EXPIRED, NOW, KEEP_S), reason="its deadline has passed")
    .returning(jobs.c.id)
)
_RETURN = (
    updating(unlocked(RUNNING, jobs.c.lease_until <= NOW, jobs.c.attempts == 0).limit(AT_ONCE))
    .values(state=State.QUEUED.value, turn=rejoined_turn(), lease_until=None, worker=None)
    .returning(jobs.c.id)
)
_RUN_OUT = (
    select(*FAILING, jobs.c.worker)
    .where(RUNNING, jobs.c.lease_until <= NOW, jobs.c.attempts > 0)
    .order_by(jobs.c.lease_until)
    .limit(AT_ONCE)
    .with_for_update(skip_locked=True)
)
_QUEUE_DUE = (
    updating(unlocked(WAITING, jobs.c.run_at <= NOW).limit(AT_ONCE))
    .values(state=State.QUEUED.value, turn=rejoined_turn())
    .returning(jobs.c.id)
)
