"""What all routes share: the model, the engine's thread, who may call, and who is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from minserve.cached_service import CachedService
from minserve.cascaded_service import CascadedService, cascade_of
from minserve.clock import EventLoop
from minserve.errors import ExecutorFailed
from minserve.request import Request
from minserve.service import Listener, Service
from minserve.serving.calls import Call, CallMaker, ServedModel
from minserve.serving.embeddings import Embeddings
from minserve.serving.engine_thread import EngineThread
from minserve.serving.errors import ApiError
from minserve.serving.identity import KeyRing, Salts
from minserve.serving.streaming import Mailbox, Reply
from minserve.serving.watch import Watch

if TYPE_CHECKING:
    from minserve.serving.cluster_engine import ClusterEngine
    from minserve.serving.cluster_gateway import ClusterWatch

log = logging.getLogger("minserve.server")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one client can make the server hold or wait for.

    Sizes in bytes or tokens, times in seconds: `body_s` to receive a body, `request_s` from
    arrival to the last token, `write_s` without a client taking anything, `drain_s` for open
    requests to finish once the server is asked to stop, `health_s` for the engine to show life.
    """

    max_body_bytes: int = 1 << 20
    max_open: int = 1024
    max_held_tokens: int = 512
    default_max_tokens: int = 1024
    body_s: float = 30.0
    request_s: float = 600.0
    write_s: float = 30.0
    drain_s: float = 30.0
    health_s: float = 10.0


@dataclass(eq=False)
class Server:
    """One model behind HTTP. Apart from the engine's thread, it belongs to asyncio's.

    Args:
        model: What is served.
        make_service: Builds the service on the engine's event loop.
        keys: Who may call; None lets anybody in, which is for loopback only.
        region: Where it stands, for reports to operators; it is on no metric.
    """

    model: ServedModel
    make_service: Callable[[EventLoop], Service | CachedService | CascadedService]
    keys: KeyRing | None = None
    salts: Salts = field(default_factory=Salts)
    limits: Limits = field(default_factory=Limits)
    is_draining: bool = False
    embeddings: Embeddings | None = None
    region: str = ""

    def __post_init__(self) -> None:
        self.engine, self.watch = self._make_engine()
        self.calls = CallMaker(
            self.model,
            self.salts,
            self.limits.default_max_tokens,
            self.limits.max_held_tokens,
            can_check=cascade_of(self.engine.service) is not None,
        )
        self._open: dict[Call, asyncio.TimerHandle] = {}
        self._mailbox: Mailbox

    def _make_engine(
        self,
    ) -> tuple[
        EngineThread[Service | CachedService | CascadedService] | ClusterEngine,
        Watch | ClusterWatch,
    ]:
        engine = EngineThread(self.make_service)
        return engine, Watch(engine.service, self.model.names[0])

    def start(self) -> None:
        """Start the engine. Called on asyncio's thread."""
        self._mailbox = Mailbox(asyncio.get_running_loop(), self.engine.soon)
        self.engine.on_death = partial(self._mailbox.call, self._engine_died)
        self.engine.start()
        if self.embeddings:
            self.embeddings.thread.start()

    def stop(self) -> None:
        """End everything that is open, and the engine."""
        self.fail_open(ApiError(503, "the server is shutting down", code="shutting_down"))
        self.engine.stop()
        if self.embeddings:
            self.embeddings.thread.stop()

    @property
    def num_open(self) -> int:
        """Calls that are being answered."""
        return len(self._open)

    def reply(self, call: Call) -> Reply:
        """The response that has the engine serve `call`."""
        begin, end = partial(self._begin, call), partial(self._end, call)
        return Reply(call, begin, end, self.limits.write_s)

    def fail_open(self, error: ApiError) -> None:
        """End every open call with `error`; those that are streaming send it as an event."""
        for call in self._open:
            call.stream.fail(error)

    async def check_alive(self) -> None:
        """Raises `ApiError` (503) if the engine is dead, or does not answer for `health_s`."""
        if self.engine.failure is not None:
            raise _dead(self.engine.failure)
        answer = asyncio.wrap_future(self.engine.ask(lambda: None))
        try:
            await asyncio.wait_for(answer, self.limits.health_s)
        except TimeoutError:
            why = f"the engine has not answered for {self.limits.health_s:g} s"
            raise _dead(self.engine.failure or why) from None

    def _begin(self, call: Call) -> None:
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self.num_open >= self.limits.max_open:
            raise ApiError(
                503, f"{self.num_open} requests are open", code="too_many_open", retry_after_s=1.0
            )
        late = ApiError(
            504,
            f"the request took longer than {self.limits.request_s:g} s",
            code="timeout",
            may_retry=False,  # the same again would take as long
        )
        loop = asyncio.get_running_loop()
        self._open[call] = loop.call_later(self.limits.request_s, call.stream.fail, late)
        num_choices = len(call.answer.choices) // len(call.requests)
        try:
            for index, request in enumerate(call.requests):
                first = index * num_choices
                listener = partial(self._mailbox.put, call.stream, first)
                self.watch.traces.expect(request, self.engine.now_s())
                self._submit(call, request, listener)
        except ExecutorFailed as error:
            raise _dead(str(error)) from None

    def _submit(self, call: Call, request: Request, listener: Listener) -> None:
        self.engine.submit(request, listener, call.quota, call.wording)

    def _end(self, call: Call) -> None:
        if timer := self._open.pop(call, None):
            timer.cancel()
            if not call.answer.is_over:
                for request in call.requests:
                    self.engine.cancel(request.id)
            for request in call.requests:
                self.watch.traces.settle(request)

    def _engine_died(self, why: str) -> None:
        self._mailbox.deliver()
        self.fail_open(_dead(why))


def _dead(why: str) -> ApiError:
    return ApiError(503, f"the engine is not running: {why}", code="engine_dead")
