"""The operator's view of the response cache: its figures, and events that invalidate."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import Body, FastAPI, Request

from minserve.cached_service import CachedService
from minserve.errors import InvalidRequest
from minserve.reuse.invalidation import from_dict, to_dict
from minserve.serving.errors import ApiError, of_minserve
from minserve.serving.server import Server


def add_routes(app: FastAPI, server: Server) -> None:
    """`GET /admin/cache` and `POST /admin/cache/events`, for keys with the role `operator`."""
    service = server.engine.service

    def cached(request: Request) -> CachedService:
        if not request.scope["state"]["principal"].is_operator:
            raise ApiError(403, "the cache is administered by keys with the role `operator`")
        if not isinstance(service, CachedService):
            raise ApiError(404, "this server keeps no response cache", code="no_response_cache")
        return service

    @app.get("/admin/cache")
    async def state(request: Request) -> dict[str, Any]:
        told = cached(request)
        cache, semantic = told.cache, told.semantic

        def picture() -> dict[str, Any]:
            entries, num_bytes = cache.store.size()
            return {
                "entries": entries,
                "bytes": num_bytes,
                "outcomes": {f"{name} {what}": n for (name, what), n in cache.outcomes.items()},
                "lookups": [
                    {"cache": kind, "answer_class": name, "outcome": what, "count": n}
                    for (kind, name, what), n in sorted(told.outcomes.items())
                ],
                "semantic": semantic
                and {
                    "threshold": semantic.thresholds.pooled,
                    "stricter": semantic.thresholds.by_intent,
                    "questions": semantic.num_questions,
                },
                "stale_hits": cache.num_stale_hits,
                "incidents": [
                    asdict(incident) | {"event": to_dict(incident.event)}
                    for incident in cache.incidents
                ],
            }

        return await asyncio.wrap_future(server.engine.ask(picture))

    @app.post("/admin/cache/events")
    async def events(request: Request, body: Any = Body()) -> dict[str, Any]:  # noqa: B008
        told = cached(request)
        if not isinstance(body, dict):
            raise ApiError(400, "an event is a JSON object, sent as content-type application/json")
        try:
            event = from_dict(body)
        except InvalidRequest as error:
            raise of_minserve(error, None) from None
        removed = await asyncio.wrap_future(server.engine.ask(lambda: told.invalidate(event)))
        return {"kind": event.kind, "removed": removed}
