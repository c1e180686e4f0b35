"""The job store: every change of a job's state, each one transaction.

SQLite (one machine, WAL) or PostgreSQL (many workers at once, SKIP LOCKED), by URL. What keeps a
job effective once: a claim gives it a fresh fencing token, and whatever its holder writes later
names that token in its WHERE; the result and the effects ledger are one commit.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable

from minserve.jobs import schema
from minserve.jobs.claims import Claims
from minserve.jobs.desk import Desk
from minserve.jobs.intake import Intake
from minserve.jobs.job import Kind


class JobStore(Intake, Claims, Desk):
    """Jobs in a database. Safe to share between threads; processes each make their own.

    Every method is one transaction, or part of the caller's where `tx` is given (see
    `transaction`); whatever raises has changed nothing. All may raise `StoreUnavailable`.

    Args:
        url: `sqlite:///path/to/jobs.db` or `postgresql://user@host/name`.
        kinds: What jobs there may be. An unknown kind is refused at `enqueue`.
        clock: Seconds, for tests; the database's own clock otherwise.
        draw: Uniform in [0, 1), for the jitter of retries.
        new_id: A fresh id for each job.
        max_open: Most jobs that may be unfinished at once; beyond, `QueueFull`.
        max_open_per_tenant: The same for each tenant; by default half of `max_open`.
        keep_s: How long a finished job and its result are kept; dead ones until they are redriven.
    """

    def __init__(
        self,
        url: str,
        kinds: Iterable[Kind] = (),
        *,
        clock: Callable[[], float] | None = None,
        draw: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        max_open: int = 10_000,
        max_open_per_tenant: int | None = None,
        keep_s: float = 7 * 86_400,
    ) -> None:
        super().__init__(url, kinds, clock, keep_s, new_id, max_open, max_open_per_tenant)
        self._draw = draw
        with self.transaction() as conn:
            schema.migrate(conn)
