"""Looking at jobs, and steering them: whoever asks reaches their own jobs only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, func, select, update

from minserve.errors import InvalidRequest
from minserve.jobs.database import Database
from minserve.jobs.job import Attempt, Counts, Job, JobNotFound, State
from minserve.jobs.rows import DEAD, OPEN, QUEUED, Scope, as_job, ended, mine, rejoined_turn
from minserve.jobs.schema import effects, failures, jobs


class Desk(Database):
    """Where one asks after jobs. Another's job is not there."""

    def get(self, scope: Scope, job_id: str, tx: Connection | None = None) -> Job:
        """The job. Raises `JobNotFound` also where it is another's."""
        wanted = select(jobs).where(jobs.c.id == job_id, mine(scope))
        if tx is not None:
            row = tx.execute(wanted).first()
        else:
            with self.reading() as conn:
                row = conn.execute(wanted).first()
        if row is None:
            raise JobNotFound(f"no job {job_id!r}", "see your jobs with `minserve jobs list`")
        return as_job(row._mapping)

    def list(
        self,
        scope: Scope,
        *,
        state: State | None = None,
        batch: str | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs, the newest first; those of a batch in the order they were accepted."""
        wanted: Select = select(jobs).where(mine(scope)).limit(limit)
        if state is not None:
            wanted = wanted.where(DEAD if state is State.DEAD else jobs.c.state == state.value)
        if batch is not None:
            wanted = wanted.where(jobs.c.batch == batch).order_by(jobs.c.created_at, jobs.c.turn)
        else:
            wanted = wanted.order_by(jobs.c.created_at.desc(), jobs.c.turn.desc())
        with self.reading() as conn:
            return [as_job(row._mapping) for row in conn.execute(wanted)]

    def cancel(self, scope: Scope, job_id: str, tx: Connection | None = None) -> Job:
        """End an open job now. The answer's `state` says which terminal state won.

        A handler that runs is told at its next renewal; it can no longer commit anything.
        """
        with self.transaction(tx) as conn:
            ending = (
                update(jobs)
                .where(jobs.c.id == job_id, mine(scope), OPEN)
                .values(**ended(State.CANCELLED, self.now_s(conn), self.keep_s))
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
                .where(jobs.c.id == job_id, mine(scope), DEAD)
                .values(
                    state=State.QUEUED.value,
                    attempts=0,
                    run_at=now,
                    finished_at=None,
                    deadline_at=case((jobs.c.deadline_at > now, jobs.c.deadline_at), else_=None),
                    turn=rejoined_turn(),
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

    def failures(self, scope: Scope, job_id: str) -> Sequence[Attempt]:
        """The attempts of a job that failed, in order."""
        self.get(scope, job_id)
        with self.reading() as conn:
            wanted = select(failures).where(failures.c.job_id == job_id)
            rows = conn.execute(wanted.order_by(failures.c.token)).all()
        return [Attempt(row.token, row.failed_at, row.reason) for row in rows]

    def counts(self, scope: Scope = None, *, batch: str | None = None, open_only=False) -> Counts:
        """How many jobs are in each state. With `open_only`, finished jobs cost nothing."""
        chosen = [mine(scope)] + ([OPEN] if open_only else [])
        if batch is not None:
            chosen.append(jobs.c.batch == batch)
        with self.reading() as conn:
            grouped = select(jobs.c.state, func.count()).where(*chosen).group_by(jobs.c.state)
            by_state = {row[0]: row[1] for row in conn.execute(grouped)}
            oldest = conn.scalar(select(func.min(jobs.c.created_at)).where(QUEUED, *chosen))
            now = self.now_s(conn)
        return Counts(by_state, max(0.0, now - oldest) if oldest is not None else 0.0)
