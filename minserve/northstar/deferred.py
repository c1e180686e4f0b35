"""Long document reports as durable jobs, on the engine that also answers people.

A report is accepted when it arrives, waits in a job store instead of the engine's queue, and
reaches the engine when one of the few places for reports is free. Everything else is sent as ever.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from minserve.client import EngineClient, Listener
from minserve.clock import EventLoop
from minserve.events import Event, Finished
from minserve.jobs.job import Kind, Lease, Submission
from minserve.jobs.store import JobStore
from minserve.request import FinishReason, Request, WorkloadClass

KIND = Kind("document", "minserve.northstar.deferred:DeferringClient", max_attempts=1)
"""Worked on by the client itself, in its loop: no worker imports it."""
LEASE_S = 3600.0
"""Longer than any replay: nobody is to take over."""


class DeferringClient:
    """An `EngineClient` over `inner` that makes requests of class batch jobs of `store`.

    At most `at_once` of them are in the engine. A listener hears of its request as from any client;
    counted from the request's own arrival, its wait as a job is part of its time.
    """

    def __init__(
        self, inner: EngineClient, store: JobStore, loop: EventLoop, at_once: int = 1
    ) -> None:
        self.inner, self.store, self.loop, self.at_once = inner, store, loop, at_once
        self._sent: dict[str, tuple[Request, Listener]] = {}
        self._num_running = 0

    def send(self, request: Request, listener: Listener = lambda event: None) -> None:
        if request.workload_class is not WorkloadClass.BATCH:
            return self.inner.send(request, listener)
        self._sent[request.id] = request, listener
        self.loop.at(request.arrival_s, lambda: self._accept(request))

    def cancel(self, request_id: str) -> None:
        self.inner.cancel(request_id)

    def _accept(self, request: Request) -> None:
        wanted = Submission(KIND.name, {"request": request.id}, request.id)
        self.store.enqueue(request.identity, wanted)
        self._work()

    def _work(self) -> None:
        for lease in self.store.claim("replay", self.at_once - self._num_running, lease_s=LEASE_S):
            self._num_running += 1
            request, _ = self._sent[lease.job.payload["request"]]
            # NOTE: it joins the engine's queue now; with its own arrival it would jump that queue.
            later = replace(request, arrival_s=self.loop.clock.now_s())
            self.inner.send(later, partial(self._hear, lease=lease))

    def _hear(self, event: Event, lease: Lease) -> None:
        self._sent[lease.job.payload["request"]][1](event)
        if isinstance(event, Finished):
            self._num_running -= 1
            if event.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value):
                result = {"output_tokens": event.num_output_tokens}
                self.store.complete(lease, result, {"report": event.request_id})
            else:
                self.store.fail(lease, event.error or event.reason, is_permanent=True)
            self._work()
