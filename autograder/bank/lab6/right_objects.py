# ruff: noqa: F821  the notebook's first cell imports these names
# Another right way: everything is read when the process starts, decisions are made in memory, and
# every change is written through in one commit before anybody hears of it.


@dataclass
class Job:
    id: str
    key: str
    body: dict
    used: int = 0
    last_token: int = 0
    ends_s: float | None = None  # of the lease of whoever holds it
    winner: int | None = None
    result: object = None

    def is_held(self, now_s):
        return self.ends_s is not None and now_s < self.ends_s


class PaymentQueue:
    def __init__(self, store, lease_s, max_attempts):
        self.store, self.lease_s, self.max_attempts = store, lease_s, max_attempts
        self.jobs = {job_id: Job(**row) for job_id, row in store.rows("job")}

    def save(self, job, payments=()):
        self.store.commit([["job", job.id, vars(job)], *payments])
        self.jobs[job.id] = job

    def state(self, job, now_s):
        if job.winner is not None:
            return "done"
        if job.is_held(now_s):
            return "running"
        return "queued" if job.used < self.max_attempts else "dead"

    def holder(self, job_id, token, now_s):
        job = self.jobs.get(job_id)
        if job and token == job.last_token and self.state(job, now_s) == "running":
            return job

    def submit(self, key, body, now_s):
        for job in self.jobs.values():
            if job.key == key:
                return job.id if job.body == body else None
        self.save(Job(f"j/{key}", key, body))
        return f"j/{key}"

    def claim(self, worker, now_s):
        for job in self.jobs.values():
            if self.state(job, now_s) == "queued":
                job.used += 1
                job.last_token += 1
                job.ends_s = now_s + self.lease_s
                self.save(job)
                told = {"job": job.id, "token": job.last_token, "attempt": job.used}
                return {**told, "body": job.body}

    def renew(self, job_id, token, now_s):
        if job := self.holder(job_id, token, now_s):
            job.ends_s = now_s + self.lease_s
            self.save(job)
        return bool(job)

    def complete(self, job_id, token, result, payments, now_s):
        if job := self.holder(job_id, token, now_s):
            job.winner, job.result, job.ends_s = token, result, None
            names = sorted(payments)
            self.save(job, [["ledger", f"{job.key}#{name}", payments[name]] for name in names])
            return True
        job = self.jobs.get(job_id)
        return bool(job) and job.winner is not None and job.winner == token

    def fail(self, job_id, token, reason, now_s):
        if job := self.holder(job_id, token, now_s):
            job.ends_s = None
            self.save(job)
        return bool(job)

    def status(self, job_id, now_s):
        if job := self.jobs.get(job_id):
            return {
                "state": self.state(job, now_s),
                "attempts": job.used,
                "result": job.result,
            }

    def dead(self, now_s):
        return [job.id for job in self.jobs.values() if self.state(job, now_s) == "dead"]

    def redrive(self, job_id, now_s):
        job = self.jobs.get(job_id)
        if job is None or self.state(job, now_s) != "dead":
            return False
        job.used = 0
        self.save(job)
        return True
