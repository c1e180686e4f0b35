"""An OpenAI-compatible server that computes nothing and does what a script says, to the moment.

It shows whether a load generator measures rightly, and how fast it can send:

    python -m minserve.loadtest.mock_server --port 8123
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of the stream. Fields left None are left out of it."""

    text: str | None = None
    role: str | None = None
    usage: tuple[int, int] | None = None
    finish: str | None = None
    error: str | None = None

    def event(self, is_chat: bool) -> bytes:
        if self.error is not None:
            return _data({"error": {"message": self.error, "type": "server_error"}})
        content: dict[str, Any] = {"id": "mock", "object": "chunk", "choices": []}
        if not (self.text is self.role is self.finish is None):
            choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish}
            if is_chat:
                parts = {"role": self.role, "content": self.text}
                choice["delta"] = {name: part for name, part in parts.items() if part is not None}
            else:
                choice["text"] = self.text or ""
            content["choices"] = [choice]
        if self.usage is not None:
            num_prompt, num_output = self.usage
            content["usage"] = {"prompt_tokens": num_prompt, "completion_tokens": num_output}
        return _data(content)


@dataclass(frozen=True, slots=True)
class Refuse:
    """No stream at all: a status, and when to come back."""

    status: int
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection breaks."""


DONE = b"data: [DONE]\n\n"
Step = Wait | Chunk | Refuse | Drop | bytes
Script = Callable[[dict[str, Any]], Iterable[Step]]


def simple(body: dict[str, Any], ttft_s: float = 0.0, itl_s: float = 0.0) -> Iterator[Step]:
    """`max_tokens` tokens of one chunk each, then the usage."""
    count = int(body.get("max_tokens", 16))
    if ttft_s:
        yield Wait(ttft_s)
    for number in range(count):
        if number and itl_s:
            yield Wait(itl_s)
        yield Chunk("x ", finish="length" if number == count - 1 else None)
    yield Chunk(usage=(len(body.get("prompt", ())), count))
    yield DONE


class MockServer:
    """Serves `/v1/models` and both completion endpoints. `script(body)` says how each is answered.

    With `serial` one request is served at a time, as by a server without batching.
    """

    def __init__(self, script: Script = simple, serial: bool = False) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.keeps_bodies = True
        self._turn = asyncio.Lock() if serial else None

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Serve until the block ends; gives the base URL."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1024)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False if the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        if path == "/v1/models":
            models = b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}'
            writer.write(_head(200, len(models)) + models)
            return True
        if not content:  # some other question: other load generators ask for metrics
            writer.write(_head(404, 0))
            return True
        body = json.loads(content)
        if self.keeps_bodies:
            self.bodies.append(body)
        if self._turn is None:
            return await self._play(self.script(body), writer, path)
        async with self._turn:
            return await self._play(self.script(body), writer, path)

    async def _play(self, steps: Iterable[Step], writer: asyncio.StreamWriter, path: str) -> bool:
        is_chat, has_head = path.endswith("chat/completions"), False
        pending = b""  # what comes at one moment goes out in one write
        for step in steps:
            if isinstance(step, Refuse):
                said = b'{"error": {"message": "scripted"}}'
                writer.write(_head(step.status, len(said), step.retry_after_s) + said)
                return True
            if isinstance(step, Wait | Drop) and pending:
                writer.write(pending)
                pending = b""
            if isinstance(step, Drop):
                await writer.drain()
                return False
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                continue
            if not has_head:
                pending, has_head = _head(200), True
            event = step if isinstance(step, bytes) else step.event(is_chat)
            pending += b"%x\r\n%b\r\n" % (len(event), event)
        writer.write(pending + b"0\r\n\r\n")
        return True


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def _head(status: int, length: int | None = None, retry_after_s: int | None = None) -> bytes:
    reason = "OK" if status == 200 else "Scripted"
    lines = [f"HTTP/1.1 {status} {reason}"]
    if length is None:
        lines += ["Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
    else:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s}")
    return "\r\n".join([*lines, "", ""]).encode()


async def _serve(port: int, ttft_s: float, itl_s: float) -> None:
    server = MockServer(lambda body: simple(body, ttft_s, itl_s))
    server.keeps_bodies = False
    async with server.running(port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until stopped; prints its URL first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.ttft_ms / 1e3, given.itl_ms / 1e3))


if __name__ == "__main__":
    main()
