"""The queues that a learner's regression test of lab 6 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder.harness import RemoteError
from autograder.notebooks import source_cells
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

LAB = "lab6_paid_twice"
METHODS = {
    "queue": {
        "submit": ["key", "body", "now_s"],
        "claim": ["worker", "now_s"],
        "renew": ["job_id", "token", "now_s"],
        "complete": ["job_id", "token", "result", "payments", "now_s"],
        "fail": ["job_id", "token", "reason", "now_s"],
        "status": ["job_id", "now_s"],
        "dead": ["now_s"],
        "redrive": ["job_id", "now_s"],
        "restart": [],
    },
    "store": {"paid": [], "kill_at_commit": ["number", "before"]},
}
MAKE = {
    "name": "make_queue",
    "methods": {"__call__": ["lease_s", "max_attempts"]},
    "properties": [],
    "emptied": {},
}
WRITES = """\
        writes = [["ledger", f"{job_id} {name}", each] for name, each in payments.items()]
        self.store.commit([*writes, ["jobs", job_id, job]])
"""
TWO_COMMITS = """\
        for name, each in payments.items():
            self.store.commit([["ledger", f"{job_id} {token} {name}", each]])
        self.store.commit([["jobs", job_id, job]])
"""
FAULTY = {
    "a job forgotten": (
        "takes a job whose worker has died for done",
        "            return self.after_attempt(job)\n",
        '            return "done"\n',
    ),
    "a zombie": (
        "lets a worker commit a job that is another's by now",
        'job["token"] != token or self.state_of',
        "self.state_of",
    ),
    "two commits": (
        "pays in one commit and notes that the job is done in the next",
        WRITES,
        TWO_COMMITS,
    ),
}
SUBJECTS = Subjects(LAB, "lab6-setup", "lab6-queue", "PaymentQueue", FAULTY)


@lru_cache
def namespace() -> dict[str, Any]:
    """What the notebook's setup and bench define: `Store`, `bench`, `replay_weekend`."""
    made: dict[str, Any] = {"__name__": __name__}
    for cell in ("lab6-setup", "lab6-bench"):
        exec(compile(source_cells(LAB)[cell], f"<{cell}>", "exec"), made)
    return made


def make_bench(queue_class: type, lease_s: Any = 30, max_attempts: Any = 3) -> dict[str, Any]:
    """A process that runs a fresh queue, and its store, as in the public tests."""
    if type(lease_s) not in (int, float) or not 0 < lease_s < 1e9:
        raise RemoteError("ValueError", f"a lease in seconds, not {str(lease_s)[:40]}")
    if type(max_attempts) is not int or not 0 < max_attempts < 1000:
        raise RemoteError("ValueError", f"a number of attempts, not {str(max_attempts)[:40]}")
    queue, store = namespace()["bench"](queue_class)(lease_s, max_attempts)
    return {"queue": queue, "store": store}


INTERFACE = Interface(MAKE, make_bench, METHODS, {})
