"""One request of a load test, as its sender saw it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

OK, ERROR, REJECTED, TIMEOUT, CANCELLED = "ok", "error", "rejected", "timeout", "cancelled"
UNFINISHED = "unfinished"


@dataclass(slots=True)
class Record:
    """One request as its sender saw it, in seconds on the sender's clock; None until then.

    `times_s[i]` is when the i-th chunk with tokens came, and `counts[i]` how many tokens it bore.
    `num_output_tokens` is the server's own count, where it gave one. `count_source` says how
    `counts` are known.
    """

    id: str
    intended_s: float
    sent_s: float | None = None
    ended_s: float | None = None
    outcome: str = UNFINISHED
    error: str = ""
    kind: str = ""
    deadline_s: float | None = None
    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    count_source: str = "engine"
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int = 0
    queue_delay_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens: the server's count, or else what its chunks bore."""
        return sum(self.counts) if self.num_output_tokens is None else self.num_output_tokens

    @property
    def dispatch_delay_s(self) -> float | None:
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        return self.times_s[0] - self.intended_s if self.times_s else None

    @property
    def uncorrected_ttft_s(self) -> float | None:
        if self.sent_s is None or not self.times_s:
            return None
        return self.times_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        return self.times_s[-1] - self.intended_s if self.times_s else None

    @property
    def uncorrected_e2e_s(self) -> float | None:
        if self.sent_s is None or not self.times_s:
            return None
        return self.times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        if self.num_tokens < 2 or not self.times_s:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.num_tokens - 1)

    def gaps_s(self) -> np.ndarray:
        """Inter-token latencies `[num_tokens - 1] float64`.

        A chunk of k tokens is k gaps of a k-th each; the first chunk's own gaps are 0.
        """
        if len(self.times_s) == len(self.counts) == sum(self.counts):  # one token a chunk
            return np.diff(np.array(self.times_s))
        counts = np.array(self.counts)
        each = np.diff(np.array(self.times_s), prepend=self.times_s[:1]) / np.maximum(counts, 1)
        return np.repeat(each, counts)[1:]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, one line of the per-request file; latencies beside raw times."""
        latencies = ("ttft_s", "uncorrected_ttft_s", "tpot_s", "e2e_s", "dispatch_delay_s")
        return asdict(self) | {name: getattr(self, name) for name in latencies}
