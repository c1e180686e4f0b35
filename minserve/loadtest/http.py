"""A small HTTP/1.1 client that does nothing but POST and stamp the answer's bytes with the time.

Five hundred streams a second from one process leave about a millisecond of CPU for each, more than
a general client takes alone. So this one parses in the socket's own callback, and a reply's time is
that of the bytes, not of a task that was woken later. Connections are kept alive without a limit:
whoever wants one limits requests, where it is counted as dispatch delay.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from minserve.errors import MinserveError
from minserve.server_url import check_url

OnData = Callable[[bytes, float], None]


class ConnectionBroken(MinserveError):
    """The server cannot be reached, or closed the connection before its answer was complete."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and headers of an answer whose body has been passed on."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


class _Connection(asyncio.Protocol):
    """One connection, one answer at a time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.transport: asyncio.Transport
        self.is_open = True
        self._buffer = b""
        self._on_data: OnData = lambda data, now_s: None
        self._waiting: asyncio.Future[Reply] | None = None
        self._reply: Reply | None = None
        self._left: int | None = None  # bytes of a body or chunk still to come; None: unknown
        self._is_chunked = False

    def post(self, message: bytes, on_data: OnData) -> asyncio.Future[Reply]:
        self._on_data, self._reply, self._buffer = on_data, None, b""
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        return self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # which `create_connection` promises

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiting is None or self._waiting.done():
            return
        if self._reply and not self._is_chunked and self._left is None:
            self._waiting.set_result(self._reply)  # a body that the end of the connection ends
        else:
            why = error or "the server closed the connection before its answer was complete"
            self._waiting.set_exception(ConnectionBroken(str(why)))

    def data_received(self, data: bytes) -> None:
        now_s = self._now_s()
        self._buffer += data
        try:
            if self._reply is None and not self._read_head():
                return
            while self._read_body(now_s):
                pass
        except (ValueError, IndexError) as error:
            self._fail(f"not HTTP: {error}")

    def _read_head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, value in (line.split(":", 1) for line in lines)
        }
        self._buffer, self._reply = rest, Reply(int(first.split()[1]), headers)
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left = 0 if self._is_chunked else int(length) if length else None
        return True

    def _read_body(self, now_s: float) -> bool:
        """Pass on what has come of the body; True if there may be more in the buffer."""
        if self._is_chunked and not self._left:
            line, separator, rest = self._buffer.partition(b"\r\n")
            if not separator:
                return False
            if not line:  # the end of the chunk before
                self._buffer = rest
                return True
            size = int(line.split(b";")[0], 16)
            if size == 0:
                if not rest.startswith(b"\r\n"):
                    return False
                self._end()
                return False
            self._buffer, self._left = rest, size
        data = self._buffer if self._left is None else self._buffer[: self._left]
        self._buffer = self._buffer[len(data) :]
        if data:
            self._on_data(data, now_s)
        if self._left is None:
            return False
        self._left -= len(data)
        if self._left == 0 and not self._is_chunked:
            self._end()
            return False
        return bool(self._buffer)

    def _end(self) -> None:
        if self._reply and self._reply.headers.get("connection", "").lower() == "close":
            self.transport.close()
            self.is_open = False
        if self._reply and self._waiting and not self._waiting.done():
            self._waiting.set_result(self._reply)

    def _fail(self, why: str) -> None:
        self.transport.abort()
        self.is_open = False
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(ConnectionBroken(why))


class HttpClient:
    """POSTs to one server over as many connections as there are requests at a time.

    `now_s` is the clock that bodies are stamped with. Raises `ConfigError` for a bad URL.
    """

    def __init__(self, base_url: str, now_s: Callable[[], float], api_key: str = "") -> None:
        url = urlsplit(check_url(base_url))
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._path = url.path
        self._now_s = now_s
        self._api_key = api_key
        self._idle: list[_Connection] = []
        self.num_connections = 0

    async def post(
        self,
        path: str,
        body: bytes,
        on_data: OnData,
        on_sent: Callable[[float], None] = lambda now_s: None,
        api_key: str = "",
    ) -> Reply:
        """Send, pass the body on as it comes, return when it is over.

        `on_sent` is called when the request has been handed to the socket. A kept connection that
        the server has closed meanwhile is replaced once. Raises `ConnectionBroken`.
        """
        return await self._exchange("POST", path, body, on_data, on_sent, api_key)

    async def get(self, path: str) -> tuple[Reply, bytes]:
        """A whole answer, for the odd question beside the test."""
        parts: list[bytes] = []
        reply = await self._exchange("GET", path, b"", lambda data, now_s: parts.append(data))
        return reply, b"".join(parts)

    async def _exchange(
        self, method, path, body, on_data, on_sent=lambda now_s: None, api_key=""
    ) -> Reply:
        key = api_key or self._api_key
        head = (
            f"{method} {self._path}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
            + "Accept: text/event-stream, application/json\r\n\r\n"
        )
        message = head.encode() + body
        kept = self._idle.pop() if self._idle else None
        connection = kept if kept and kept.is_open else await self._connect()
        has_data = False

        def take(data: bytes, now_s: float) -> None:
            nonlocal has_data
            has_data = True
            on_data(data, now_s)

        try:
            answer = connection.post(message, take)
            on_sent(self._now_s())
            reply = await answer
        except ConnectionBroken:
            if connection is not kept or has_data:
                raise
            connection = await self._connect()
            answer = connection.post(message, take)
            on_sent(self._now_s())
            reply = await answer
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return reply

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._now_s), self._host, self._port, ssl=self._ssl
            )
        except OSError as error:
            where = f"{self._host}:{self._port}"
            hint = "start it, or check --url"
            raise ConnectionBroken(f"no server at {where}: {error}", hint) from None
        self.num_connections += 1
        return connection

    def close(self) -> None:
        """Drop the kept connections."""
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()
