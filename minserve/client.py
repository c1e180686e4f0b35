"""How everybody else reaches an engine: send a request, hear its events, cancel it.

Routing, jobs, load tests and Northstar know only this. `LocalClient` drives an engine in this
process, on a wall or a virtual clock; an engine behind HTTP or in a cluster offers the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from minserve.clock import EventLoop
from minserve.engine import Engine
from minserve.errors import MinserveError
from minserve.events import Event, Finished
from minserve.request import FinishReason, Request


class EngineClient(Protocol):
    """Accepts requests at a time of the client's clock and reports each request's own events.

    `send(request, listener)` has the request submitted at its `arrival_s` and calls
    `listener(event)` for each of its events; the last one is `Finished`, also when it is refused.
    `cancel(request_id)` ends it; after the end it does nothing.
    """

    def send(
        self, request: Request, listener: Callable[[Event], None] = lambda event: None
    ) -> None: ...

    def cancel(self, request_id: str) -> None: ...


class LocalClient:
    """Drives `engine` from the event queue of `loop`: arrivals, step ends, timers and cancels.

    While a step is in flight its request may be cancelled and others may arrive. Several clients
    can share a loop: then their engines run side by side. Only `cancel` via `loop.post` is meant
    for other threads.
    """

    def __init__(self, engine: Engine, loop: EventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self._listeners: dict[str, Callable[[Event], None]] = {}
        self._is_stepping = False
        self._timer_s: float | None = None
        engine.log.listen(self._dispatch)

    def send(
        self, request: Request, listener: Callable[[Event], None] = lambda event: None
    ) -> None:
        self.loop.at(request.arrival_s, lambda: self._submit(request, listener))

    def cancel(self, request_id: str, at_s: float | None = None) -> None:
        """End a request now, or at `at_s`."""
        time_s = self.loop.clock.now_s() if at_s is None else at_s
        self.loop.at(time_s, lambda: self._cancel(request_id))

    def run(self) -> None:
        """Handle everything that has been sent, to the end."""
        self.loop.run()

    def _submit(self, request: Request, listener: Callable[[Event], None]) -> None:
        now_s = self.loop.clock.now_s()
        if request.id in self._listeners:
            return listener(_refused(request, now_s, f"request id {request.id!r} is in use"))
        self._listeners[request.id] = listener
        try:
            self.engine.submit(request, now_s)
        except MinserveError as error:
            del self._listeners[request.id]
            return listener(_refused(request, now_s, str(error)))
        self._pump()

    def _cancel(self, request_id: str) -> None:
        self.engine.cancel(request_id, self.loop.clock.now_s())

    def _pump(self) -> None:
        if self._is_stepping:
            return
        now_s = self.loop.clock.now_s()
        handle = self.engine.begin_step(now_s)
        if handle is not None:
            self._is_stepping = True
            ready_at_s = now_s if handle.ready_at_s is None else handle.ready_at_s
            self.loop.at(ready_at_s, self._finish_step)
        elif (wake_at_s := self.engine.wake_at_s) is not None and wake_at_s != self._timer_s:
            self._timer_s = wake_at_s
            self.loop.at(wake_at_s, self._pump)

    def _finish_step(self) -> None:
        self._is_stepping = False
        self.engine.finish_step(self.loop.clock.now_s())
        self._pump()

    def _dispatch(self, event: Event) -> None:
        request_id = getattr(event, "request_id", None)
        listener = self._listeners.get(request_id)
        if isinstance(event, Finished):
            self._listeners.pop(request_id, None)
        if listener:
            listener(event)


def _refused(request: Request, now_s: float, why: str) -> Finished:
    request.finish_reason, request.error = FinishReason.ERROR, why
    return Finished(now_s, request.id, FinishReason.ERROR.value, 0, why)
