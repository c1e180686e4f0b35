"""Running the server: its socket, its signals, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from minserve.errors import ConfigError
from minserve.serving.errors import ApiError
from minserve.serving.gate import is_loopback
from minserve.serving.server import Server

log = logging.getLogger("minserve.server")

SWITCH_S = 0.0005
"""How long the engine's thread may keep Python to itself while a token waits to be sent. Python's
own 5 ms are longer than a step of a small model."""
SEND_BUFFER_BYTES = 1 << 16
"""How much of an answer may lie in this process for a client that does not read."""


def bind(host: str, port: int, has_keys: bool) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises `ConfigError` if it cannot be had, or would let strangers in: without keys only this
    machine may connect.
    """
    if not has_keys and not is_loopback(host):
        raise ConfigError(
            f"without API keys anybody who reaches {host} could use this server",
            "give --keys FILE (see `minserve keys create`), or --host 127.0.0.1",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}", "choose another --port, or --host"
        ) from None


def url_of(listener: socket.socket) -> str:
    """Where clients find it, without the /v1."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def forbid_core_dumps() -> None:
    """A crash of this process leaves no image of its memory on disk, where everybody's prompts,
    keys and values would lie. Unix; a collector behind a pipe is asked by the same limit.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def run(
    app: FastAPI, server: Server, listener: socket.socket, on_listening: Callable = lambda: None
) -> None:
    """Serve until SIGTERM or SIGINT, then let open requests finish for `drain_s`.

    SIGHUP reads the key file again. Returns when everything has ended.
    """
    # NOTE: uvicorn raises the signal again once it has stopped, for whoever waits for that. Here
    # nobody does: a server that was asked to stop, and did, has succeeded.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    forbid_core_dumps()
    sys.setswitchinterval(SWITCH_S)
    Runner(app, server, on_listening).run(sockets=[listener])


class Runner(uvicorn.Server):
    """Uvicorn, which tells clients that are still connected at the end why they are cut off."""

    def __init__(self, app: FastAPI, server: Server, on_listening: Callable = lambda: None) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(server.limits.drain_s) + 5,
        )
        super().__init__(config)
        self._server = server
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Not on Windows, and not off the main thread, where no signal arrives.
        with contextlib.suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        server = self._server
        server.is_draining = True
        fields = {"open": server.num_open, "limit_s": server.limits.drain_s}
        log.info("stopping", extra={"fields": fields})
        cut = ApiError(503, "the server is shutting down", code="shutting_down")
        loop = asyncio.get_running_loop()
        timer = loop.call_later(server.limits.drain_s, server.fail_open, cut)
        await super().shutdown(sockets)
        timer.cancel()
        log.info("stopped")

    def _reload(self) -> None:
        if self._server.keys is not None:
            self._server.keys.refresh()


class _Protocol(H11Protocol):
    """A connection whose unsent bytes are bounded, and that an answer nobody reads can cut off."""

    def connection_made(  # type: ignore[override]  # as uvicorn narrows it: TCP has a Transport
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        # NOTE: asyncio does so only for sockets that name their protocol, which listeners do not.
        # Else each small answer waits 40 ms for the client to acknowledge its headers.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        app = self.app

        async def with_abort(scope, receive, send):
            scope.setdefault("extensions", {})["minserve.abort"] = transport.abort
            await app(scope, receive, send)

        self.app = with_abort
