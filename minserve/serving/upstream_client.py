"""An engine behind HTTP, as a client of its own: requests go out, outputs and events come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import httpx

from minserve.clock import EventLoop
from minserve.events import Admitted, EventLog, Finished, Submitted, TokensProduced
from minserve.request import FinishReason, Request
from minserve.scheduling.admission import Refuse
from minserve.service import Ended, Listener, Output, Piece, Started
from minserve.serving.upstream_answer import AnswerReader, UpstreamFailed, Why, message_of
from minserve.serving.upstream_dialects import Dialect

log = logging.getLogger("minserve.gateway")

CONNECT_S = 5.0
RETRY_S = 2.0
MAX_RETRY_S = 3600.0
MAX_ERROR_BYTES = 1 << 16
KEEP_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes its end."""
UNKNOWN = -1
"""Stands in events for the id of a token that only the upstream knows."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where an engine is, and how to talk to it. `key` is the gateway's own there, if it needs one.

    `stall_s` is how long it may say nothing at all while it owes an answer.
    """

    url: str
    model: str
    dialect: Dialect
    key: str = field(default="", repr=False)
    stall_s: float = 120.0

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(slots=True)
class _Requests:
    """As much of a scheduler as can be seen from outside: a request runs once it has a token."""

    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _NoBlocks:
    """A block pool that is none: how full the upstream's is cannot be seen."""

    num_used: int = 0
    num_cached: int = 0
    num_free: int = 0
    num_blocks: int = 0
    block_size: int = 0


class EngineElsewhere:
    """What of an `Engine` its watchers and admission look at, from what streams say."""

    def __init__(self) -> None:
        self.log = EventLog(keep=False)
        self.scheduler = _Requests()
        self.pool = _NoBlocks()
        self.prefix_cache = None
        self.is_stopped: Callable[[Request], bool] = lambda request: False


@dataclass(eq=False, slots=True)
class _Sent:
    """A request that the upstream has, or is about to get."""

    request: Request
    listener: Listener
    open: dict[int, int] = field(init=False)
    """Output tokens so far of each choice that has not ended."""
    task: asyncio.Task[None] | None = None
    is_answering: bool = False
    has_started: bool = False

    def __post_init__(self) -> None:
        self.open = dict.fromkeys(range(self.request.sampling.n), 0)


class UpstreamClient:
    """Sends requests to an engine elsewhere and tells each one's outputs as they come.

    As `minserve.client.LocalClient`, except that listeners hear text: the outputs of
    `minserve.service`. `engine.log` has the events. A request that ends here, because its client
    has gone, closes its connection at once; the upstream then ends it too.

    It belongs to the thread of `loop`, except that the connections live on asyncio's: `attach` is
    called there first.
    """

    def __init__(self, upstream: Upstream, loop: EventLoop) -> None:
        self.upstream, self.loop = upstream, loop
        self.engine = EngineElsewhere()
        self.failure: str | None = None  # NOTE: never; an upstream that is away may come back
        self._sent: dict[str, _Sent] = {}
        self._aio: asyncio.AbstractEventLoop
        self._http: httpx.AsyncClient

    def attach(self) -> None:
        """Take the running asyncio loop for the connections."""
        self._aio = asyncio.get_running_loop()
        self._http = httpx.AsyncClient(
            base_url=self.upstream.url,
            headers=self.upstream.headers,
            timeout=httpx.Timeout(self.upstream.stall_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_S),
            trust_env=False,  # NOTE: else a .netrc of whoever runs it could put in another key
        )

    async def is_alive(self) -> bool:
        """Whether it answers, and says that it is well. On asyncio's thread."""
        try:
            path = self.upstream.dialect.health
            return (await self._http.get(path, timeout=CONNECT_S)).status_code == 200
        except httpx.HTTPError:
            return False

    def send(self, request: Request, listener: Listener) -> None:
        """Have it served; `listener(output)` hears of it until each choice has `Ended`."""
        now_s, id = self.loop.clock.now_s(), request.id
        sent = self._sent[id] = _Sent(request, listener)
        self.engine.scheduler.waiting.append(request)
        kind = request.workload_class.value
        self.engine.log.add(Submitted(now_s, id, request.num_prompt_tokens, kind))
        self._on_aio(partial(self._begin, sent))

    def cancel(self, request_id: str) -> None:
        """End a request with all its choices; after its end it does nothing."""
        if sent := self._sent.get(request_id):
            self._end_all(sent, FinishReason.CANCELLED)
            self._on_aio(partial(_close, sent))

    # -- on the thread of `loop`

    def _tell(self, sent: _Sent, outputs: list[Output]) -> None:
        for output in outputs:
            if self._sent.get(sent.request.id) is not sent:
                return  # it has ended here, whatever the upstream still said
            self._note(sent, output)
            sent.listener(output)

    def _note(self, sent: _Sent, output: Output) -> None:
        add, now_s, request = self.engine.log.add, self.loop.clock.now_s(), sent.request
        match output:
            case Started(num_cached_tokens=num_cached_tokens) if not sent.has_started:
                sent.has_started = True
                self.engine.scheduler.waiting.remove(request)
                self.engine.scheduler.running.append(request)
                add(Admitted(now_s, request.id, num_cached_tokens))
            case Piece(index=index, num_tokens=num_tokens) if num_tokens > 0:
                sent.open[index] += num_tokens
                ids = (UNKNOWN,) * num_tokens
                add(TokensProduced(now_s, request.choice_ids[index], ids))
            case Ended(index=index, reason=reason, error=error):
                self._end(sent, index, reason, error)
            case Refuse(why=why):
                for index in list(sent.open):
                    self._end(sent, index, FinishReason.ERROR, why)

    def _end(self, sent: _Sent, index: int, reason: FinishReason, error: str | None) -> None:
        request, num_tokens = sent.request, sent.open.pop(index)
        if not sent.open:
            del self._sent[request.id]
            requests = self.engine.scheduler
            (requests.running if sent.has_started else requests.waiting).remove(request)
        now_s, choice_id = self.loop.clock.now_s(), request.choice_ids[index]
        self.engine.log.add(Finished(now_s, choice_id, reason.value, num_tokens, error))

    def _end_all(self, sent: _Sent, reason: FinishReason, why: Why | None = None) -> None:
        self._tell(sent, [Ended(index, reason, why) for index in sent.open])

    def _on_aio(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # asyncio's loop is closed: all is over
            self._aio.call_soon_threadsafe(call)

    # -- on asyncio's thread

    def _begin(self, sent: _Sent) -> None:
        sent.task = self._aio.create_task(self._carry(sent))

    async def _carry(self, sent: _Sent) -> None:
        try:
            try:
                await self._stream(sent)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if sent.is_answering:
                    raise
                await self._stream(sent)  # a kept connection that had been closed meanwhile
        except UpstreamFailed as error:
            self._fail(sent, error.why)
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                return self._unavailable(sent, error)
            silence = f"the engine has said nothing for {self.upstream.stall_s:g} s"
            self._fail(sent, Why(silence, "upstream_timeout", 504))
        except httpx.TransportError as error:
            if not sent.is_answering:
                return self._unavailable(sent, error)
            self._fail(sent, Why("the connection to the engine broke", "upstream_lost"))
        except Exception as error:
            log.exception("request %s failed in the gateway", sent.request.id)
            self._fail(sent, Why(f"{type(error).__name__} in the gateway", status=500))

    async def _stream(self, sent: _Sent) -> None:
        request, dialect = sent.request, self.upstream.dialect
        headers = {"x-request-id": request.id} | dialect.headers(request)
        body = dialect.body(request, self.upstream.model)
        async with self._http.stream("POST", "/v1/completions", json=body, headers=headers) as got:
            sent.is_answering = True
            if got.status_code != 200:
                return self._post(sent, [await _refusal(got)])
            reader = AnswerReader(request.sampling)
            async for data in got.aiter_bytes():
                if outputs := reader.feed(data):
                    self._post(sent, outputs)
            if outputs := reader.close():
                self._post(sent, outputs)

    def _post(self, sent: _Sent, outputs: list[Output]) -> None:
        self.loop.post(partial(self._tell, sent, outputs))

    def _unavailable(self, sent: _Sent, error: Exception) -> None:
        log.warning("the upstream %s cannot be reached: %s", self.upstream.url, error)
        why = "the engine behind this gateway cannot be reached"
        self._post(sent, [Refuse(RETRY_S, why, "upstream_unavailable", True)])

    def _fail(self, sent: _Sent, why: Why) -> None:
        # NOTE: not why: an engine may quote what somebody wrote.
        log.warning("request %s failed upstream: %s", sent.request.id, why.code)
        self.loop.post(partial(self._end_all, sent, FinishReason.ERROR, why))


def _close(sent: _Sent) -> None:
    if sent.task is not None:
        sent.task.cancel()


async def _refusal(response: httpx.Response) -> Refuse:
    """The upstream wants the request later. Raises `UpstreamFailed` if it does not want it."""
    said, status = await _said(response), response.status_code
    if status in (429, 502, 503, 504):
        code = "upstream_rate_limited" if status == 429 else "upstream_unavailable"
        why = f"the engine behind this gateway is busy: {said}"
        return Refuse(_retry_after_s(response.headers), why, code, may_become_job=True)
    if status in (400, 413, 422):
        raise UpstreamFailed(Why(said, "upstream_refused", 400))
    log.error("the upstream answered %d", status)
    if status in (401, 403):
        raise UpstreamFailed(Why("the engine does not take the gateway's key", "upstream_key"))
    raise UpstreamFailed(Why(f"the engine answered {status}: {said}"))


async def _said(response: httpx.Response) -> str:
    data = b""
    async for part in response.aiter_bytes():
        data += part
        if len(data) > MAX_ERROR_BYTES:
            break
    try:
        told = json.loads(data)
        return message_of(told.get("error") or told)
    except (ValueError, AttributeError):
        return data[:500].decode(errors="replace") or "it gave no reason"


def _retry_after_s(headers: httpx.Headers) -> float:
    """What it asks for; a date, or nothing, is `RETRY_S`."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            return min(max(0.0, float(headers[name]) * unit_s), MAX_RETRY_S)
    return RETRY_S
