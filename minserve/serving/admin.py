"""What only operators may ask of a server: who used how much, and that it forget its prefixes."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request

from minserve.serving.errors import ApiError
from minserve.serving.server import Server
from minserve.serving.watch import Watch


def add_routes(app: FastAPI, server: Server) -> None:
    """`GET /admin/usage` and `POST /admin/prefix-cache/clear`, for the role `operator`."""

    def watched(request: Request) -> Watch:
        if not request.scope["state"]["principal"].is_operator:
            raise ApiError(403, "the server is administered by keys with the role `operator`")
        if not isinstance(server.watch, Watch):
            raise ApiError(404, "ask the replicas: this gateway has no engine", code="no_engine")
        return server.watch

    @app.get("/admin/usage")
    async def usage(request: Request) -> dict[str, Any]:
        books = watched(request).usage
        found = await asyncio.wrap_future(server.engine.ask(books.report))
        return {"region": server.region, **found}

    @app.post("/admin/prefix-cache/clear")
    async def clear(request: Request) -> dict[str, int]:
        engine = watched(request).engine
        if engine.prefix_cache is None:
            raise ApiError(404, "this server reuses no prefixes", code="no_prefix_cache")
        cleared = server.engine.ask(engine.prefix_cache.clear)
        return {"forgotten_blocks": await asyncio.wrap_future(cleared)}
