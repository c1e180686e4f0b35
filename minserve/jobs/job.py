r"""What a job is: plain data, its states, and what its kind promises.

           enqueue                      claim                      complete
    ---------------------> QUEUED ----------------> RUNNING -------------------> DONE
          (run_at > now) \   ^                       |  |   \ budget spent
                          v  | run_at is reached     |  |    \ or permanent ---> DEAD --redrive--+
                        WAITING <--------------------+  |                          (to QUEUED) <-+
                               failed or lease lost     |
                                                        +--- cancel -----------> CANCELLED
          (cancel and deadline end a job in any of the three open states)  ----> EXPIRED

A job has exactly one terminal state, unless a dead one is redriven.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import rfc8785

from minserve.errors import ConfigError, InvalidRequest, MinserveError
from minserve.request import Identity


class State(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        return self not in OPEN


OPEN = (State.QUEUED, State.WAITING, State.RUNNING)


class JobNotFound(MinserveError):
    """No job of that id is within reach of who asks; whether it exists is not said."""


class KeyReused(MinserveError):
    """The idempotency key already stands for another body."""


class QueueFull(MinserveError):
    """The queue is at its bound. Come back after `retry_after_s` seconds."""

    def __init__(self, message: str, hint: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class LostLease(MinserveError):
    """The fencing token is not the job's current one: nothing was written."""


class ContractBroken(MinserveError):
    """The result is not what the job's kind promises: nothing was written."""


class StoreUnavailable(MinserveError):
    """The database did not answer. Whether a commit in flight took place is unknown: ask again."""


class JobFailed(Exception):
    """Raised by a handler to fail its attempt and say how.

    Args:
        reason: One line for whoever inspects the job.
        retry_after_s: The earliest next attempt, as a `Retry-After` asks; jitter is added.
        is_permanent: No attempt will do better; the job is dead at once.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0, is_permanent: bool = False) -> None:
        super().__init__(reason, retry_after_s, is_permanent)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_permanent = is_permanent


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter (Brooker, AWS 2015): uniform in [0, window)."""

    base_s: float = 1.0
    cap_s: float = 300.0

    def delay_s(self, attempts: int, draw: float, retry_after_s: float = 0.0) -> float:
        """Wait after the attempt numbered `attempts`; `draw` is uniform in [0, 1)."""
        window_s = min(self.cap_s, self.base_s * 2 ** min(attempts - 1, 60))
        return retry_after_s + draw * window_s


def accept(value: Any) -> Any:
    """A check that finds nothing wrong."""
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job: who works on it and what goes in and comes out.

    Args:
        name: As clients name it.
        handler: `module:function`, imported by workers alone; called as `handler(payload, ctx)`.
        check_payload: Raises `ValueError` (pydantic's is one) for a payload it cannot use.
        check_result: The result contract; raises `ValueError` for a result that breaks it.
        contract: The contract in words or as a JSON schema, for the client.
        owner: Who looks after this kind's dead letters.
        max_attempts: Retry budget, the first attempt included. Attempts are counted at claim.
        backoff: How long to wait between attempts.
    """

    name: str
    handler: str
    check_payload: Callable[[Any], Any] = accept
    check_result: Callable[[Any], Any] = accept
    contract: Any = "any JSON value"
    owner: str = "operator"
    max_attempts: int = 5
    backoff: Backoff = Backoff()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts is {self.max_attempts}", "allow at least 1 attempt")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a client asks for it. Times are seconds from acceptance, on the store's clock.

    Args:
        kind: The name of a `Kind`.
        payload: Any JSON value.
        key: The idempotency key; equal keys of one identity mean the same job.
        priority: Higher runs first, strictly.
        delay_s: Not before.
        deadline_s: Of no use after; the job then ends as EXPIRED.
        batch: The batch it is part of, and its place there.
    """

    kind: str
    payload: Any = None
    key: str | None = None
    priority: int = 0
    delay_s: float = 0.0
    deadline_s: float | None = None
    batch: str | None = None
    custom_id: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and not 1 <= len(self.key) <= 255:
            raise InvalidRequest(
                f"an idempotency key has {len(self.key)} characters", "use 1 to 255"
            )
        if not -100 <= self.priority <= 100:
            raise InvalidRequest(f"priority is {self.priority}", "use -100 to 100")
        if not 0 <= self.delay_s < float("inf"):
            raise InvalidRequest(f"delay_s is {self.delay_s}", "use 0 or more seconds")
        if self.deadline_s is not None and not 0 < self.deadline_s < float("inf"):
            raise InvalidRequest(f"deadline_s is {self.deadline_s}", "use more than 0 seconds")

    @property
    def digest(self) -> str:
        """SHA-256 of all that is asked, as canonical JSON (RFC 8785); the key is bound to it."""
        asked = [self.kind, self.payload, self.priority, self.delay_s, self.deadline_s]
        return hashlib.sha256(canonical(asked)).hexdigest()


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785). Raises `InvalidRequest` for what JSON cannot hold."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"not a JSON value: {error}", "send plain JSON") from None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the store has it. Times are seconds since 1970 on the store's clock.

    `token` is the fencing token of the latest claim: it grows with every claim, and only its
    holder can renew, complete or fail the job. `result` is there when DONE; `reason` says why the
    latest attempt, or the job, failed.
    """

    id: str
    identity: Identity
    kind: str
    state: State
    payload: Any
    priority: int = 0
    key: str | None = None
    batch: str | None = None
    custom_id: str | None = None
    created_at: float = 0.0
    run_at: float = 0.0
    deadline_at: float | None = None
    attempts: int = 0
    max_attempts: int = 1
    token: int = 0
    worker: str | None = None
    lease_until: float | None = None
    completed: int = 0
    total: int = 0
    result: Any = None
    reason: str | None = None
    owner: str = ""
    finished_at: float | None = None
    keep_until: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A claim on a job: the right to change it for as long as `token` is its latest.

    `is_ahead`: it waits for its turn with its worker, and does not count as an attempt yet.
    """

    job: Job
    token: int
    until: float
    is_ahead: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed: which one, when and why."""

    token: int
    failed_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker says when it renews: still at it, `completed` of `total` parts are ready.

    A job that was claimed ahead counts its attempt once it `is_started`.
    """

    job_id: str
    token: int
    completed: int = 0
    total: int = 0
    is_started: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs are in each state, and the age in seconds of the oldest that could run."""

    by_state: Mapping[str, int] = field(default_factory=dict)
    oldest_queued_s: float = 0.0

    @property
    def num_open(self) -> int:
        return sum(self.by_state.get(state, 0) for state in OPEN)
