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
FORGET_FROM = 1_000
"""So many accounts are kept before those are looked for that can be forgotten."""


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


@dataclass(slots=True)
class Account:
    """What one account holds and has left; `bucket` is None where its quota sets no rate."""

    num_unfinished: int = 0
    bucket: TokenBucket | None = None

    @property
    def is_as_new(self) -> bool:
        """Nothing under way, nothing spent; of a bucket as it was when it was last filled."""
        bucket = self.bucket
        return not self.num_unfinished and (not bucket or bucket.level >= bucket.burst_tokens)

    def enter(self, num_tokens: int) -> None:
        """Begin a request that is expected to use so many tokens."""
        self.num_unfinished += 1
        self._charge(num_tokens)

    def leave(self, num_expected_tokens: int, num_used_tokens: int) -> None:
        """End a request, which was charged what was expected, and pays for what it used."""
        self.num_unfinished -= 1
        self._charge(num_used_tokens - num_expected_tokens)

    def _charge(self, num_tokens: int) -> None:
        if self.bucket:
            self.bucket.level -= num_tokens


class Accounts:
    """Accounts by name, each made when it is asked for. A bucket holds `burst_s` of its rate."""

    def __init__(self, burst_s: float) -> None:
        self.burst_s = burst_s
        self.named: dict[str, Account] = {}
        self._forget_at = FORGET_FROM

    def get(self, name: str, quota: Quota, now_s: float) -> Account:
        """The account, its bucket filled up to now, at the rate that its quota says today."""
        if len(self.named) >= self._forget_at:
            self._forget(now_s)
        account, rate = self.named.setdefault(name, Account()), quota.tokens_per_s
        if not rate:
            account.bucket = None
            return account
        burst_tokens = rate * self.burst_s
        if account.bucket is None:
            account.bucket = TokenBucket(rate, burst_tokens, burst_tokens, now_s)
        account.bucket.refill(now_s)
        account.bucket.tokens_per_s, account.bucket.burst_tokens = rate, burst_tokens
        return account

    def _forget(self, now_s: float) -> None:
        """Drop the accounts that are as a new one would be."""
        for account in self.named.values():
            if account.bucket:
                account.bucket.refill(now_s)
        self.named = {name: held for name, held in self.named.items() if not held.is_as_new}
        self._forget_at = max(FORGET_FROM, 2 * len(self.named))
