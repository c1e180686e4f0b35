"""Batches: a JSONL file of requests becomes one job a line, all accepted or none.

A batch has no state of its own beside a cancellation: what it is follows from its jobs.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row, select, update

from minserve.errors import InvalidRequest
from minserve.jobs.job import OPEN, JobNotFound, State, Submission
from minserve.jobs.schema import batches, files, jobs
from minserve.jobs.store import JobStore
from minserve.request import Identity

MAX_LINES = 5_000
KIND_OF = {"/v1/chat/completions": "chat_completion"}
WINDOW_S = {"24h": 86_400.0}


def add_file(store: JobStore, identity: Identity, name: str, content: bytes) -> dict[str, Any]:
    """Keep a file. Raises `InvalidRequest` unless it is UTF-8."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file is not UTF-8: {error}") from None
    row = {"id": f"file-{store.new_id()}", "name": name, "purpose": "batch", "content": text}
    with store.transaction() as tx:
        tx.execute(files.insert().values(**row, **_owner(identity), created_at=store.now_s(tx)))
    return file(store, identity, row["id"])


def file(store: JobStore, identity: Identity, file_id: str) -> dict[str, Any]:
    """About a file, in OpenAI's words."""
    row = _find(store, identity, files, file_id)
    return {
        "id": row.id,
        "object": "file",
        "bytes": len(row.content.encode()),
        "created_at": int(row.created_at),
        "filename": row.name,
        "purpose": row.purpose,
        "status": "processed",
    }


def content(store: JobStore, identity: Identity, file_id: str) -> str:
    """What is in a file. `output-B` and `errors-B` are those of batch B, made from its jobs."""
    which, _, batch_id = file_id.partition("-")
    if which not in ("output", "errors"):
        return _find(store, identity, files, file_id).content
    _find(store, identity, batches, batch_id)
    lines = []
    for job in store.list(identity, batch=batch_id, limit=MAX_LINES):
        if job.state is State.DONE and which == "output":
            response = {"status_code": 200, "request_id": job.id, "body": job.result}
            lines.append({"id": job.id, "custom_id": job.custom_id, "response": response})
        elif job.state.is_terminal and job.state is not State.DONE and which == "errors":
            error = {"code": job.state.value, "message": job.reason or f"it is {job.state}"}
            lines.append({"id": job.id, "custom_id": job.custom_id, "error": error})
    return "".join(json.dumps(line) + "\n" for line in lines)


def create(
    store: JobStore,
    identity: Identity,
    input_file_id: str,
    endpoint: str,
    completion_window: str = "24h",
    metadata: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Accept one job for each line, in one transaction with the batch. Raises `InvalidRequest`."""
    if endpoint not in KIND_OF:
        raise InvalidRequest(f"endpoint {endpoint!r}", f"known: {', '.join(KIND_OF)}")
    if completion_window not in WINDOW_S:
        raise InvalidRequest(f"completion_window {completion_window!r}", "use 24h")
    source = _find(store, identity, files, input_file_id)
    batch_id, window_s = f"batch_{store.new_id()}", WINDOW_S[completion_window]
    wanted = _submissions(source.content, endpoint, batch_id, window_s)
    with store.transaction() as tx:
        now = store.now_s(tx)
        row = {
            "id": batch_id,
            "input_file": input_file_id,
            "endpoint": endpoint,
            "about": json.dumps({"metadata": metadata, "completion_window": completion_window}),
            "created_at": now,
            "deadline_at": now + window_s,
        }
        tx.execute(batches.insert().values(**row, **_owner(identity)))
        store.enqueue_many(identity, wanted, tx)
    return get(store, identity, batch_id)


def _submissions(text: str, endpoint: str, batch: str, window_s: float) -> list[Submission]:
    wanted, seen = [], set()
    for number, line in enumerate(filter(str.strip, text.split("\n")), start=1):
        try:
            entry = json.loads(line)
            custom_id, url, body = entry["custom_id"], entry["url"], entry["body"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"line {number} is no request: {error}",
                'write {"custom_id": ..., "method": "POST", "url": ..., "body": ...}',
            ) from None
        if url != endpoint or entry.get("method", "POST") != "POST":
            raise InvalidRequest(f"line {number} asks for {url!r}, the batch for {endpoint!r}")
        if not isinstance(custom_id, str) or custom_id in seen:
            raise InvalidRequest(
                f"line {number}: custom_id {custom_id!r} is used before or no text"
            )
        seen.add(custom_id)
        wanted.append(
            Submission(
                KIND_OF[endpoint], body, deadline_s=window_s, batch=batch, custom_id=custom_id
            )
        )
    if not 1 <= len(wanted) <= MAX_LINES:
        raise InvalidRequest(f"the file has {len(wanted)} requests", f"send 1 to {MAX_LINES:,}")
    return wanted


def get(store: JobStore, identity: Identity, batch_id: str) -> dict[str, Any]:
    """A batch in OpenAI's words."""
    return _shown(store, identity, _find(store, identity, batches, batch_id))


def listed(store: JobStore, identity: Identity, limit: int) -> list[dict[str, Any]]:
    """The batches of an identity, the newest first."""
    with store.reading() as conn:
        wanted = select(batches).where(*_mine(batches, identity))
        rows = conn.execute(wanted.order_by(batches.c.created_at.desc()).limit(limit)).all()
    return [_shown(store, identity, row) for row in rows]


def cancel(store: JobStore, identity: Identity, batch_id: str) -> dict[str, Any]:
    """End all of its jobs that are still open."""
    _find(store, identity, batches, batch_id)
    with store.transaction() as tx:
        now = store.now_s(tx)
        of_batch = (jobs.c.batch == batch_id) & jobs.c.state.in_([state.value for state in OPEN])
        for job_id in tx.scalars(select(jobs.c.id).where(of_batch)).all():
            store.cancel(identity, job_id, tx)
        tx.execute(update(batches).where(batches.c.id == batch_id).values(cancelled_at=now))
    return get(store, identity, batch_id)


def _shown(store: JobStore, identity: Identity, row: Row) -> dict[str, Any]:
    counts = store.counts(identity, batch=row.id)
    total, done = sum(counts.by_state.values()), counts.by_state.get(State.DONE, 0)
    has_ended = counts.num_open == 0
    if row.cancelled_at is not None:
        status = "cancelled"
    elif not has_ended:
        status = "in_progress"
    else:
        status = "expired" if counts.by_state.get(State.EXPIRED) else "completed"
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": row.endpoint,
        "input_file_id": row.input_file,
        "status": status,
        "created_at": int(row.created_at),
        "expires_at": int(row.deadline_at),
        "cancelled_at": row.cancelled_at and int(row.cancelled_at),
        "request_counts": {
            "total": total,
            "completed": done,
            "failed": total - done - counts.num_open,
        },
        "output_file_id": f"output-{row.id}" if has_ended and done else None,
        "error_file_id": f"errors-{row.id}" if has_ended and done < total else None,
        **json.loads(row.about),
    }


def _owner(identity: Identity) -> dict[str, str]:
    return {"tenant": identity.tenant, "subject": identity.subject}


def _mine(table, identity: Identity):
    return table.c.tenant == identity.tenant, table.c.subject == identity.subject


def _find(store: JobStore, identity: Identity, table, row_id: str) -> Row:
    with store.reading() as conn:
        wanted = select(table).where(table.c.id == row_id, *_mine(table, identity))
        row = conn.execute(wanted).first()
    if row is None:
        raise JobNotFound(f"no {table.name} {row_id!r}")
    return row
