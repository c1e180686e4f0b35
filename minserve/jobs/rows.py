"""Rows of jobs: how one becomes a `Job`, and the conditions that the store's statements share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    Double,
    RowMapping,
    Select,
    bindparam,
    case,
    func,
    literal,
    select,
    text,
    update,
)

from minserve.jobs import schema
from minserve.jobs.job import Job, State
from minserve.jobs.schema import jobs, lanes
from minserve.request import Identity

Fields = Mapping[str, Any] | RowMapping
"""A row by column name: as it was read, or as it is to be written."""

Scope = Identity | None
"""Who asks: an identity reaches its own jobs only; None, the store's operator, sees all."""

# NOTE: literals, not parameters: a planner must see that a partial index covers the condition.
QUEUED = text("jobs.state = 'queued'")
WAITING = text("jobs.state = 'waiting'")
RUNNING = text("jobs.state = 'running'")
DEAD = text("jobs.state = 'dead'")
OPEN = text(f"jobs.state IN {schema.OPEN}")

AT_ONCE = 500
"""Most jobs that one statement of a sweep or a purge takes up."""

STARTED = case((jobs.c.attempts < 1, 1), else_=jobs.c.attempts)
"""The attempts of a job that is known to have started: one that was claimed ahead counts now."""

NOW, KEEP_S = bindparam("now", type_=Double), bindparam("keep_s", type_=Double)


def mine(scope: Scope):
    """The partition is chosen before anything is looked up."""
    if scope is None:
        return literal(True)
    return (jobs.c.tenant == scope.tenant) & (jobs.c.subject == scope.subject)


def held(job_id: Any, token: Any):
    """The fence: this token is the job's latest, and the job is still running."""
    return (jobs.c.id == job_id) & (jobs.c.token == token) & RUNNING


def in_time(now: Any):
    """Its deadline, if it has one, is yet to come."""
    return (jobs.c.deadline_at.is_(None)) | (jobs.c.deadline_at > now)


def ended(state: State, now: Any, keep_s: Any) -> dict[str, Any]:
    """The columns of a job that has come to a terminal state."""
    return {
        "state": state.value,
        "finished_at": now,
        # A dead letter is kept until somebody has looked at it.
        "keep_until": None if state is State.DEAD else now + keep_s,
        "lease_until": None,
    }


def unlocked(*where: Any) -> Select:
    """Ids of jobs that nobody else is changing right now."""
    return select(jobs.c.id).where(*where).with_for_update(skip_locked=True)


def updating(picked: Select):
    """An update of the picked jobs."""
    # NOTE: a CTE, for PostgreSQL may run a sub-select with LIMIT more than once.
    chosen = picked.cte("picked")
    return update(jobs).where(jobs.c.id == chosen.c.id)


def turn_being_served(priority: Any):
    """The earliest turn in the queue at a priority; the latest ever given if nobody queues."""
    other = jobs.alias("other")
    first = select(func.min(other.c.turn)).where(
        text("other.state = 'queued'"), other.c.priority == priority
    )
    last = select(func.max(lanes.c.turn)).where(lanes.c.priority == priority)
    return func.coalesce(first.scalar_subquery(), last.scalar_subquery(), 0)


def rejoined_turn():
    """A job that joins the queue later than it got its turn is not ahead of those served now."""
    served = turn_being_served(jobs.c.priority)
    return case((jobs.c.turn > served, jobs.c.turn), else_=served)


def as_job(row: Fields) -> Job:
    """A row, or what became one, as plain data."""
    get = row.get
    result = get("result")
    return Job(
        id=row["id"],
        identity=Identity(row["tenant"], row["subject"]),
        kind=row["kind"],
        state=State(row["state"]),
        payload=json.loads(row["payload"]),
        priority=row["priority"],
        key=row["idempotency_key"],
        batch=row["batch"],
        custom_id=row["custom_id"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        deadline_at=row["deadline_at"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        token=row["token"],
        worker=get("worker"),
        lease_until=get("lease_until"),
        completed=row["completed"],
        total=row["total"],
        result=None if result is None else json.loads(result),
        reason=get("reason"),
        owner=row["owner"],
        finished_at=get("finished_at"),
        keep_until=get("keep_until"),
    )
