"""What one account may use, and what it has left of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Quota(Protocol):
    """What one account may use, from the server's records; None means: no limit."""

    @property
    def max_concurrent(self) -> int | None: ...

    @property
    def tokens_per_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PlainQuota:
    """A `Quota` for whoever has no records: tests, simulations, a service without keys."""

    max_concurrent: int | None = None
    tokens_per_s: float | None = None


NO_QUOTA = PlainQuota()


@dataclass(slots=True)
class TokenBucket:
    """Fills by `tokens_per_s` up to `burst_tokens`. Its level may fall below zero: a debt."""

    tokens_per_s: float
    burst_tokens: float
    level: float
    filled_at_s: float

    def refill(self, now_s: float) -> None:
        gained = max(0.0, now_s - self.filled_at_s) * self.tokens_per_s
        self.level = min(self.burst_tokens, self.level + gained)
        self.filled_at_s = max(self.filled_at_s, now_s)

    def wait_s(self, num_tokens: float) -> float:
        """Seconds until `num_tokens` are in it; of more than it holds, until it is full."""
        missing = min(num_tokens, self.burst_tokens) - self.level
        return max(0.0, missing / self.tokens_per_s)
