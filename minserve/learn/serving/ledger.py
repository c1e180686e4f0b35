"""Which parts each live request went through: a count of calls by request and part."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from minserve.events import Admitted, Event, Finished, Submitted, TokensProduced

MAX_KEPT = 200


@dataclass(slots=True)
class Passage:
    """One request's way. `arrived` and `served` are its places in the queue and at its first step.

    `chunks` are (time in seconds, tokens) of what it wrote, as `request_measures` takes them.
    """

    id: str
    arrival_s: float
    arrived: int = 0
    served: int = 0
    state: str = "open"
    parts: Counter[str] = field(default_factory=Counter)
    measures: dict[str, float | None] = field(default_factory=dict)
    chunks: list[tuple[float, int]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; parts in alphabetical order."""
        return {
            "id": self.id,
            "arrived": self.arrived,
            "served": self.served,
            "state": self.state,
            "parts": dict(sorted(self.parts.items())),
            "measures": self.measures,
        }


class Ledger:
    """The last requests' passages. Written on the engine's thread; reading copies.

    A part that is not told for whom it works counts for `current`, whom `during` names.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self.max_kept = max_kept
        self.current: tuple[str, ...] = ()
        self._passages: OrderedDict[str, Passage] = OrderedDict()
        self._num_arrived = self._num_served = 0

    def begin(self, request_id: str, arrival_s: float) -> Passage:
        """A request has come in."""
        passage = self._passages[request_id] = Passage(request_id, arrival_s)
        while len(self._passages) > self.max_kept:
            self._passages.popitem(last=False)
        return passage

    @contextmanager
    def during(self, *request_ids: str) -> Iterator[None]:
        """Parts called meanwhile work for these requests."""
        before, self.current = self.current, request_ids
        try:
            yield
        finally:
            self.current = before

    def note(self, part: str, *request_ids: str) -> None:
        """One call of `part`, for these requests or the current ones."""
        for request_id in request_ids or self.current:
            if passage := self.find(request_id):
                passage.parts[part] += 1

    def find(self, request_id: str) -> Passage | None:
        """A request's passage; a choice (`id#1`) goes with its request."""
        return self._passages.get(request_id.partition("#")[0])

    def hear(self, event: Event) -> Passage | None:
        """Take in an event of the engine's log; the passage of a request that has just ended."""
        id = getattr(event, "request_id", "")
        passage = self.find(id)
        if passage is None or "#" in id:
            return None
        match event:
            case Submitted():
                self._num_arrived += 1
                passage.arrived = self._num_arrived
            case Admitted() if not passage.served:
                self._num_served += 1
                passage.served = self._num_served
            case TokensProduced():
                passage.chunks.append((event.time_s, len(event.token_ids)))
            case Finished():
                passage.state = event.reason
                return passage
        return None

    def passages(self) -> list[dict[str, Any]]:
        """All that are kept, oldest first."""
        return [passage.as_dict() for passage in list(self._passages.values())]
