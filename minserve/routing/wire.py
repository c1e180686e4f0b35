"""What travels between a gateway and its replicas: plain requests, questions and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minserve.request import Request
from minserve.reuse.key import Wording
from minserve.service import NO_QUOTA, Quota


@dataclass(frozen=True, slots=True)
class Sent:
    """A request on its way to a replica.

    Clocks differ between processes, so times are relative: `age_s` since its arrival, `left_s`
    until its deadline. `keys` are the chained keys of its prompt's blocks, for the router.
    """

    request: Request
    quota: Quota = NO_QUOTA
    wording: Wording | None = None
    age_s: float = 0.0
    left_s: float | None = None
    keys: tuple[bytes, ...] = ()

    @property
    def num_tokens(self) -> int:
        """What it makes a replica compute at most, but for what is cached."""
        return self.request.max_total_tokens


@dataclass(frozen=True, slots=True)
class To:
    """A question for one replica and no other."""

    replica: str


@dataclass(frozen=True, slots=True)
class Report:
    """How a replica is."""

    replica: str
    pid: int
    num_running: int
    num_waiting: int
    queued_tokens: int
    oldest_wait_s: float
    blocks: dict[str, int]
    num_hit_tokens: int
    num_queried_tokens: int
    metrics: bytes = b""

    @property
    def kv_pressure(self) -> float:
        return self.blocks["used"] / self.blocks["total"]


routers: list[Any] = []
"""The routers of this process's handles: the gateway asks them who there is."""
