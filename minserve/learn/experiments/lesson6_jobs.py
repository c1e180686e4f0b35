"""Lesson 6's experiments on durable jobs: killed workers, effects, the dead, and a full queue."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minserve.cli.demo import STAGES, life
from minserve.jobs.job import Backoff, Kind, QueueFull, State, Submission
from minserve.jobs.store import JobStore
from minserve.jobs.worker import Worker
from minserve.learn.parts_of_load import install_job_lease
from minserve.request import Identity

Part = Callable[..., Any]
WHO = Identity("northstar", "nina")
LEASE_S = 10.0


def lives(part: Part) -> list[dict[str, Any]]:
    """One job for each moment at which its worker may die, under the leases of `part`."""
    return [life(stage, lambda store: install_job_lease(store, part)) for stage in STAGES]


LIVES_HEADING = ("the worker dies", "attempts", "the job is", "in the ledger")


def life_row(told: dict[str, Any]) -> tuple[str, ...]:
    """Cells under `LIVES_HEADING`."""
    ledger = ", ".join(f"{name} (attempt {token})" for name, token in told["ledger"].items())
    return told["stage"], str(told["attempts"]), told["state"], ledger


@contextmanager
def queue(part: Part, **options: Any) -> Iterator[tuple[Any, list[float]]]:
    """A real store, in a folder of its own, under the leases of `part`, and its clock."""
    now = [0.0]
    kind = Kind("report", "none:none", max_attempts=3, backoff=Backoff(1.0))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        store = JobStore(url, [kind], clock=lambda: now[0], draw=lambda: 0.5, **options)
        yield install_job_lease(store, part), now
        store.close()


class MailServer:
    """Somebody else's machine. With `honours_keys` a key that it knows changes nothing."""

    def __init__(self, honours_keys: bool = False) -> None:
        self.honours_keys = honours_keys
        self.delivered: list[str] = []
        self._keys: set[str] = set()

    def send(self, text: str, key: str) -> None:
        """Deliver `text`."""
        if not (self.honours_keys and key in self._keys):
            self.delivered.append(text)
        self._keys.add(key)


def crash_after_the_effect(part: Part, server: MailServer, in_ledger: bool = False) -> tuple:
    """The worker sends a mail and dies before it can say so; a second worker does the job again.

    `in_ledger`: the handler only notes the mail, in one commit with its result; what lies in the
    ledger is sent after that. Returns (attempts, mails delivered, state).
    """
    with queue(part) as (store, now):
        job = store.enqueue(WHO, Submission("report", {}, "monday"))
        is_first = True
        while store.get(WHO, job.id).state is not State.DONE:
            now[0] += 1.0
            for lease in store.claim("w1", lease_s=LEASE_S):
                if not in_ledger:
                    server.send("your report is ready", job.id)
                if not is_first:
                    store.complete(lease, "done", {"mail": "your report is ready"})
                is_first = False  # the first dies here: done, and not acknowledged
        if in_ledger:
            for text in store.ledger(WHO, job.id).values():
                server.send(text, job.id)
        found = store.get(WHO, job.id)
        return found.attempts, len(server.delivered), found.state.value


def poison(part: Part) -> list[tuple[str, ...]]:
    """A job that kills whoever works on it: (second, what happened)."""
    rows: list[tuple[str, ...]] = []
    with queue(part) as (store, now):
        job = store.enqueue(WHO, Submission("report", {}))
        while store.get(None, job.id).state is not State.DEAD:
            for lease in store.claim("w1", lease_s=LEASE_S):
                rows.append((f"{now[0]:g}", f"attempt {lease.job.attempts} kills its worker"))
            now[0] += 1.0
            store.sweep()
        [dead] = store.list(None, state=State.DEAD)
        rows.append((f"{now[0]:g}", f"dead, owner: {dead.owner}, because: {dead.reason}"))
        store.redrive(None, job.id)
        rows.append((f"{now[0]:g}", f"redriven by hand: {store.get(None, job.id).state}"))
    return rows


def full(part: Part, max_open: int = 5) -> str:
    """What the sixth submission to a queue of five hears."""
    with queue(part, max_open=max_open, max_open_per_tenant=max_open) as (store, _):
        for number in range(max_open):
            store.enqueue(WHO, Submission("report", number))
        try:
            store.enqueue(WHO, Submission("report", "one more"))
        except QueueFull as refusal:
            return f"{refusal} (Retry-After: {refusal.retry_after_s:.0f} s)"
    return "accepted"


def work_off(part: Part, count: int = 4) -> tuple[int, int]:
    """Real worker processes take `count` naps through `part`: (jobs done, times it was asked)."""
    asked = 0

    derived: Any = part  # a class that only the caller knows

    class Counted(derived):
        def claim(self, now_s: float) -> Any:
            nonlocal asked
            asked += 1
            return super().claim(now_s)

    kind = Kind("nap", "minserve.jobs.nap:nap")
    with tempfile.TemporaryDirectory() as folder:
        store = install_job_lease(JobStore(f"sqlite:///{folder}/jobs.db", [kind]), Counted)
        jobs = [store.enqueue(WHO, Submission("nap", {"seconds": 0.01})) for _ in range(count)]
        Worker(store, concurrency=2).run(lambda: not store.counts().num_open)
        done = sum(store.get(WHO, job.id).state is State.DONE for job in jobs)
        store.close()
    return done, asked
