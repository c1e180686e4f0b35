"""Before anything else is done for a client: who is it, may it, and is its body of a fair size.

Plain ASGI, so that it costs microseconds. It also gives every answer its `x-request-id` and every
request its line in the log, which says what happened and never what was said.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minserve.serving.errors import ApiError
from minserve.serving.identity import OPEN, Principal
from minserve.serving.server import Server

access = logging.getLogger("minserve.access")
log = logging.getLogger("minserve.server")

REFRESH_EVERY_S = 0.5
_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Gate:
    """Lets requests through to `app` with `scope["state"]["principal"]` set.

    `public` paths need no key: they say nothing about anybody.
    """

    def __init__(self, app: ASGIApp, server: Server, public: Iterable[str]) -> None:
        self.app = app
        self._server = server
        self._public = frozenset(public)
        self._refreshed_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began_s = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = f"req-{secrets.token_hex(12)}"
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["began_s"] = self._server.engine.now_s()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = (b"x-request-id", request_id.encode())
                headers_now = [*message["headers"], extra, *self._server.watch.headers]
                message = {**message, "headers": headers_now}
            await send(message)

        try:
            state["principal"] = self._principal(scope, headers)
            receive = await self._with_body(headers, receive)
            await self.app(scope, receive, send_named)
        except ApiError as error:
            await _refuse(send_named, error)
        except Exception:
            log.exception("request %s failed", request_id)
            if not status:
                await _refuse(send_named, ApiError(500, "the server failed; it has been logged"))
        finally:
            took_s = time.perf_counter() - began_s
            self._log(scope, status, took_s)
            route = getattr(scope.get("route"), "path", "other")
            is_retry = headers.get(b"x-stainless-retry-count", b"0") != b"0"
            self._server.watch.metrics.note_http(route, status, took_s, is_retry)

    def _principal(self, scope: Scope, headers: dict[bytes, bytes]) -> Principal | None:
        keys = self._server.keys
        if keys is None:
            _check_host(headers.get(b"host", b"").decode("latin-1"))
            return OPEN
        if time.monotonic() - self._refreshed_s > REFRESH_EVERY_S:
            self._refreshed_s = time.monotonic()
            keys.refresh()
        kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        principal = keys.find(secret.strip()) if kind.lower() == "bearer" else None
        if principal is None and scope["path"] not in self._public:
            why = "is not valid" if secret else "is missing: send `Authorization: Bearer KEY`"
            raise ApiError(401, f"the API key {why}", code="invalid_api_key")
        return principal

    async def _with_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """A `receive` that gives the whole body at once, and then what comes after it."""
        limit = self._server.limits.max_body_bytes
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            if int(length) <= 8 * limit:
                await self._discard(receive)
            raise _too_large(limit)
        if not length and b"transfer-encoding" not in headers:
            return receive
        body = bytearray()
        try:
            async with asyncio.timeout(self._server.limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _replay([message], receive)
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time", may_retry=False) from None
        if _SURROGATE.search(body):
            _check_characters(body)
        whole = {"type": "http.request", "body": bytes(body), "more_body": False}
        return _replay([whole], receive)

    async def _discard(self, receive: Receive) -> None:
        """Read what is not wanted: who is cut off in mid-sending never gets to read the error."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._server.limits.body_s):
                while (await receive()).get("more_body"):
                    pass

    def _log(self, scope: Scope, status: int, duration_s: float) -> None:
        state, principal = scope["state"], scope["state"].get("principal")
        fields = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "duration_ms": round(duration_s * 1000, 3),
            "key": principal.key_id if principal else None,
            "tenant": principal.identity.tenant if principal else None,
            "outcome": state.get("outcome"),
            **state.get("figures", {}),
        }
        # What a probe asks every second is not worth a line.
        is_probe = scope["path"] in (*self._public, "/live", "/metrics") and status < 400
        level = logging.DEBUG if is_probe else logging.INFO
        fields = {name: value for name, value in fields.items() if value is not None}
        access.log(level, "request", extra={"fields": fields})


def _check_host(host: str) -> None:
    """A web page may have its own name point here (DNS rebinding); then the host is that name."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    if name not in ("", "localhost") and not is_loopback(name):
        raise ApiError(
            403,
            f"this server has no keys and serves its own machine only, not {name!r}",
            code="host_not_allowed",
        )


def is_loopback(host: str) -> bool:
    """Only this machine can connect to `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_characters(body: bytearray) -> None:
    """JSON can spell half a character (a lone surrogate), which is no text. Raises `ApiError`."""
    import json

    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the body holds half a character (a lone surrogate)") from None
    except (ValueError, RecursionError):
        pass  # not JSON: whoever parses it says so


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit:,} bytes", code="body_too_large")


def _replay(messages: list[Message], receive: Receive) -> Receive:
    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _refuse(send: Send, error: ApiError) -> None:
    headers = {"content-type": "application/json", **error.headers}
    body = error.encode()
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
