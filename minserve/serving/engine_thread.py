"""The one thread that owns the engine. Everybody else sends it messages: submit, cancel, stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from minserve.client import LocalClient
from minserve.clock import EventLoop, WallClock
from minserve.errors import ExecutorFailed
from minserve.request import FinishReason, Request
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Ended, Listener

if TYPE_CHECKING:
    from minserve.reuse.key import Wording

log = logging.getLogger("minserve.engine")
T = TypeVar("T")


class Served(Protocol):
    """What an engine's thread runs: a `Service`, one with a cache before it, or the like."""

    @property
    def client(self) -> LocalClient: ...

    def submit(
        self, request: Request, listener: Listener, quota: Quota, wording: Wording | None
    ) -> None: ...

    def cancel(self, request_id: str) -> None: ...


S = TypeVar("S", bound=Served)


class EngineThread(Generic[S]):
    """Runs a service's event loop on the wall clock, until it is stopped or dies.

    `submit`, `cancel` and `ask` may be called from any thread and return at once; listeners are
    called on the engine's thread and must not block. When the engine dies `failure` says why, and
    `on_death(failure)` is called, on its thread: whoever is still waiting must be told by whoever
    sent them.
    """

    def __init__(
        self,
        make_service: Callable[[EventLoop], S],
        on_death: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.loop = EventLoop(WallClock())
        self.service = make_service(self.loop)
        self.failure: str | None = None
        self.on_death = on_death
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Have the thread end after the step in progress, and wait for that."""
        self.loop.post(lambda: setattr(self, "_is_stopped", True))
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def now_s(self) -> float:
        """Seconds on the engine's clock."""
        return self.loop.clock.now_s()

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
    ) -> None:
        """See `Service.submit`. Raises `ExecutorFailed` if the engine is dead."""
        if self.failure is not None:
            raise ExecutorFailed(f"the engine has stopped: {self.failure}", "restart the server")
        self.loop.post(lambda: self._submit(request, listener, quota, wording))

    def cancel(self, request_id: str) -> None:
        """See `Service.cancel`. It takes effect before the next step begins."""
        self.loop.post(lambda: self.service.cancel(request_id))

    def soon(self, call: Callable[[], None]) -> None:
        """Have `call()` called once what the engine's thread is at is over. On that thread only."""
        self.loop.at(0.0, call)

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """The answer of `question()`, called on the engine's thread between two steps."""
        answer: Future[T] = Future()

        def call() -> None:
            if not answer.set_running_or_notify_cancel():  # whoever asked has given up
                return
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        self.loop.post(call)
        return answer

    def _submit(
        self, request: Request, listener: Listener, quota: Quota, wording: Wording | None
    ) -> None:
        try:
            self.service.submit(request, listener, quota, wording)
        except Exception as error:  # one request's trouble is not everybody's
            log.exception("request %s could not be submitted", request.id)
            listener(Ended(0, FinishReason.ERROR, f"{type(error).__name__}: {error}"))

    def _run(self) -> None:
        client = self.service.client
        try:
            self.loop.run(lambda: self._is_stopped or client.failure is not None, forever=True)
            self.failure = client.failure
        except BaseException as error:
            log.exception("the engine has died")
            self.failure = f"{type(error).__name__}: {error}"
        if self.failure is None:
            self.failure = "it was shut down"
        else:
            log.error("the engine has stopped: %s", self.failure)
        self.on_death(self.failure)
