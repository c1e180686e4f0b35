"""Variants of `job_lease`; see `variants` for their form."""

LEASE = """
    from minserve.learn.leases import DEAD, DONE, QUEUED, RUNNING, LeaseBase

    class JobLease(LeaseBase):
        def claim(self, now_s):
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

        def renew(self, job_id, token, now_s):
            job = self._held(job_id, token)
            if job:
                job.lease_until_s = now_s + self.lease_s
            return job is not None

        def complete(self, job_id, token, result):
            job = self._held(job_id, token)
            if job:
                job.state, job.result = DONE, result
            return job is not None

        def fail(self, job_id, token):
            job = self._held(job_id, token)
            if job:
                self._end_attempt(job)
            return job is not None

        def _held(self, job_id, token):
            job = self.jobs[job_id]
            return job if job.state == RUNNING and job.token == token else None

        def _end_attempt(self, job):
            job.state = DEAD if job.attempts >= self.max_attempts else QUEUED
"""

LEASE_SPELLED_OUT = """
    from minserve.learn.leases import LeaseBase

    class JobLease(LeaseBase):
        def over(self, job):
            if job.attempts < self.max_attempts:
                job.state = "queued"
            else:
                job.state = "dead"

        def claim(self, now_s):
            for job in list(self.jobs.values()):
                if job.state == "running" and not now_s < job.lease_until_s:
                    self.over(job)
            free = [job for job in self.jobs.values() if job.state == "queued"]
            if not free:
                return None
            free[0].state, free[0].lease_until_s = "running", now_s + self.lease_s
            free[0].attempts, free[0].token = free[0].attempts + 1, free[0].token + 10
            return (free[0].id, free[0].token)

        def renew(self, job_id, token, now_s):
            if (self.jobs[job_id].state, self.jobs[job_id].token) != ("running", token):
                return False
            self.jobs[job_id].lease_until_s = self.lease_s + now_s
            return True

        def complete(self, job_id, token, result):
            if (self.jobs[job_id].state, self.jobs[job_id].token) != ("running", token):
                return False
            self.jobs[job_id].state, self.jobs[job_id].result = "done", result
            return True

        def fail(self, job_id, token):
            if (self.jobs[job_id].state, self.jobs[job_id].token) != ("running", token):
                return False
            self.over(self.jobs[job_id])
            return True
"""

_COMPLETE = """job = self._held(job_id, token)
            if job:
                job.state, job.result"""

_FAIL = """job = self._held(job_id, token)
            if job:
                self._end_attempt(job)"""

_ANY_TOKEN = "job = self.jobs[job_id] if self.jobs[job_id].state == RUNNING else None"

_RENEWS = "if job:\n                job.lease_until_s = now_s"

_FIRST = "for job in self.jobs.values():\n                if job.state == QUEUED"

RIGHT = ("JobLease", {"held": LEASE, "spelled out": LEASE_SPELLED_OUT})
WRONG = {
    "marks nothing": ("job.state = RUNNING", "pass", "one_holder", "leased until 10"),
    "the last first": (
        _FIRST,
        _FIRST.replace("self.jobs.values()", "reversed(self.jobs.values())"),
        "in_order",
        "first to arrive",
    ),
    "lost for ever": (
        "job.lease_until_s <= now_s",
        "False",
        "lost_lease_returns",
        "for dead",
    ),
    "one token for all": ("job.token += 1", "job.token = 1", "fresh_token", "larger token"),
    "counts nothing": ("job.attempts += 1", "pass", "counted_at_claim", "killed 2 workers"),
    "tries for ever": (
        "DEAD if job.attempts >= self.max_attempts else QUEUED",
        "QUEUED",
        "counted_at_claim",
        "killed 2 workers",
    ),
    "renews nothing": (
        _RENEWS,
        _RENEWS.replace("if job", "if False"),
        "renewed_lease_holds",
        "until 18",
    ),
    "renewals add up": (
        _RENEWS,
        _RENEWS.replace("= now_s", "+= 0"),
        "renewal_starts_now",
        "counts from now",
    ),
    "no fence": (
        "job.state == RUNNING and job.token == token",
        "job.state == RUNNING",
        "zombie_cannot_renew",
        "is old",
    ),
    "completes twice": (
        "job.state == RUNNING and job.token == token",
        "job.token == token",
        "completes_once",
        "done already",
    ),
    "completes for anybody": (
        _COMPLETE,
        _COMPLETE.replace("job = self._held(job_id, token)", _ANY_TOKEN),
        "zombie_cannot_complete",
        "token 1 is old, 2 holds the job",
    ),
    "forgets to let go": (
        _FAIL,
        _FAIL.replace("self._end_attempt(job)", "pass"),
        "fails_and_returns",
        "one attempt is left",
    ),
    "fails for ever": (
        _FAIL,
        _FAIL.replace("self._end_attempt(job)", "job.state = QUEUED"),
        "budget_ends",
        "its only attempt has failed",
    ),
    "fails for anybody": (
        _FAIL,
        _FAIL.replace("job = self._held(job_id, token)", _ANY_TOKEN),
        "zombie_cannot_fail",
        "token 1 is old, 2 holds the job",
    ),
}
