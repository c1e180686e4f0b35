"""Those who wait, in the order of an `Ordering`, without sorting them again and again."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

from minserve.request import Request
from minserve.scheduling.ordering import Ordering


class Queue:
    """A sorted list for each lane of `ordering`; the lanes are merged as far as somebody looks.

    So a step costs what is looked at, and the number of lanes, however many wait. Ties keep the
    order of submission. `now_s` is what keys are asked for; the owner moves it on.
    """

    def __init__(
        self, ordering: Ordering, requests: Iterable[Request] = (), now_s: float = 0.0
    ) -> None:
        self.ordering, self.now_s = ordering, now_s
        self.lanes: dict[Hashable, list[Request]] = {}
        for request in requests:
            self.append(request)

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def __iter__(self) -> Iterator[Request]:
        return heapq.merge(*self.lanes.values(), key=self.key)

    def key(self, request: Request):
        return self.ordering.key(request, self.now_s), request.number

    def append(self, request: Request) -> None:
        """Take in `request`, at its place."""
        lane = self.lanes.setdefault(self.ordering.lane(request), [])
        bisect.insort(lane, request, key=self.key)

    def remove(self, request: Request) -> None:
        """Give up `request`, which waits here."""
        lane = self.lanes[self.ordering.lane(request)]
        # NOTE: choices of one prompt share their key.
        del lane[lane.index(request, bisect.bisect_left(lane, self.key(request), key=self.key))]
        if not lane:
            del self.lanes[self.ordering.lane(request)]

    def first(
        self, count: int, is_lane: Callable[[Any], bool] = lambda lane: True
    ) -> list[Request]:
        """The first `count` of those whose lane `is_lane`."""
        lanes = (requests for lane, requests in self.lanes.items() if is_lane(lane))
        return list(islice(heapq.merge(*lanes, key=self.key), count))

    def heads(self) -> Iterator[Request]:
        """The first of each lane."""
        return (requests[0] for requests in self.lanes.values())
