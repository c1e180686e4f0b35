"""Durable jobs over HTTP: `/v1/jobs`, and `/v1/files` and `/v1/batches` as OpenAI's clients know.

Whose a job is comes from the API key alone. Another's job is not there: 404, whatever its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.policy import HTTP
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from minserve.errors import InvalidRequest, MinserveError
from minserve.jobs import batches
from minserve.jobs.job import Job, JobNotFound, KeyReused, QueueFull, State, Submission
from minserve.jobs.store import JobStore
from minserve.request import Identity
from minserve.serving.errors import ApiError

LOOK_EVERY_S = 0.25
PING_EVERY_S = 15.0


class JobOrder(BaseModel):
    """The body of `POST /v1/jobs`. A tenant or a salt cannot be given: unknown fields are refused.

    `deadline_s` and `delay_s` are seconds from now.
    """

    model_config = ConfigDict(extra="forbid")
    kind: str
    payload: Any = None
    priority: int = Field(0, ge=-100, le=100)
    delay_s: float = Field(0.0, ge=0, le=30 * 86_400)
    deadline_s: float | None = Field(None, gt=0, le=30 * 86_400)


class BatchOrder(BaseModel):
    """The body of `POST /v1/batches`."""

    model_config = ConfigDict(extra="forbid")
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


def router(store: JobStore, identity_of: Callable[[Request], Identity]) -> APIRouter:
    """The routes over `store`. `identity_of(request)` is who asks, by the server's own records."""
    routes = APIRouter()

    @routes.post("/v1/jobs", status_code=202)
    def submit(
        order: JobOrder,
        request: Request,
        idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    ) -> Response:
        with _as_http():
            job = store.enqueue(
                identity_of(request), Submission(key=idempotency_key, **order.model_dump())
            )
        return accepted(store, job)

    @routes.get("/v1/jobs")
    def list_jobs(request: Request, state: State | None = None, limit: int = 20) -> dict[str, Any]:
        with _as_http():
            found = store.list(identity_of(request), state=state, limit=min(max(1, limit), 100))
        return {"object": "list", "data": [shown(store, job) for job in found]}

    @routes.get("/v1/jobs/{job_id}")
    def show(job_id: str, request: Request) -> dict[str, Any]:
        with _as_http():
            return shown(store, store.get(identity_of(request), job_id))

    @routes.delete("/v1/jobs/{job_id}")
    def cancel(job_id: str, request: Request) -> dict[str, Any]:
        """The answer's `state` says which terminal state won."""
        with _as_http():
            return shown(store, store.cancel(identity_of(request), job_id))

    @routes.get("/v1/jobs/{job_id}/result")
    def result(job_id: str, request: Request) -> Response:
        """200 with the result; 202 while there is none yet; 410 if there never will be one."""
        with _as_http():
            job = store.get(identity_of(request), job_id)
        if job.state is State.DONE:
            return JSONResponse(job.result)
        if not job.state.is_terminal:
            return accepted(store, job)
        why = f": {job.reason}" if job.reason else ""
        raise ApiError(410, f"job {job.id} is {job.state}{why}", code=f"job_{job.state}")

    @routes.get("/v1/jobs/{job_id}/events")
    async def events(job_id: str, request: Request) -> Response:
        """Server-sent events: the job whenever it has changed; the last has a terminal state."""
        identity = identity_of(request)
        with _as_http():
            job = await run_in_threadpool(store.get, identity, job_id)
        return StreamingResponse(
            _changes(store, identity, job),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    _add_batches(routes, store, identity_of)
    return routes


def accepted(store: JobStore, job: Job) -> Response:
    """202: where to look for the job from now on."""
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": "1"}
    return JSONResponse(shown(store, job), 202, headers)


def as_job(store: JobStore, request: Request, identity: Identity, chat: dict[str, Any]):
    """What to answer instead of a refusal: 202 and a job, for a client that prefers that.

    RFC 7240's `Prefer: respond-async`. None where the refusal is to stand: the client did not ask,
    the work may not wait, or the job queue is full too. A job cannot stream.
    """
    wishes = request.headers.get("prefer", "").lower().replace(";", ",").split(",")
    body = {name: value for name, value in chat.items() if not name.startswith("stream")}
    key = request.headers.get("idempotency-key")

    async def instead(error: ApiError) -> Response | None:
        if not error.may_become_job or "respond-async" not in map(str.strip, wishes):
            return None
        try:
            wanted = Submission("chat_completion", body, key)
            job = await run_in_threadpool(store.enqueue, identity, wanted)
        except MinserveError:
            return None
        response = accepted(store, job)
        response.headers["Preference-Applied"] = "respond-async"
        return response

    return instead


def shown(store: JobStore, job: Job) -> dict[str, Any]:
    """A job as its owner may see it."""
    where = f"/v1/jobs/{job.id}"
    kind = store.kinds.get(job.kind)
    return {
        "id": job.id,
        "object": "job",
        "kind": job.kind,
        "state": job.state,
        "scope": {"tenant": job.identity.tenant, "subject": job.identity.subject},
        "idempotency_key": job.key,
        "priority": job.priority,
        "progress": {"completed": job.completed, "total": job.total},
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "deadline_at": job.deadline_at,
        "finished_at": job.finished_at,
        "expires_at": job.keep_until,
        "reason": job.reason,
        "result_contract": kind.contract if kind else None,
        "status_url": where,
        "events_url": f"{where}/events",
        "result_url": f"{where}/result",
        "cancel": {"method": "DELETE", "url": where},
    }


def _changes(store: JobStore, identity: Identity, job: Job) -> Iterator[str]:
    told, told_s = None, time.monotonic()
    while True:
        now = (job.state, job.attempts, job.completed, job.total)
        if now != told:
            told, told_s = now, time.monotonic()
            yield f"event: {job.state}\ndata: {json.dumps(shown(store, job))}\n\n"
        elif time.monotonic() - told_s > PING_EVERY_S:
            told_s = time.monotonic()
            yield ": still here\n\n"
        if job.state.is_terminal:
            return
        time.sleep(LOOK_EVERY_S)
        try:
            job = store.get(identity, job.id)
        except MinserveError as error:  # purged meanwhile, or the store is away: the client returns
            yield f"event: error\ndata: {json.dumps({'message': str(error)})}\n\n"
            return


# -- batches


def _add_batches(
    routes: APIRouter, store: JobStore, identity_of: Callable[[Request], Identity]
) -> None:
    @routes.post("/v1/files")
    async def upload(request: Request) -> dict[str, Any]:
        form = _form(request.headers.get("content-type", ""), await request.body())
        if "file" not in form:
            raise ApiError(400, "there is no file in the form", param="file")
        purpose = form.get("purpose", (b"", ""))[0].decode(errors="replace")
        if purpose != "batch":
            raise ApiError(400, f"purpose {purpose!r}: only batch is known", param="purpose")
        content, name = form["file"]
        with _as_http():
            return await run_in_threadpool(
                batches.add_file, store, identity_of(request), name, content
            )

    @routes.get("/v1/files/{file_id}")
    def file(file_id: str, request: Request) -> dict[str, Any]:
        with _as_http():
            return batches.file(store, identity_of(request), file_id)

    @routes.get("/v1/files/{file_id}/content")
    def content(file_id: str, request: Request) -> Response:
        with _as_http():
            text = batches.content(store, identity_of(request), file_id)
        return PlainTextResponse(text, media_type="application/jsonl")

    @routes.post("/v1/batches")
    def create(order: BatchOrder, request: Request) -> dict[str, Any]:
        with _as_http():
            return batches.create(store, identity_of(request), **order.model_dump())

    @routes.get("/v1/batches")
    def list_batches(request: Request, limit: int = 20) -> dict[str, Any]:
        with _as_http():
            found = batches.listed(store, identity_of(request), min(max(1, limit), 100))
        return {"object": "list", "data": found, "has_more": False}

    @routes.get("/v1/batches/{batch_id}")
    def batch(batch_id: str, request: Request) -> dict[str, Any]:
        with _as_http():
            return batches.get(store, identity_of(request), batch_id)

    @routes.post("/v1/batches/{batch_id}/cancel")
    def cancel(batch_id: str, request: Request) -> dict[str, Any]:
        with _as_http():
            return batches.cancel(store, identity_of(request), batch_id)


def _form(content_type: str, body: bytes) -> dict[str, tuple[bytes, str]]:
    """The fields of a multipart form: (content, file name) by name."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = message_from_bytes(head + body, policy=HTTP)
    if not message.is_multipart():
        raise ApiError(400, "send the file as multipart/form-data")
    form = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            form[name] = content, part.get_filename() or ""
    return form


class _as_http:
    """Turns what the store raises into what a client is told."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind, error, trace) -> None:
        if isinstance(error, JobNotFound):
            raise ApiError(404, str(error), code="job_not_found") from None
        if isinstance(error, KeyReused):
            raise ApiError(422, str(error), code="idempotency_key_reused") from None
        if isinstance(error, QueueFull):
            raise ApiError(
                429, str(error), code="queue_full", retry_after_s=error.retry_after_s
            ) from None
        if isinstance(error, InvalidRequest):
            raise ApiError(400, str(error)) from None
        if isinstance(error, MinserveError):
            raise ApiError(503, str(error), code="store_unavailable", retry_after_s=2.0) from None
