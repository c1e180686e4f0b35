"""The suite of lesson 6's `job_lease` accepts right parts and names each mistake by its rule."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from minserve.learn import leases
from minserve.learn.checker import load
from minserve.learn.conformance import BROKEN, KEPT, examine, suite_of

HEAD = "from minserve.learn.leases import DEAD, DONE, QUEUED, RUNNING, LeaseBase, Record\n\n"
RIGHT = HEAD + inspect.getsource(leases.JobLease).replace("(self, now_s: float) -> tuple[str, int] | None", "(self, now_s)")  # noqa: E501
RIGHT = RIGHT.replace(": Any", "")
OTHER = HEAD + textwrap.dedent("""
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
""")
HELD = 'job.state == RUNNING and job.token == token'
WRONG = {
    "marks nothing": ("job.state = RUNNING", "pass", "one_holder", "leased until 10"),
    "the last first": ("for job in self.jobs.values():\n            if job.state == QUEUED", "for job in reversed(self.jobs.values()):\n            if job.state == QUEUED", "in_order", "first to arrive"),  # noqa: E501
    "lost for ever": ("job.lease_until_s <= now_s", "False", "lost_lease_returns", "for dead"),
    "one token for all": ("job.token += 1", "job.token = 1", "fresh_token", "larger token"),
    "counts nothing": ("job.attempts += 1", "pass", "counted_at_claim", "killed 2 workers"),
    "renews nothing": ("if job:\n            job.lease_until_s", "if False:\n            job.lease_until_s", "renewed_lease_holds", "until 18"),  # noqa: E501
    "adds up": ("if job:\n            job.lease_until_s =", "if job:\n            job.lease_until_s +=", "renewal_starts_now", "counts from now"),  # noqa: E501
    "no fence": (HELD, "job.state == RUNNING", "zombie_cannot_renew", "is old"),
    "completes twice": (HELD, "job.token == token", "completes_once", "done already"),
    "fails for ever": ("DEAD if job.attempts >= self.max_attempts else QUEUED", "QUEUED", "counted_at_claim", "killed 2 workers"),  # noqa: E501
}


def verdicts(text):
    return examine(suite_of("job_lease"), load("JobLease", text), "<your cell>")


@pytest.mark.parametrize("text", [RIGHT, OTHER])
def test_right_parts_are_accepted_however_they_are_written(text):
    assert [v for v in verdicts(text) if v.state != KEPT] == []


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake_is_named_by_the_rule_that_it_breaks(mistake):
    before, after, rule, message = WRONG[mistake]
    assert before in RIGHT
    first = next(v for v in verdicts(RIGHT.replace(before, after)) if v.state != KEPT)
    assert (first.rule, first.state) == (rule, BROKEN) and message in first.what
    assert first.example and first.hint
