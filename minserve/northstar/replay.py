"""Replay traffic through whatever offers `EngineClient`, and judge what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minserve.client import EngineClient
from minserve.energy import UNKNOWN, Energy
from minserve.events import Event, Finished, RequestEvent
from minserve.metrics import Outcome, Summary, outcomes, summarise
from minserve.northstar.questions import is_qualified
from minserve.northstar.traffic import Arrival
from minserve.request import Request


@dataclass(slots=True)
class Replay:
    """What one replay was made of: the requests, and what happened, in order.

    `events` holds the requests' own events. Whoever knows the engine's log may add its steps, by
    `log.listen(replay.note_step)`; without them block and step figures stay empty.
    """

    arrivals: Sequence[Arrival]
    requests: list[Request]
    events: list[Event] = field(default_factory=list)
    num_finished: int = 0
    energy: Energy = UNKNOWN
    evicted_blocks: int | None = None

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> Replay:
        """Fresh requests for `arrivals`."""
        return cls(arrivals, [arrival.request() for arrival in arrivals])

    def note_step(self, event: Event) -> None:
        """Take in an event of the engine's log, if it is one of a step."""
        if not isinstance(event, RequestEvent):
            self.events.append(event)

    def run(
        self,
        client: EngineClient,
        drive: Callable[[], None],
        on_finished: Callable[[int], None] = lambda num_finished: None,
    ) -> None:
        """Send everything, then `drive()` the client to the end.

        `on_finished(n)` is called when the n-th request has ended, for a progress bar.
        """

        def listen(event: Event) -> None:
            self.events.append(event)
            if isinstance(event, Finished):
                self.num_finished += 1
                on_finished(self.num_finished)

        for request in self.requests:
            client.send(request, listen)
        drive()

    def outcomes(self) -> list[Outcome]:
        """One for each request, in the order of the traffic."""
        return outcomes(self.requests, self.events)

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Output token ids by request id, to compare runs by."""
        return {outcome.request_id: tuple(outcome.token_ids) for outcome in self.outcomes()}

    def qualified(self, decode: Callable[[Sequence[int]], str], version: str = "v1") -> set[str]:
        """Ids of the requests that ended well with a right answer, where that can be checked.

        `decode` turns output token ids into text without special tokens.
        """
        return {
            outcome.request_id
            for outcome, arrival in zip(self.outcomes(), self.arrivals, strict=True)
            if outcome.is_ok
            and arrival.question is not None
            and is_qualified(arrival.question, decode(outcome.token_ids), version)
        }

    def summarise(self, price_per_hour: float = 0.0, qualified: set[str] | None = None) -> Summary:
        """Every figure; see `minserve.metrics`."""
        return summarise(
            self.requests,
            self.events,
            qualified=qualified,
            price_per_hour=price_per_hour,
            energy=self.energy,
            evicted_blocks=self.evicted_blocks,
        )

    def summarise_by_kind(self) -> dict[str, Summary]:
        """The same figures for each kind of work: one average hides who waits."""
        kinds: dict[str, list[Request]] = {}
        for arrival, request in zip(self.arrivals, self.requests, strict=True):
            kinds.setdefault(arrival.kind, []).append(request)
        return {kind: summarise(requests, self.events) for kind, requests in kinds.items()}
