"""Sends calls and hands back a record of each: over HTTP, or to an `EngineClient` in process.

Open loop: every call goes out at its own time, whatever the server does. `max_concurrency` holds
calls back, and then the wait counts as dispatch delay and in every latency, from the intended time
on. Closed loop: each of so many users sends when the last answer has come; there is no intended
time but the sending, so a stalled server is asked less, and the report says so.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from minserve.client import EngineClient
from minserve.clock import EventLoop
from minserve.errors import ConfigError
from minserve.events import Admitted, Event, Finished, Submitted, TokensProduced
from minserve.loadtest import openai
from minserve.loadtest.datasets import Call, Encode, Sample
from minserve.loadtest.http import ConnectionBroken, HttpClient
from minserve.loadtest.record import CANCELLED, ERROR, OK, REJECTED, TIMEOUT, Record
from minserve.request import FinishReason

OnRecord = Callable[[Record], None]
SPIN_S = 0.0005
"""How long before a send the sender stops sleeping: a timer of asyncio comes up to 1 ms late."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How calls are released: open loop by default. Raises `ConfigError`."""

    max_concurrency: int | None = None
    is_closed: bool = False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency is {self.max_concurrency}", "use at least 1")
        if self.is_closed and self.max_concurrency is None:
            raise ConfigError("a closed loop has a number of users", "give --max-concurrency")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"a timeout of {self.timeout_s} s", "use more than 0 seconds")


def send_in_process(
    calls: Iterable[Call],
    client: EngineClient,
    loop: EventLoop,
    on_record: OnRecord,
    pace: Pace = Pace(),
    encode: Encode | None = None,
) -> None:
    """Send everything and run `loop` to the end; `on_record(record)` once for each, as it ends.

    Calls are made when they are due and forgotten when they end: memory holds those in flight.
    """
    sender = _InProcess(iter(calls), client, loop, on_record, pace, encode)
    sender.start()
    loop.run(lambda: sender.is_done)  # NOTE: not until the loop is empty, which time-outs keep full


class _InProcess:
    def __init__(
        self,
        calls: Iterator[Call],
        client: EngineClient,
        loop: EventLoop,
        on_record: OnRecord,
        pace: Pace,
        encode: Encode | None,
    ) -> None:
        self.calls, self.client, self.loop, self.on_record = calls, client, loop, on_record
        self.pace, self.encode = pace, encode
        self.num_in_flight = 0
        self.held: deque[Call] = deque()
        self.next: Call | None = None

    @property
    def is_done(self) -> bool:
        """Everything was sent, and has ended."""
        return self.next is None and not self.held and not self.num_in_flight

    def start(self) -> None:
        self.next = next(self.calls, None)
        if self.pace.is_closed:
            for _ in range(self.pace.max_concurrency or 0):
                self._send_next_user()
        elif self.next is not None:
            self.loop.at(self.next.at_s, self._release)

    def _release(self) -> None:
        """Send all that is due by now, before the engine begins a step; come back for the next."""
        now_s = self.loop.clock.now_s()
        while self.next is not None and self.next.at_s <= now_s:
            if self.num_in_flight == self.pace.max_concurrency:
                self.held.append(self.next)
            else:
                self._send(self.next)
            self.next = next(self.calls, None)
        if self.next is not None:
            self.loop.at(self.next.at_s, self._release)

    def _send_next_user(self) -> None:
        if self.next is not None:
            call, self.next = replace(self.next, at_s=self.loop.clock.now_s()), None
            self.next = next(self.calls, None)
            self._send(call)

    def _send(self, call: Call) -> None:
        request = call.request(self.encode)
        record = Record(
            call.id,
            call.at_s,
            kind=call.sample.kind,
            deadline_s=request.deadline_s,
            num_prompt_tokens=request.num_prompt_tokens,
        )
        self.num_in_flight += 1
        self.client.send(request, self._listener(record))
        if self.pace.timeout_s is not None:
            self.loop.at(call.at_s + self.pace.timeout_s, lambda: self._time_out(record))

    def _listener(self, record: Record) -> Callable[[Event], None]:
        times_s, counts = record.times_s, record.counts

        def listen(event: Event) -> None:
            if isinstance(event, TokensProduced):
                times_s.append(event.time_s)
                counts.append(len(event.token_ids))
            elif isinstance(event, Submitted):
                record.sent_s = event.time_s
            elif isinstance(event, Admitted):
                if record.queue_delay_s is None:
                    record.queue_delay_s = event.time_s - record.intended_s
                    record.num_cached_tokens = event.num_cached_tokens
            elif isinstance(event, Finished):
                self._end(record, event)

        return listen

    def _end(self, record: Record, event: Finished) -> None:
        record.ended_s, record.error = event.time_s, event.error or ""
        if record.outcome != TIMEOUT:
            record.outcome = _outcome(event, was_sent=record.sent_s is not None)
        self.num_in_flight -= 1
        self.on_record(record)
        if self.pace.is_closed:
            self._send_next_user()
        elif self.held:
            self._send(self.held.popleft())

    def _time_out(self, record: Record) -> None:
        if record.ended_s is None:
            record.outcome = TIMEOUT
            self.client.cancel(record.id)


def _outcome(event: Finished, was_sent: bool) -> str:
    if event.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value):
        return OK
    if event.reason == FinishReason.CANCELLED.value:
        return CANCELLED
    return ERROR if was_sent else REJECTED


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server and what to ask it for."""

    base_url: str
    model: str
    endpoint: str = openai.COMPLETIONS
    api_key: str = ""
    chunk_usage: bool = True

    def body(self, sample: Sample) -> bytes:
        return openai.body(sample, self.model, self.endpoint, self.chunk_usage)


async def send_over_http(
    calls: Iterable[Call],
    target: Target,
    on_record: OnRecord,
    pace: Pace = Pace(),
    on_start: Callable[[], None] = lambda: None,
    api_keys: dict[str, str] | None = None,
) -> None:
    """Send everything to `target`; `on_record(record)` once for each, as it ends.

    Times count from the start of this call. `api_keys` are the keys of tenants by name: who asks
    is never written into a body.
    """
    sender = _OverHttp(target, on_record, pace, api_keys or {})
    gc.collect()
    gc.freeze()  # NOTE: else a collection walks everything loaded so far, and requests go late
    try:
        on_start()
        await sender.run(iter(calls))
    finally:
        gc.unfreeze()
        sender.client.close()


class _OverHttp:
    def __init__(
        self, target: Target, on_record: OnRecord, pace: Pace, api_keys: dict[str, str]
    ) -> None:
        self.target, self.on_record, self.pace, self.api_keys = target, on_record, pace, api_keys
        self._start_s = time.perf_counter()
        self.client = HttpClient(target.base_url, self.now_s, target.api_key)
        self.tasks: set[asyncio.Task] = set()

    def now_s(self) -> float:
        return time.perf_counter() - self._start_s

    async def run(self, calls: Iterator[Call]) -> None:
        self._start_s = time.perf_counter()
        if self.pace.is_closed:
            users = [self._user(calls) for _ in range(self.pace.max_concurrency or 0)]
            await asyncio.gather(*users)
            return
        limit = self.pace.max_concurrency
        slots = asyncio.Semaphore(limit) if limit else None
        try:
            for call in calls:
                body = self.target.body(call.sample)  # made while it waits, not when it is due
                await self._sleep_until(call.at_s)
                task = asyncio.create_task(self._send(call, body, slots))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            while self.tasks:
                await asyncio.wait(self.tasks)
        finally:
            for task in self.tasks:
                task.cancel()

    async def _sleep_until(self, time_s: float) -> None:
        left_s = time_s - self.now_s()
        if left_s > SPIN_S:
            await asyncio.sleep(left_s - SPIN_S)
        while self.now_s() < time_s:
            await asyncio.sleep(0)

    async def _user(self, calls: Iterator[Call]) -> None:
        for call in calls:
            body = self.target.body(call.sample)
            await self._send(replace(call, at_s=self.now_s()), body, None)

    async def _send(self, call: Call, body: bytes, slots: asyncio.Semaphore | None) -> None:
        sample = call.sample
        deadline_s = None if sample.deadline_s is None else call.at_s + sample.deadline_s
        record = Record(call.id, call.at_s, kind=sample.kind, deadline_s=deadline_s)
        try:
            left_s = None
            if self.pace.timeout_s is not None:
                left_s = max(0.001, call.at_s + self.pace.timeout_s - self.now_s())
            async with asyncio.timeout(left_s):
                if slots is None:
                    await self._exchange(record, body, sample)
                else:
                    async with slots:
                        await self._exchange(record, body, sample)
        except TimeoutError:
            record.outcome, record.ended_s = TIMEOUT, self.now_s()
        except ConnectionBroken as error:
            record.outcome, record.error, record.ended_s = ERROR, str(error), self.now_s()
        self.on_record(record)

    async def _exchange(self, record: Record, body: bytes, sample: Sample) -> None:
        def sent(now_s: float) -> None:
            record.sent_s = now_s

        reader = openai.AnswerReader(record)
        key = self.api_keys.get(sample.identity.tenant, "")
        reply = await self.client.post(self.target.endpoint, body, reader.feed, sent, key)
        reader.finish(reply.status, self.now_s(), reply.headers.get("retry-after", ""))


async def look_up(target: Target) -> dict[str, Any]:
    """What the server says of itself: its models, and the precision of each that tells one.

    Raises `ConnectionBroken` if nobody answers.
    """
    import json

    client = HttpClient(target.base_url, time.perf_counter, target.api_key)
    try:
        reply, content = await client.get("/v1/models")
    finally:
        client.close()
    try:
        cards = {card["id"]: card.get("precision") for card in json.loads(content)["data"]}
    except (ValueError, KeyError, TypeError):  # no JSON, or an error: it may serve all the same
        cards = {}
    return {"models": list(cards), "precision": cards, "server": reply.headers.get("server", "")}
