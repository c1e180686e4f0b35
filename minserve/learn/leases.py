"""What lesson 6's part `job_lease` starts from: a queue in memory, and its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

QUEUED, RUNNING, DONE, DEAD = "queued", "running", "done", "dead"


@dataclass(slots=True)
class Record:
    """One job. `token` is the latest claim's; `lease_until_s` counts while it is running."""

    id: str
    state: str = QUEUED
    attempts: int = 0
    token: int = 0
    lease_until_s: float = 0.0
    result: Any = None


class LeaseBase:
    """The queue: `self.jobs` holds the records by id, in the order of arrival."""

    def __init__(self, lease_s: float, max_attempts: int) -> None:
        self.lease_s, self.max_attempts = lease_s, max_attempts
        self.jobs: dict[str, Record] = {}

    def enqueue(self, job_id: str) -> None:
        """Accept a job; an id that is there already changes nothing."""
        self.jobs.setdefault(job_id, Record(job_id))


class JobLeasePart(Protocol):
    """The part `job_lease`, to be derived from `LeaseBase`. Times are the caller's clock.

    `claim(now_s)` first ends the attempts whose lease has run out, then takes the first queued job:
    (id, a fresh token), or None. An attempt counts from its claim on; the job is dead when
    `max_attempts` have failed. `renew`, `complete` and `fail` act only for the latest token of a
    running job, and say whether they did.
    """

    jobs: dict[str, Record]

    def claim(self, now_s: float) -> tuple[str, int] | None: ...

    def renew(self, job_id: str, token: int, now_s: float) -> bool: ...

    def complete(self, job_id: str, token: int, result: Any) -> bool: ...

    def fail(self, job_id: str, token: int) -> bool: ...


class JobLease(LeaseBase):
    """The reference; `minserve.jobs.store` does the same in a database."""

    def claim(self, now_s: float) -> tuple[str, int] | None:
        for job in self.jobs.values():
            if job.state == RUNNING and job.lease_until_s <= now_s:
                self._end_attempt(job)
        for job in self.jobs.values():
            if job.state == QUEUED:
                job.state = RUNNING
                job.attempts += 1
                job.token += 1
                job.lease_until_s = now_s + self.lease_s
                return job.id, job.token
        return None

    def renew(self, job_id: str, token: int, now_s: float) -> bool:
        job = self._held(job_id, token)
        if job:
            job.lease_until_s = now_s + self.lease_s
        return job is not None

    def complete(self, job_id: str, token: int, result: Any) -> bool:
        job = self._held(job_id, token)
        if job:
            job.state, job.result = DONE, result
        return job is not None

    def fail(self, job_id: str, token: int) -> bool:
        job = self._held(job_id, token)
        if job:
            self._end_attempt(job)
        return job is not None

    def _held(self, job_id: str, token: int) -> Record | None:
        job = self.jobs[job_id]
        return job if job.state == RUNNING and job.token == token else None

    def _end_attempt(self, job: Record) -> None:
        job.state = DEAD if job.attempts >= self.max_attempts else QUEUED
