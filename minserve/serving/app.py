"""The routes: OpenAI's API and its neighbours. Each is a few lines over `calls` and `Server`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

import minserve
from minserve.serving import admin, cache_admin, embeddings, watch
from minserve.serving.calls import Caller
from minserve.serving.errors import ApiError
from minserve.serving.gate import Gate
from minserve.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ErrorBody,
    TokenizeRequest,
    of_validation,
)
from minserve.serving.server import Server

if TYPE_CHECKING:
    from minserve.jobs.store import JobStore

PUBLIC = ("/", "/health", "/ready", "/version")
MAX_DEADLINE_MS = 86_400_000
MAX_SOURCES = 64
MAX_PARTITION_CHARS = 128


def create_app(server: Server, jobs: JobStore | None = None) -> FastAPI:
    """The ASGI application of `server`; it starts and stops the engine with its lifespan.

    With a job store it also has the routes of durable jobs and batches, and a chat that is refused
    for now becomes a job where its client says `Prefer: respond-async`.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        server.start()
        yield
        server.stop()

    app = FastAPI(
        title="minserve",
        version=minserve.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}},
    )
    app.state.server = server
    app.add_middleware(Gate, server=server, public=PUBLIC)
    app.add_exception_handler(ApiError, lambda request, error: _response(error))
    app.add_exception_handler(
        RequestValidationError,
        lambda request, error: _response(of_validation(error.errors(), error.body)),
    )
    app.add_exception_handler(HTTPException, _of_http)
    _add_generation(app, server, jobs)
    _add_tokens(app, server)
    _add_state(app, server)
    watch.add_routes(app, server)
    if server.embeddings:
        embeddings.add_routes(app, server, server.embeddings)
    cache_admin.add_routes(app, server)
    admin.add_routes(app, server)
    if jobs is not None:
        from minserve.serving.jobs import router

        app.include_router(router(jobs, lambda request: _caller(request).principal.identity))
    return app


def _response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def _of_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # it is registered for these
    messages = {
        404: f"there is no {request.url.path} here",
        405: f"{request.url.path} does not take {request.method}",
    }
    response = _response(ApiError(error.status_code, messages.get(error.status_code, error.detail)))
    response.headers.update(error.headers or {})
    return response


def _caller(request: Request) -> Caller:
    """Raises `ApiError` for a deadline that is none, or a class that the key may not claim."""
    state, headers = request.scope["state"], request.headers
    principal, began_s = state["principal"], state["began_s"]
    deadline_s = None
    if (deadline := headers.get("x-deadline-ms")) is not None:
        is_number = deadline.isascii() and deadline.isdigit()
        if not is_number or not 0 < int(deadline) <= MAX_DEADLINE_MS:
            why = f"x-deadline-ms must be 1 to {MAX_DEADLINE_MS}"
            raise ApiError(400, why, param="x-deadline-ms")
        deadline_s = began_s + int(deadline) / 1000
    answer_class = headers.get("x-answer-class", "default")
    if not principal.may_claim(answer_class):
        raise ApiError(
            403,
            f"your key may not send requests of class {answer_class[:64]!r}",
            param="x-answer-class",
            code="answer_class_not_allowed",
        )
    listed = headers.get("x-sources", "").split(",")
    sources = tuple(dict.fromkeys(filter(None, map(str.strip, listed))))
    if len(sources) > MAX_SOURCES:
        raise ApiError(400, f"x-sources names {len(sources)}, more than {MAX_SOURCES}")
    partition = headers.get("x-cache-partition", "")
    if len(partition) > MAX_PARTITION_CHARS:
        raise ApiError(400, f"x-cache-partition has more than {MAX_PARTITION_CHARS} characters")
    return Caller(principal, began_s, deadline_s, answer_class, sources, partition)


def _add_generation(app: FastAPI, server: Server, jobs: JobStore | None) -> None:
    answers: dict[int | str, dict[str, Any]] = {
        200: {"description": "JSON, or server-sent events if `stream` is true"}
    }

    @app.post("/v1/chat/completions", responses=answers, response_class=Response)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        caller = _caller(request)
        reply = server.reply(await server.calls.chat(body, caller))
        if jobs is not None:
            from minserve.serving.jobs import as_job

            asked = body.model_dump(exclude_unset=True, mode="json")
            reply.instead = as_job(jobs, request, caller.principal.identity, asked)
        return reply

    @app.post("/v1/completions", responses=answers, response_class=Response)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return server.reply(await server.calls.completion(body, _caller(request)))


def _add_tokens(app: FastAPI, server: Server) -> None:
    model = server.model

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        return await server.calls.tokenize(body)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        model.check(body.model)
        token_ids = server.calls.check_tokens(body.tokens, "tokens")
        return {"prompt": model.tokenizer.decode(token_ids, skip_special_tokens=False)}


def _add_state(app: FastAPI, server: Server) -> None:
    cards = {name: server.model.card(name) for name in server.model.names}
    listed = [cards[server.model.names[0]]]
    if server.embeddings:
        listed.append(server.embeddings.card)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": listed}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        server.model.check(name)
        return cards[name]

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": minserve.__version__}

    @app.get("/health")
    async def health() -> dict[str, str]:
        await server.check_alive()
        return {"status": "ok", "load": server.watch.live.rung().label}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        if server.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        await server.check_alive()
        return {"status": "ready"}
