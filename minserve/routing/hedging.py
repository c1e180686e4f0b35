"""The same request to a second engine when the first is late (Dean and Barroso, 2013).

Waiting until the 95th percentile before asking again adds at most about 5 % of load, and cuts the
tail that one slow engine makes. It helps only where engines are slow by chance: under overload a
second copy makes everything later, so then there is none.

Equivalent inputs: two runs of one idempotent request. Valid until one has a token. Scope: its
asker, whose identity and salt both copies carry. Order: the first wins. A cancelled request ends
both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from minserve.client import EngineClient, Listener
from minserve.clock import EventLoop
from minserve.events import Event, Finished, RequestEvent, Submitted, TokensProduced
from minserve.metrics import percentile
from minserve.request import Request

WINDOW = 200
MIN_SAMPLES = 20
HEDGE = "~hedge"


class Hedging:
    """An `EngineClient` over two others: who produces a token first serves the request.

    The listener hears one request, under its own id, with one end; the other engine's copy is
    cancelled. Both clients must run on `loop`.

    Args:
        first: Gets every request.
        second: Gets a copy of those that are late.
        loop: The event loop of both.
        is_idempotent: Whether serving a request twice does no harm. Plain inference does none; a
            request that calls tools may.
        is_overloaded: While True there are no copies.
        share: Copies are at most this share of all requests so far.
        quantile: Of the times to first token of late; a copy is sent when it is over.
    """

    def __init__(
        self,
        first: EngineClient,
        second: EngineClient,
        loop: EventLoop,
        *,
        is_idempotent: Callable[[Request], bool] = lambda request: True,
        is_overloaded: Callable[[], bool] = lambda: False,
        share: float = 0.05,
        quantile: float = 0.95,
    ) -> None:
        self._first, self._second, self._loop = first, second, loop
        self._is_idempotent, self._is_overloaded = is_idempotent, is_overloaded
        self._share, self._quantile = share, quantile
        self._ttft_s: deque[float] = deque(maxlen=WINDOW)
        self._races: dict[str, _Race] = {}
        self.num_requests = self.num_hedges = self.num_won = 0
        """Requests, copies sent, and copies that were first."""

    @property
    def delay_s(self) -> float | None:
        """How late is late; None until there are enough samples."""
        if len(self._ttft_s) < MIN_SAMPLES:
            return None
        return percentile(self._ttft_s, self._quantile)

    def send(self, request: Request, listener: Listener = lambda event: None) -> None:
        race = _Race(request, listener)
        self.num_requests += 1
        self._races[request.id] = race
        if self._is_idempotent(request):
            self._loop.at(request.arrival_s, lambda: self._wait(race))
        self._first.send(request, lambda event: self._hear(race, self._first, event))

    def cancel(self, request_id: str) -> None:
        if race := self._races.get(request_id):
            race.is_cancelled = True
            for client, id in self._copies(race):
                client.cancel(id)

    def _wait(self, race: _Race) -> None:
        if (delay_s := self.delay_s) is not None:
            due_s, at = self._loop.clock.now_s() + delay_s, self._loop.at
            # NOTE: behind all else that is due then: as late as the quantile is not yet late.
            at(due_s, lambda: at(due_s, lambda: self._hedge(race)))

    def _hedge(self, race: _Race) -> None:
        """It is late now: send the copy, if it may be sent."""
        is_waiting = race.request.id in self._races and race.winner is None
        within_share = self.num_hedges + 1 <= self._share * self.num_requests
        if not is_waiting or race.is_cancelled or self._is_overloaded() or not within_share:
            return
        self.num_hedges += 1
        race.num_open += 1
        race.is_hedged = True
        old = race.request
        copy = Request(
            old.id + HEDGE,
            old.prompt_token_ids,
            old.sampling,
            identity=old.identity,
            workload_class=old.workload_class,
            arrival_s=self._loop.clock.now_s(),
            deadline_s=old.deadline_s,
            priority=old.priority,
            adapter=old.adapter,
            cache_salt=old.cache_salt,
        )
        self._second.send(copy, lambda event: self._hear(race, self._second, event))

    def _hear(self, race: _Race, client: EngineClient, event: Event) -> None:
        if isinstance(event, Finished):
            race.num_open -= 1
        if race.winner is None:
            if isinstance(event, TokensProduced):
                self._won(race, client, event.time_s)
            elif isinstance(event, Finished):
                if race.num_open and not race.is_cancelled:
                    return  # it failed, and the other may not
                race.winner = client
            elif client is self._second:
                return  # what the request was told when it was submitted holds
        if race.winner not in (None, client):
            return
        if race.winner is self._second and isinstance(event, Submitted):
            return
        if isinstance(event, Finished):
            self._races.pop(race.request.id, None)
        race.listener(_renamed(event, race.request.id))

    def _won(self, race: _Race, client: EngineClient, now_s: float) -> None:
        race.winner = client
        self.num_won += client is self._second
        self._ttft_s.append(now_s - race.request.arrival_s)
        for other, id in self._copies(race):
            if other is not client:
                other.cancel(id)

    def _copies(self, race: _Race) -> list[tuple[EngineClient, str]]:
        found = [(self._first, race.request.id)]
        return found + [(self._second, race.request.id + HEDGE)] * race.is_hedged


@dataclass(eq=False, slots=True)
class _Race:
    request: Request
    listener: Listener
    winner: EngineClient | None = None
    num_open: int = 1
    is_hedged: bool = False
    is_cancelled: bool = False


def _renamed(event: Event, request_id: str) -> Event:
    return replace(event, request_id=request_id) if isinstance(event, RequestEvent) else event
