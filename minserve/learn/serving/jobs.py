"""Durable jobs whose leases a learner's part decides, worked on in the server itself."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

from minserve.errors import MinserveError
from minserve.jobs.job import Job
from minserve.jobs.store import JobStore
from minserve.jobs.worker import Worker
from minserve.learn.leased_store import LeasedStore
from minserve.learn.leases import JobLease, JobLeasePart, Record
from minserve.learn.serving.guard import PartFailed
from minserve.learn.serving.shelf import Shelf

log = logging.getLogger("minserve.parts")
NAME = "job_lease"


class ServedStore(LeasedStore):
    """A `LeasedStore` counted for the job; when the part fails, the reference decides."""

    def __init__(self, store: JobStore, shelf: Shelf) -> None:
        super().__init__(store, lambda **limits: _Queue(shelf, limits))
        self._shelf = shelf

    def _asked(self, record: Record, job: Job, lease_s: float) -> JobLeasePart:
        ledger = self._shelf.ledger
        passage = ledger.find(job.id) or ledger.begin(job.id, 0.0)
        passage.state = "job"
        if self._shelf.is_mine(NAME):
            ledger.note(NAME, job.id)
        return super()._asked(record, job, lease_s)


class _Queue:
    """The learner's queue, or the reference's over the same records once that has failed."""

    def __init__(self, shelf: Shelf, limits: dict[str, Any]) -> None:
        self._shelf, self._limits = shelf, limits
        self.jobs: dict[str, Record] = {}

    def __getattr__(self, method: str) -> Any:
        def decide(*told: Any) -> Any:
            shelf = self._shelf
            if shelf.is_mine(NAME):
                try:
                    return shelf.guard.call(NAME, self._ask, shelf.books[NAME].target, method, told)
                except PartFailed:
                    pass  # written down; no client waits for this very answer
            return self._ask(JobLease, method, told)

        return decide

    def _ask(self, cls: type, method: str, told: tuple) -> Any:
        queue = cls(**self._limits)
        queue.jobs.update(self.jobs)
        answer = getattr(queue, method)(*told)
        self.jobs.update(queue.jobs)
        return answer


def start_worker(store: ServedStore, url: str) -> Worker:
    """A worker on a thread of its own, whose handlers ask the server at `url`."""
    worker = Worker(
        cast(JobStore, store),  # in all else it is one
        concurrency=1,
        setup="minserve.cli.engines:connect",
        settings={"model": "none", "url": url, "api_key": None},
    )

    def run() -> None:
        try:
            worker.run()
        except MinserveError as error:
            log.error("the worker has stopped: %s", error)

    threading.Thread(target=run, name="worker", daemon=True).start()
    return worker
