"""How everybody else reaches an engine: send a request, hear its events, cancel it.

Routing, jobs, load tests and Northstar know only this. `LocalClient` drives an engine in this
process, on a wall or a virtual clock; an engine behind HTTP or in a cluster offers the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from minserve.clock import EventLoop
from minserve.engine import Engine
from minserve.errors import ExecutorFailed, MinserveError
from minserve.events import Event, Finished, RequestEvent
from minserve.execution.executor import Handle
from minserve.request import FinishReason, Request, Status

Listener = Callable[[Event], None]


class EngineClient(Protocol):
    """Accepts requests at a time of the client's clock and reports each request's own events.

    `send(request, listener)` has the request submitted at its `arrival_s` and calls
    `listener(event)` for each of its events; the last one is `Finished`, also when it is refused.
    A request for several choices has one `Finished` for each id of `request.choice_ids`.
    `cancel(request_id)` ends it with all its choices; after the end it does nothing.
    """

    def send(self, request: Request, listener: Listener = lambda event: None) -> None: ...

    def cancel(self, request_id: str) -> None: ...


class LocalClient:
    """Drives `engine` from the event queue of `loop`: arrivals, step ends, timers and cancels.

    While a step is in flight its request may be cancelled and others may arrive. Several clients
    can share a loop: then their engines run side by side. Only `cancel` via `loop.post` is meant
    for other threads.

    Nobody is left waiting: if the executor fails, or the policy or a listener raises, every
    request ends with an error. What is a bug and not a lost executor goes on out of `loop.run`;
    for a lost executor `failure` says why.
    """

    def __init__(self, engine: Engine, loop: EventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.failure: str | None = None
        self._arriving: dict[str, list[tuple[Request, Listener]]] = {}
        self._served: dict[str, tuple[Request, Listener]] = {}
        self._is_stepping = False
        self._is_pumping = False
        self._timer_s: float | None = None
        engine.log.listen(self._dispatch)

    def send(self, request: Request, listener: Listener = lambda event: None) -> None:
        sent = (request, listener)
        self._arriving.setdefault(request.id, []).append(sent)
        self.loop.at(request.arrival_s, lambda: self._submit(sent))

    def cancel(self, request_id: str, at_s: float | None = None) -> None:
        """End a request now, or at `at_s`; also one that has been sent and is still to arrive."""
        time_s = self.loop.clock.now_s() if at_s is None else at_s
        self.loop.at(time_s, lambda: self._cancel(request_id))

    def run(self) -> None:
        """Handle everything that has been sent, to the end."""
        self.loop.run()

    def _submit(self, sent: tuple[Request, Listener]) -> None:
        request, now_s = sent[0], self.loop.clock.now_s()
        if not self._take(sent):  # cancelled before it arrived
            return
        choice_ids = request.choice_ids
        if any(choice_id in self._served for choice_id in choice_ids):
            return self._end(sent, FinishReason.ERROR, f"request id {request.id!r} is in use")
        self._served.update(dict.fromkeys(choice_ids, sent))
        try:
            self.engine.submit(request, now_s)
        except MinserveError as error:
            for choice_id in choice_ids:
                del self._served[choice_id]
            return self._end(sent, FinishReason.ERROR, str(error))
        self._pump_soon()

    def _cancel(self, request_id: str) -> None:
        if not self.engine.cancel(request_id, self.loop.clock.now_s()):
            for sent in self._arriving.get(request_id, [])[:1]:
                self._take(sent)
                self._end(sent, FinishReason.CANCELLED)

    def _take(self, sent: tuple[Request, Listener]) -> bool:
        """Strike `sent` off those still to arrive; False if it has been already."""
        request_id = sent[0].id
        if sent not in self._arriving.get(request_id, ()):
            return False
        self._arriving[request_id].remove(sent)
        if not self._arriving[request_id]:
            del self._arriving[request_id]
        return True

    def _end(
        self, sent: tuple[Request, Listener], reason: FinishReason, why: str | None = None
    ) -> None:
        """Tell the listener of a request that the engine never had."""
        request, listener = sent
        is_served = request is self._served.get(request.id, (None,))[0]
        if request.status is Status.WAITING and not is_served:
            request.status, request.finish_reason, request.error = Status.FINISHED, reason, why
        for choice_id in request.choice_ids:
            listener(Finished(self.loop.clock.now_s(), choice_id, reason.value, 0, why))

    def _pump_soon(self) -> None:
        """Begin a step after whatever is due by now: who arrived in time is to be in it."""
        if not (self._is_stepping or self._is_pumping):
            self._is_pumping = True
            self.loop.at(self.loop.clock.now_s(), self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        if self._is_stepping:
            return
        now_s = self.loop.clock.now_s()
        handle = self._or_fail_all(self.engine.begin_step, now_s)
        if handle is not None:
            self._is_stepping = True
            ready_at_s = now_s if handle.ready_at_s is None else handle.ready_at_s
            self.loop.at(ready_at_s, self._finish_step)
        elif (wake_at_s := self.engine.wake_at_s) is not None and wake_at_s != self._timer_s:
            self._timer_s = wake_at_s
            self.loop.at(wake_at_s, self._pump)

    def _finish_step(self) -> None:
        self._is_stepping = False
        self._or_fail_all(self.engine.finish_step, self.loop.clock.now_s())
        self._pump_soon()

    def _or_fail_all(self, call: Callable[[float], Handle | None], now_s: float) -> Handle | None:
        try:
            return call(now_s)
        except ExecutorFailed as error:
            self.failure = str(error)
            return None  # every request has had its error event
        except BaseException as error:
            self.engine.fail_all(str(error), now_s)
            raise

    def _dispatch(self, event: Event) -> None:
        if not isinstance(event, RequestEvent) or event.request_id not in self._served:
            return
        _, listener = self._served[event.request_id]
        if isinstance(event, Finished):
            del self._served[event.request_id]
        listener(event)
