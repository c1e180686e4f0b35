"""What each tenant has used: a report for operators, and the only place that counts by tenant.

Metrics have no tenant among their labels, for anybody who scrapes them would learn who asks, and
how many there are would have no bound. Here the number is bounded, and only operators may look.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from minserve.metrics import Outcome
from minserve.request import Request
from minserve.serving.metrics import SECONDS

MAX_TENANTS = 1_000
OTHERS = ""
"""No tenant's name: those who have not asked for longest, together, once there are too many."""


@dataclass(slots=True)
class Used:
    """Counts of one tenant since the start; seconds in the buckets of the metrics."""

    by_reason: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    deadlines: int = 0
    deadline_misses: int = 0
    ttft_counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))

    def add(self, outcome: Outcome) -> None:
        """One request of it has ended."""
        self.by_reason[outcome.reason] = self.by_reason.get(outcome.reason, 0) + 1
        if outcome.deadline_s is not None and outcome.reason != "cancelled":
            self.deadlines += 1
            self.deadline_misses += not outcome.met_deadline
        if outcome.chunks:  # else nothing of it was computed to the end
            self.prompt_tokens += outcome.num_prompt_tokens
            self.cached_tokens += outcome.num_cached_tokens
            self.output_tokens += outcome.num_output_tokens
        if outcome.is_ok and outcome.ttft_s is not None:
            self.ttft_counts[bisect_left(SECONDS, outcome.ttft_s)] += 1

    def merge(self, other: Used) -> None:
        """Take in another's counts."""
        for reason, count in other.by_reason.items():
            self.by_reason[reason] = self.by_reason.get(reason, 0) + count
        for name in (
            *("refused", "prompt_tokens", "cached_tokens", "output_tokens"),
            *("deadlines", "deadline_misses"),
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        pairs = zip(self.ttft_counts, other.ttft_counts, strict=True)
        self.ttft_counts = [mine + its for mine, its in pairs]

    def ttft_at_most_s(self, share: float) -> float | None:
        """The bucket in which that share of first tokens had come; None without any, or beyond."""
        left = share * sum(self.ttft_counts)
        for limit_s, count in zip(SECONDS, self.ttft_counts, strict=False):
            left -= count
            if left <= 0 < sum(self.ttft_counts):
                return limit_s
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "requests": sum(self.by_reason.values()),
            "by_reason": dict(self.by_reason),
            "refused": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "deadlines": self.deadlines,
            "deadline_misses": self.deadline_misses,
            "ttft_p50_at_most_s": self.ttft_at_most_s(0.5),
            "ttft_p95_at_most_s": self.ttft_at_most_s(0.95),
        }


class Usage:
    """The books, by tenant. Belongs to the engine's thread."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._used: OrderedDict[str, Used] = OrderedDict()
        self._max = max_tenants

    def note_finished(self, request: Request, outcome: Outcome) -> None:
        """A request that the engine had has ended."""
        self._of(request).add(outcome)

    def note_refused(self, request: Request) -> None:
        """A request was turned away."""
        self._of(request).refused += 1

    def report(self) -> dict[str, Any]:
        """By tenant; `others` are those for whom there was no place any more."""
        found = {tenant: used.as_dict() for tenant, used in self._used.items()}
        others = found.pop(OTHERS, None)
        return {"tenants": found, "others": others}

    def _of(self, request: Request) -> Used:
        tenant = request.identity.tenant
        used = self._used.setdefault(tenant, Used())
        self._used.move_to_end(tenant)
        if len(self._used) > self._max + (OTHERS in self._used):
            others = self._used.pop(OTHERS, Used())
            _, gone = self._used.popitem(last=False)
            others.merge(gone)
            self._used[OTHERS] = others
            self._used.move_to_end(OTHERS, last=False)
        return used
