"""From the engine's thread to a client that reads at its own pace, or leaves.

    engine thread --put--> Mailbox --one wake-up for many--> Stream --take--> Reply --send--> client

A stream holds a bounded number of tokens that its client has not taken. Whoever reads too slowly
is ended, rather than paused: a paused request would go on holding KV blocks that others wait for.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minserve.events import TokenLogprob
from minserve.request import FinishReason
from minserve.scheduling.admission import Refuse
from minserve.service import Ended, Output, Piece, Started
from minserve.serving.errors import ApiError, of_refusal

if TYPE_CHECKING:
    from minserve.serving.calls import Call

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # tells nginx to pass events on as they come
}
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """Nobody reads any more."""


class Mailbox:
    """Hands outputs from any thread to streams on the thread of `loop`.

    `soon(call)`, where given, has the putting thread call `call()` once it is through with what it
    is at: then one wake-up serves all tokens of a step, and the two threads do not fight for Python
    while the step's tokens are still being put.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        soon: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        self._loop = loop
        self._soon = soon
        self._outputs: deque[tuple[Stream, int, Output]] = deque()
        self._is_due = False

    def put(self, stream: Stream, first: int, output: Output) -> None:
        """Deliver `output`, whose choice 0 is the stream's `first`. Safe from any thread."""
        self._outputs.append((stream, first, output))
        if not self._is_due:
            self._is_due = True
            self._soon(self._wake)

    def call(self, call: Callable, *args: Any) -> None:
        """Have `call(*args)` called on the loop's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to tell
            self._loop.call_soon_threadsafe(call, *args)

    def _wake(self) -> None:
        self.call(self.deliver)

    def deliver(self) -> None:
        """On the thread of the loop: hand on what has come."""
        self._is_due = False  # NOTE: before looking, so that a later put asks again
        while self._outputs:
            stream, first, output = self._outputs.popleft()
            stream.push(first, output)


class Stream:
    """What one HTTP request is to hear, in order. Belongs to asyncio's thread.

    `max_held` bounds the outputs that are held because nobody takes them.
    """

    def __init__(self, max_held: int) -> None:
        self._held: list[tuple[int, Output]] = []
        self._max_held = max_held
        self._error: Exception | None = None
        self._is_ready = asyncio.Event()

    def push(self, first: int, output: Output) -> None:
        if self._error is None:
            self._held.append((first, output))
            self._is_ready.set()
            if len(self._held) > self._max_held:
                self._held.clear()
                self.fail(ApiError(408, "the answer was read too slowly", code="slow_reader"))

    def fail(self, error: Exception) -> None:
        """End the stream: after what is held, `take` raises `error`. Only the first one counts."""
        if self._error is None:
            self._error = error
            self._is_ready.set()

    async def take(self) -> list[tuple[int, Output]]:
        """All that has come, once there is any."""
        await self._is_ready.wait()
        if not self._held and self._error:
            raise self._error
        held, self._held = self._held, []
        if not self._error:
            self._is_ready.clear()
        return held


# -- one call's answer


@dataclass(slots=True)
class Choice:
    """One choice: its unsent part, and how much of it there has been."""

    index: int
    text: str = ""
    tokens: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    num_tokens: int = 0
    finish_reason: str | None = None
    is_open: bool = False
    is_over: bool = False
    is_closed: bool = False
    num_chars: int = 0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    """With `num_chars`, how far the text of the tokens sent so far goes."""

    def add(self, output: Piece) -> None:
        self.text += output.text
        self.tokens += zip(output.token_ids, output.logprobs, strict=False)
        self.num_tokens += output.num_tokens


class Answer:
    """Everything one call has to say, as it comes: choices and usage. Knows no HTTP.

    Args:
        num_prompt_tokens: Of all its prompts together.
        choices: One for each choice of each prompt.
    """

    def __init__(self, num_prompt_tokens: int, num_choices: int, echoes: list[str]) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0
        self.cache: set[str] = set()
        self.route = ""
        self.rejected: list[dict[str, Any]] = []
        per_prompt = num_choices // len(echoes)
        self.choices = [Choice(i, echoes[i // per_prompt]) for i in range(num_choices)]

    def take(self, outputs: list[tuple[int, Output]]) -> list[Choice]:
        """Take outputs in; the choices that have something to say. Raises `ApiError`."""
        touched: dict[int, Choice] = {}
        for first, output in outputs:
            match output:
                case Started(num_cached_tokens=num_cached_tokens, cache=cache):
                    self.num_cached_tokens += num_cached_tokens
                    self.cache.add(cache)
                    self._routed(output)
                case Refuse():
                    raise of_refusal(output)
                case Piece(index=index):
                    choice = touched[first + index] = self.choices[first + index]
                    choice.add(output)
                case Ended(index=index, reason=reason, error=error):
                    choice = touched[first + index] = self.choices[first + index]
                    choice.is_over = True
                    choice.finish_reason = _finish_reason(reason, error)
        return list(touched.values())

    def _routed(self, started: Started) -> None:
        """A cascade says whose answer this is: its tokens count, and those of others apart."""
        self.route = started.route
        if not started.attempts:
            return
        *rejected, answering = started.attempts
        self.num_prompt_tokens = answering.num_prompt_tokens
        self.rejected = [
            {
                "model": attempt.model,
                "prompt_tokens": attempt.num_prompt_tokens,
                "completion_tokens": attempt.num_output_tokens,
                "outcome": attempt.outcome,
            }
            for attempt in rejected
        ]

    @property
    def headers(self) -> dict[str, str]:
        """What the response cache made of the call, and which model of a cascade answered."""
        told = {"x-cache": ", ".join(sorted(filter(None, self.cache))), "x-route": self.route}
        return {name: value for name, value in told.items() if value}

    @property
    def is_over(self) -> bool:
        return all(choice.is_over for choice in self.choices)

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far; those that need no computing, because a prefix was cached, are counted."""
        usage = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        return usage | {"rejected_attempts": self.rejected} if self.rejected else usage


def _finish_reason(reason: FinishReason, error: str | None) -> str:
    if reason in (FinishReason.STOP, FinishReason.LENGTH):
        return reason.value
    if reason is FinishReason.CANCELLED:
        raise ApiError(503, "the request was cancelled by the server", code="cancelled")
    # A reason may have a name for machines, and a status of its own.
    status, code = getattr(error, "status", 500), getattr(error, "code", "engine_error")
    may_retry = getattr(error, "may_retry", True)
    raise ApiError(status, f"the request failed: {error}", code=code, may_retry=may_retry)


# -- over HTTP


class Reply(Response):
    """Sends one call's answer, whole or as server-sent events, and ends the call if it cannot.

    Nothing is sent before there is a first token, so a call that fails before has its true
    status. Later failures come as an event with an `error`, which OpenAI's clients raise.

    Args:
        call: What was asked; see `minserve.serving.calls.Call`.
        begin: Has the engine serve the call. May raise `ApiError`.
        end: Called once, when the call is over in whatever way; cancels what still runs.
        write_timeout_s: How long a client may take nothing at all.

    `instead(error)`, where set, may give another response than the error: a durable job's.
    """

    def __init__(
        self,
        call: Call,
        begin: Callable[[], None],
        end: Callable[[], None],
        write_timeout_s: float,
    ) -> None:
        super().__init__()
        self._call = call
        self._begin = begin
        self._end = end
        self._write_timeout_s = write_timeout_s
        self._send: Send
        self.instead: Callable[[ApiError], Awaitable[Response | None]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        watch = asyncio.create_task(self._watch(receive))
        outcome = scope["state"]
        try:
            self._begin()
            await (self._stream() if self._call.is_stream else self._answer())
        except ClientGone:
            outcome["outcome"] = "client_gone"
        except ApiError as error:
            other = await self.instead(error) if self.instead else None
            if other is not None:
                await other(scope, receive, send)
            else:
                await self._whole(error.status, error.encode(), error.headers)
        except TimeoutError:
            outcome["outcome"] = "slow_reader"
            if abort := scope.get("extensions", {}).get("minserve.abort"):
                abort()
        finally:
            watch.cancel()
            self._end()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._call.stream.fail(ClientGone())

    async def _answer(self) -> None:
        call = self._call
        while not call.answer.is_over:
            call.answer.take(await call.stream.take())
        call.shape.answered_by(call.answer.route)
        body = json.dumps(call.shape.whole(call.answer)).encode()
        await self._whole(200, body, call.answer.headers)

    async def _stream(self) -> None:
        call, answer = self._call, self._call.answer
        touched: list[Choice] = []
        while not touched:
            touched = answer.take(await call.stream.take())
        call.shape.answered_by(answer.route)
        fields = _HEADERS | answer.headers
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        await self._put({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while not answer.is_over:
                await self._events(self._chunks(touched))
                touched = answer.take(await call.stream.take())
            last = self._chunks(touched)
            if call.include_usage:
                last.append(call.shape.chunk([], answer.usage))
        except ApiError as error:
            last = [error.body]
        await self._events(last, is_last=True)

    def _chunks(self, touched: list[Choice]) -> list[dict[str, Any]]:
        call = self._call
        usage: dict[str, Any] = {}
        if call.continuous_usage:
            usage = {"usage": call.answer.usage}
        elif call.include_usage:
            usage = {"usage": None}
        parts = (part for choice in touched for part in call.shape.parts(choice))
        return [call.shape.chunk([part]) | usage for part in parts]

    async def _events(self, events: list[dict[str, Any]], is_last: bool = False) -> None:
        body = b"".join(map(_event, events)) + (DONE if is_last else b"")
        if body:
            await self._put({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        fields = {"content-type": "application/json", **(headers or {})}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        await self._put({"type": "http.response.start", "status": status, "headers": raw})
        await self._put({"type": "http.response.body", "body": body})

    async def _put(self, message: dict[str, Any]) -> None:
        async with asyncio.timeout(self._write_timeout_s):
            await self._send(message)


def _event(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
