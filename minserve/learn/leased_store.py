"""A job store whose leases a learner's part `job_lease` decides; the database only remembers.

For each decision the part is shown the job's record as the database has it, in a queue of its own,
and asked. So it works across restarts and in any number of processes, like the store itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minserve.errors import MinserveError
from minserve.jobs.job import Job, Lease, LostLease, Progress, State
from minserve.jobs.outcomes import Finished
from minserve.jobs.store import JobStore
from minserve.learn.leases import DEAD, DONE, QUEUED, RUNNING, JobLeasePart, Record

_STATES = {State.QUEUED: QUEUED, State.RUNNING: RUNNING, State.DONE: DONE}


class LeasedStore:
    """A `JobStore` in all else. What the part refuses is not written.

    A claim that the part refuses is given back, and does not count as an attempt. The order of the
    queue and the sweep of leases that ran out stay the store's, as does its own fence: it holds
    even where a part would let an old token pass.
    """

    def __init__(self, store: JobStore, part: Callable[..., JobLeasePart]) -> None:
        self.store, self.part = store, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def claim(
        self,
        worker: str,
        count: int = 1,
        *,
        ahead: int = 0,
        lease_s: float = 30.0,
        kinds: Sequence[str] | None = None,
        tx: Any = None,
    ) -> list[Lease]:
        """See `JobStore.claim`. None is claimed ahead: the part decides on each start."""
        with self.store.transaction(tx, is_durable=False) as conn:
            now_s, granted = self.store.now_s(conn), []
            for lease in self.store.claim(worker, count, lease_s=lease_s, kinds=kinds, tx=conn):
                job = lease.job
                record = Record(job.id, QUEUED, job.attempts - 1, lease.token - 1)
                claimed = self._asked(record, job, lease_s).claim(now_s)
                if claimed and claimed[0] == job.id and claimed[1] >= lease.token:
                    granted.append(lease)
                else:
                    self.store.release(lease, tx=conn)
            return granted

    def renew(self, progress: Iterable[Progress], lease_s: float = 30.0, tx: Any = None) -> set:
        """See `JobStore.renew`."""
        with self.store.transaction(tx, is_durable=False) as conn:
            now_s = self.store.now_s(conn)
            held = [
                each
                for each in progress
                if self._now(each.job_id, conn, lease_s)[1].renew(each.job_id, each.token, now_s)
            ]
            return self.store.renew(held, lease_s, tx=conn)

    def complete(
        self,
        lease: Lease,
        result: Any = None,
        effects: Mapping[str, Any] | None = None,
        tx: Any = None,
    ) -> None:
        """See `JobStore.complete`."""
        with self.store.transaction(tx) as conn:
            job, queue = self._now(lease.job.id, conn)
            is_repeated = (job.state, job.token) == (State.DONE, lease.token)
            if not is_repeated and not queue.complete(job.id, lease.token, result):
                raise _refused(lease)
            self.store.complete(lease, result, effects, tx=conn)

    def complete_many(
        self, finished: Sequence[Finished], tx: Any = None
    ) -> list[MinserveError | None]:
        """See `JobStore.complete_many`."""
        answers: list[MinserveError | None] = []
        with self.store.transaction(tx) as conn:
            for one in finished:
                try:
                    self.complete(one.lease, one.result, one.effects, conn)
                    answers.append(None)
                except MinserveError as error:
                    answers.append(error)
        return answers

    def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        retry_after_s: float = 0.0,
        is_permanent: bool = False,
        tx: Any = None,
    ) -> State:
        """See `JobStore.fail`. The job is dead if the part says so."""
        with self.store.transaction(tx) as conn:
            job, queue = self._now(lease.job.id, conn)
            if not queue.fail(job.id, lease.token):
                raise _refused(lease)
            return self.store.fail(
                lease,
                reason,
                retry_after_s=retry_after_s,
                is_permanent=is_permanent or queue.jobs[job.id].state == DEAD,
                tx=conn,
            )

    def _now(self, job_id: str, conn: Any, lease_s: float = 30.0) -> tuple[Job, JobLeasePart]:
        """The job as the database has it, and the part's queue that holds its record."""
        job = self.store.get(None, job_id, tx=conn)
        state = _STATES.get(job.state, DEAD)  # cancelled or expired: nobody's any more
        record = Record(job.id, state, job.attempts, job.token, job.lease_until or 0.0, job.result)
        return job, self._asked(record, job, lease_s)

    def _asked(self, record: Record, job: Job, lease_s: float) -> JobLeasePart:
        queue = self.part(lease_s=lease_s, max_attempts=job.max_attempts)
        queue.jobs[job.id] = record
        return queue


def _refused(lease: Lease) -> LostLease:
    return LostLease(
        f"token {lease.token} of job {lease.job.id} is refused by the part `job_lease`",
        "the job is another's by now, or has ended: write nothing",
    )
