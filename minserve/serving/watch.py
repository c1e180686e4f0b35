"""Everything that watches one engine, and the routes that show it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from minserve.cached_service import CachedService
from minserve.cascaded_service import CascadedService, cascade_of
from minserve.events import Event
from minserve.scheduling.admission import Decision, Refuse
from minserve.serving import live
from minserve.serving.errors import ApiError
from minserve.serving.metrics import Metrics
from minserve.serving.trace import Exporter, Trace, Traces
from minserve.serving.usage import Usage

if TYPE_CHECKING:
    from minserve.request import Request as Asked
    from minserve.service import Attempt, Service
    from minserve.serving.server import Server

log = logging.getLogger("minserve.server")

PAGE_HEADERS = {
    # The page is itself and this server, and nothing else.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Watch:
    """One listener for the engine's log: traces first, because the metrics read them."""

    def __init__(self, service: Service | CachedService | CascadedService, model_name: str) -> None:
        engine, clock = service.client.engine, service.client.loop.clock
        self.engine, self.usage = engine, Usage()
        self._export = Exporter.if_installed()
        self.traces = Traces(on_finished=self._finished)
        cached = service if isinstance(service, CachedService) else None
        self.metrics = Metrics(
            engine, self.traces, model_name, clock.now_s, service.admission, cached
        )
        self.live = live.Live(engine, model_name, service.admission)
        self.attempts: Counter[tuple[str, str]] = Counter()
        """How often each (model, outcome) came about in a cascade."""
        self._cached = cached
        if service.admission:
            service.admission.on_decision = self._decided
        engine.log.listen(self._note)
        if cascade := cascade_of(service):
            cascade.on_attempt = self._attempted

    def _note(self, event: Event) -> None:
        try:
            self.traces.note(event)
            self.metrics.note(event)
            self.live.note(event)
        except Exception:  # NOTE: whoever watches the engine must not end it
            log.exception("an event of kind %s was not taken in", event.kind)

    def _decided(self, request: Asked, decision: Decision, now_s: float) -> None:
        self.metrics.note_decision(request, decision, now_s)
        if isinstance(decision, Refuse):
            self.usage.note_refused(request)

    def _attempted(self, request: Asked, attempt: Attempt) -> None:
        try:
            self.traces.attempted(request, attempt)
            self.metrics.note_attempt(attempt)
            self.attempts[attempt.model, attempt.outcome] += 1
        except Exception:  # as in `_note`
            log.exception("an attempt of %s was not taken in", attempt.model)

    @property
    def reuse(self) -> dict[str, Any] | None:
        """What caches and a cascade have come to, for operators: hits tell of what others ask."""
        return live.reuse(self._cached, tuple(self.attempts.items()))

    def _finished(self, trace: Trace) -> None:
        self.metrics.note_finished(trace)
        self.usage.note_finished(trace.request, trace.outcome)
        if self._export:
            self._export(trace)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer says of the load: the rung, unless all is normal."""
        rung = self.live.rung()
        return [(b"x-minserve-rung", f"{int(rung)} {rung.label}".encode())] if rung else []


def add_routes(app: FastAPI, server: Server) -> None:
    """`/` (the page), `/live`, `/metrics` and `/v1/traces/{id}`. Only the page needs no key."""
    watch, html = server.watch, live.page()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(html, headers=PAGE_HEADERS)

    @app.get("/live")
    async def live_picture(request: Request) -> dict[str, Any]:
        picture = watch.live.picture(server.engine.now_s())
        may_see = request.scope["state"]["principal"].is_operator
        return picture | ({"reuse": watch.reuse} if may_see and watch.reuse else {})

    @app.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        if not request.scope["state"]["principal"].is_operator:
            raise ApiError(403, "metrics are for keys with the role `operator`")
        return Response(watch.metrics.text(), media_type=watch.metrics.content_type)

    @app.get("/v1/traces/{request_id}")
    async def trace(request_id: str, request: Request) -> dict[str, Any]:
        principal = request.scope["state"]["principal"]
        tenant, salt = principal.identity.tenant, server.calls.salts.of(principal)
        found = watch.traces.read(request_id, tenant, salt, principal.is_operator)
        if found is None:
            raise ApiError(
                404,
                f"there is no trace of {request_id!r}: give the `id` of a recent answer of yours",
                code="trace_not_found",
            )
        return found.as_dict()
