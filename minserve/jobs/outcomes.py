"""What comes of a claimed job: its result, its effects, or its failure; each under its token.

The result and the effects ledger are one commit, and the ledger takes each key of a job once. Many
jobs may share that commit (the fsync is what costs); each is in it whole or not at all.

Equivalent inputs: one effect key of one job. Valid as long as the job. Scope: its attempts. Order:
the first to commit stands. Of a cancelled job what is committed stays, and nothing more is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sqlalchemy import Connection, Row, bindparam, case, select, update

from minserve.errors import InvalidRequest, MinserveError
from minserve.jobs.database import Database
from minserve.jobs.job import Backoff, ContractBroken, Kind, Lease, LostLease, State, canonical
from minserve.jobs.rows import KEEP_S, NOW, STARTED, ended, held, in_time
from minserve.jobs.schema import effects, failures, jobs


@dataclass(frozen=True, slots=True)
class Finished:
    """What a handler came to: the result, and the effects that are to be recorded with it."""

    lease: Lease
    result: Any = None
    effects: Mapping[str, Any] = field(default_factory=dict)


class Outcomes(Database):
    """Ends attempts. Nothing is written for whoever has lost the job meanwhile."""

    kinds: Mapping[str, Kind]
    _draw: Callable[[], float]

    def complete(
        self,
        lease: Lease,
        result: Any = None,
        effects: Mapping[str, Any] | None = None,
        tx: Connection | None = None,
    ) -> None:
        """Commit result and effects together, or neither. Repeating it changes nothing.

        An effect whose key the job has in its ledger already stays as it was first written.

        Raises `ContractBroken` (the kind refuses the result) and `LostLease` (the token is old, or
        the job was cancelled or has expired).
        """
        (error,) = self.complete_many([Finished(lease, result, effects or {})], tx)
        if error is not None:
            raise error

    def complete_many(
        self, finished: Sequence[Finished], tx: Connection | None = None
    ) -> list[MinserveError | None]:
        """Commit several jobs at once; for each, in order, None or why nothing of it was written.

        As `complete` does for each: one that breaks its contract or has lost its lease does not
        touch the others.
        """
        answers: list[MinserveError | None] = [None] * len(finished)
        ready: dict[int, tuple[Lease, dict[str, Any], list[dict[str, Any]]]] = {}
        for number, one in enumerate(finished):
            try:
                ready[number] = one.lease, self._result(one), _ledger(one.lease, one.effects)
            except MinserveError as error:
                answers[number] = error
        if not ready:
            return answers
        with self.transaction(tx) as conn:
            now = self.now_s(conn)
            there = locked(conn, [lease for lease, *_ in ready.values()])
            results, ledger = [], []
            for number, (lease, result, its_effects) in ready.items():
                row = there.get(lease.job.id)
                if is_held(row, lease) and (row.deadline_at is None or row.deadline_at > now):
                    results.append(result | {"now": now, "keep_s": self.keep_s})
                    ledger += [effect | {"committed_at": now} for effect in its_effects]
                elif row is None or (row.state, row.token) != (State.DONE.value, lease.token):
                    answers[number] = _lost(lease, row)
                # else a commit whose acknowledgement was lost is repeated: it is done
            if results:
                conn.execute(_DONE, results)
            self._record(conn, ledger)
        return answers

    def _result(self, one: Finished) -> dict[str, Any]:
        kind = self.kinds.get(one.lease.job.kind)
        try:
            if kind:
                kind.check_result(one.result)
            text = canonical(one.result).decode()
        except (ValueError, InvalidRequest) as error:
            what = " ".join(str(error).split())[:500]
            raise ContractBroken(
                f"the result of job {one.lease.job.id} breaks its contract: {what}"
            ) from None
        return {"of_job": one.lease.job.id, "of_token": one.lease.token, "of_result": text}

    def effect(self, lease: Lease, key: str, value: Any, tx: Connection | None = None) -> Any:
        """Commit one effect now, ahead of the result; returns the value that stands in the ledger.

        That is an earlier attempt's, if one came so far. Raises `LostLease`.
        """
        ledger = _ledger(lease, {key: value})
        with self.transaction(tx) as conn:
            touching = update(jobs).where(held(lease.job.id, lease.token))
            if not conn.execute(touching.values(attempts=STARTED)).rowcount:
                raise _lost(lease)
            now = self.now_s(conn)
            self._record(conn, [effect | {"committed_at": now} for effect in ledger])
            mine = (effects.c.job_id == lease.job.id) & (effects.c.key == key)
            return json.loads(conn.execute(select(effects.c.value).where(mine)).scalar_one())

    def _record(self, conn: Connection, ledger: list[dict[str, Any]]) -> None:
        if ledger:
            conn.execute(self.insert(effects).on_conflict_do_nothing(), ledger)

    def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        retry_after_s: float = 0.0,
        is_permanent: bool = False,
        tx: Connection | None = None,
    ) -> State:
        """End an attempt: WAITING for the next one, or DEAD. Returns which. Raises `LostLease`."""
        with self.transaction(tx) as conn:
            its = select(*FAILING).where(held(lease.job.id, lease.token)).with_for_update()
            row = conn.execute(its).first()
            if row is None:
                raise _lost(lease)
            return self.end_attempt(
                conn, row, self.now_s(conn), reason, retry_after_s, is_permanent
            )

    def end_attempt(
        self,
        conn: Connection,
        row: Row,
        now: float,
        reason: str,
        retry_after_s: float = 0.0,
        is_permanent: bool = False,
    ) -> State:
        """The attempt of `row` (locked, its columns `FAILING`) failed; returns the new state."""
        reason = reason[:2000]
        attempts = max(1, row.attempts)
        if is_permanent or attempts >= row.max_attempts:
            state = State.DEAD
            values = ended(state, now, self.keep_s)
        else:
            state = State.WAITING
            backoff = self.kinds[row.kind].backoff if row.kind in self.kinds else Backoff()
            delay_s = backoff.delay_s(attempts, self._draw(), retry_after_s)
            values = {"state": state.value, "run_at": now + delay_s, "lease_until": None}
        values |= {"attempts": attempts, "reason": reason}
        conn.execute(update(jobs).where(jobs.c.id == row.id).values(**values))
        conn.execute(
            failures.insert().values(job_id=row.id, token=row.token, failed_at=now, reason=reason)
        )
        return state


FAILING = (jobs.c.id, jobs.c.kind, jobs.c.token, jobs.c.attempts, jobs.c.max_attempts)
"""What `end_attempt` needs to know of a job."""


def locked(conn: Connection, leases: Sequence[Any]) -> dict[str, Row]:
    """How the jobs of leases are now; nobody else changes them until this transaction ends."""
    ids = sorted({getattr(lease, "job_id", None) or lease.job.id for lease in leases})
    rows: dict[str, Row] = {}
    for start in range(0, len(ids), 500):
        for row in conn.execute(_LOCKED, {"ids": ids[start : start + 500]}):
            rows[row.id] = row
    return rows


def is_held(row: Row | None, lease: Any) -> TypeGuard[Row]:
    """The fence: the lease's token is the job's latest, and the job is still running."""
    return row is not None and (row.state, row.token) == (State.RUNNING.value, lease.token)


def _ledger(lease: Lease, its_effects: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "job_id": lease.job.id,
            "key": key,
            "value": canonical(value).decode(),
            "token": lease.token,
        }
        for key, value in its_effects.items()
    ]


def _lost(lease: Lease, now_is: Row | None = None) -> LostLease:
    found = f"; it is {now_is.state} under token {now_is.token}" if now_is else ""
    return LostLease(
        f"job {lease.job.id} is no longer held by token {lease.token}{found}",
        "nothing was written; drop the work",
    )


# -- statements, made once: to build one takes longer than to run it

# NOTE: by id, so that two transactions which lock several of the same jobs do not wait crosswise.
_LOCKED = (
    select(jobs.c.id, jobs.c.state, jobs.c.token, jobs.c.deadline_at)
    .where(jobs.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(jobs.c.id)
    .with_for_update()
)
_DONE = (
    update(jobs)
    .where(held(bindparam("of_job"), bindparam("of_token")), in_time(NOW))
    .values(
        **ended(State.DONE, NOW, KEEP_S),
        result=bindparam("of_result"),
        completed=case((jobs.c.total > 0, jobs.c.total), else_=jobs.c.completed),
        attempts=STARTED,
        reason=None,
    )
)
