"""Orderings: whose turn is next. Lower keys go first; the scheduler keeps ties in arrival order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from minserve.request import Request

if TYPE_CHECKING:
    from minserve.scheduling.queue import Queue


class Ordering:
    """First come, first served. Subclasses change `key`.

    `is_fixed` promises that a request's key never changes, so that those who run are sorted when
    somebody joins, and not at every step.
    """

    is_fixed = True

    def key(self, request: Request, now_s: float) -> Any:
        """What to sort by."""
        return request.arrival_s

    def lane(self, request: Request) -> Hashable:
        """Names those who never change their order among themselves: such a lane is sorted once."""
        return None if self.is_fixed else request.id

    def shown(self, waiting: Queue, count: int) -> list[Request]:
        """Which of those that wait a policy is shown: the first `count`."""
        return waiting.first(count)

    def arrived(self, request: Request, active: Iterable[Request]) -> None:
        """`request` is about to join; `active` run, or are the first of a lane that waits."""

    def served(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        """A step computed this much for `request`."""


FirstComeFirstServed = Ordering


class EarliestDeadline(Ordering):
    """The nearest deadline first (Liu and Layland, 1973).

    A request without one counts as due `default_s` seconds after it arrived, so it too comes to
    be the earliest and never starves.
    """

    def __init__(self, default_s: float = 60.0) -> None:
        self.default_s = default_s

    def key(self, request: Request, now_s: float) -> Any:
        due_s = request.deadline_s
        return request.arrival_s + self.default_s if due_s is None else due_s


class PriorityWithAgeing(Ordering):
    """The highest `priority` first; every `ageing_s` seconds of waiting count as one level.

    Because everybody ages alike, the order of two requests never changes: whoever arrived
    `ageing_s` earlier is one level ahead for good, and no priority starves another.
    """

    def __init__(self, ageing_s: float = 10.0) -> None:
        self.ageing_s = ageing_s

    def key(self, request: Request, now_s: float) -> Any:
        return request.arrival_s / self.ageing_s - request.priority


class VirtualTokenCounter(Ordering):
    """The tenant that has been served least goes first (Sheng et al., 2024).

    An output token counts as `output_weight` prompt tokens. A tenant that was away starts level
    with the least served tenant that is active: being idle saves up no credit. Where nobody is
    active all are level, so who is away is remembered only as far as it was served more.
    """

    is_fixed = False

    def __init__(self, output_weight: float = 2.0) -> None:
        self.output_weight = output_weight
        self.counters: dict[str, float] = {}

    def key(self, request: Request, now_s: float) -> Any:
        return self.counters[request.identity.tenant], request.arrival_s

    def lane(self, request: Request) -> Hashable:
        return request.identity.tenant

    def arrived(self, request: Request, active: Iterable[Request]) -> None:
        tenant = request.identity.tenant
        tenants = {other.identity.tenant for other in active}
        if tenant not in tenants:
            floor = min((self.counters[other] for other in tenants), default=float("inf"))
            self.counters = {t: c for t, c in self.counters.items() if t in tenants or c > floor}
            self.counters.setdefault(tenant, floor if tenants else 0.0)

    def served(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        cost = num_prefill_tokens + self.output_weight * num_output_tokens
        self.counters[request.identity.tenant] += cost
