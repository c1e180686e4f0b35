"""Continuous batching for two kinds of work: offline takes what online leaves.

Online work (interactive, standard) waits for about one step before it begins, however much offline
work (batch) is queued: steps end within a cap, and rows and KV blocks are kept for it. Offline gets
everything else, and a small share of each step, so that it does not starve either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from minserve.request import Request, WorkloadClass
from minserve.scheduling.batching import ContinuousBatching, Decision, Snapshot
from minserve.scheduling.ordering import Ordering
from minserve.scheduling.queue import Queue
from minserve.scheduling.rates import Rates

OFFLINE = frozenset({WorkloadClass.BATCH})
"""The classes of work for which nobody sits and waits."""


def is_offline(request: Request) -> bool:
    """`request` is of such a class."""
    return request.workload_class in OFFLINE


class OnlineFirst(Ordering):
    """Offline (batch) work behind all other, each of the two ordered by `inner`.

    A policy is shown the first of both, so that neither hides the other: see `ReservedBatching`,
    which keeps a share for offline so that it does not starve.
    """

    def __init__(self, inner: Ordering) -> None:
        self.inner = inner
        self.is_fixed = inner.is_fixed

    def key(self, request: Request, now_s: float) -> Any:
        return is_offline(request), self.inner.key(request, now_s)

    def lane(self, request: Request) -> tuple[bool, Hashable]:
        return is_offline(request), self.inner.lane(request)

    def shown(self, waiting: Queue, count: int) -> list[Request]:
        online = waiting.first(count, lambda lane: not lane[0])
        return [*online, *waiting.first(count, lambda lane: lane[0])]

    def arrived(self, request: Request, active: Iterable[Request]) -> None:
        self.inner.arrived(request, active)

    def served(self, request: Request, num_prefill_tokens: int, num_output_tokens: int) -> None:
        self.inner.served(request, num_prefill_tokens, num_output_tokens)


class ReservedBatching(ContinuousBatching):
    """Continuous batching in which online work goes first and offline takes the rest.

    - Time: with `step_cap_s`, as long as there is offline work, prefill is cut so that a step ends
      within it at measured `rates`; where decodes leave less, prefill gets half of it.
    - Tokens: online prefill first, but `offline_share` of the prefill budget is kept for offline.
    - Rows: a step has `max_running`, online decodes first, one of them kept for offline. An
      offline request that finds no row pauses and keeps its blocks.
    - Blocks: offline is admitted only if, should all of it grow to its longest, online would still
      come to `reserved_blocks`. A single offline request may use those too, or it could starve.
    """

    def __init__(
        self,
        token_budget: int = 512,
        max_running: int = 64,
        chunk_tokens: int | None = None,
        max_bypasses: int = 32,
        *,
        block_size: int = 16,
        reserved_blocks: int = 0,
        offline_share: float = 0.125,
        step_cap_s: float | None = None,
        rates: Rates | None = None,
    ) -> None:
        super().__init__(token_budget, max_running, chunk_tokens, max_bypasses)
        self.block_size = block_size
        self.reserved_blocks = reserved_blocks
        self.offline_share = offline_share
        self.step_cap_s = step_cap_s
        self.rates = rates or Rates()

    def decide(self, snapshot: Snapshot) -> Decision:
        """See `ContinuousBatching`; what differs is who goes first and what is kept for whom."""
        online, offline = _split(snapshot.running)
        new_online, new_offline = _split(snapshot.waiting)
        num_kept_rows = 1 if offline or new_offline else 0
        rows = [*online, *offline[: max(0, self.max_running - len(online))]]
        decodes = [request for request in rows if not request.is_prefill]
        budget = self.token_budget - len(decodes)
        if num_kept_rows and self.step_cap_s is not None:
            budget = min(budget, self._tokens_within(self.step_cap_s, len(decodes)))
        online_budget = budget - num_kept_rows * max(1, int(budget * self.offline_share))
        run = _Run(snapshot, self.chunk_tokens, decodes)

        run.prefill(online, online_budget)
        num_slots = self.max_running - num_kept_rows - sum(map(_num_rows, online))
        run.admit(
            new_online, online_budget, num_slots, 0, snapshot.num_new_blocks, self.max_bypasses
        )
        num_slots = self.max_running - sum(map(_num_rows, snapshot.running)) - run.num_new_rows
        run.prefill(rows[len(online) :], budget)
        if offline:
            num_held = sum(len(request.block_table) for request in online) + run.num_admitted_blocks
            kept = max(0, self.reserved_blocks - num_held)
            kept += sum(map(self._growth, offline))
            run.admit(new_offline, budget, num_slots, kept, self._most_blocks(snapshot))
        else:
            run.admit(new_offline[:1], budget, num_slots, 0, snapshot.num_new_blocks)
        return Decision(run.pairs, victims=[*offline[::-1], *online[::-1]])

    def _tokens_within(self, cap_s: float, num_decodes: int) -> int:
        half = int(cap_s / 2 * self.rates.prefill_tokens_per_s)
        return max(self.block_size, half, self.rates.tokens_within(cap_s, num_decodes))

    def _growth(self, request: Request) -> int:
        """Blocks that `request` may still come to need beyond those of its tokens so far."""
        at_most = -(-(request.max_total_tokens - 1) // self.block_size)
        held = max(len(request.block_table), -(-request.num_tokens // self.block_size))
        return (at_most - held) * _num_rows(request)

    def _most_blocks(self, snapshot: Snapshot) -> Callable[[Request], int]:
        return lambda request: snapshot.num_new_blocks(request) + self._growth(request)


class _Run:
    """A decision in the making: its rows, and the tokens and blocks that they take."""

    def __init__(self, snapshot: Snapshot, chunk_tokens: int, decodes: list[Request]) -> None:
        self.snapshot = snapshot
        self.chunk_tokens = chunk_tokens
        self.pairs = [(request, 1) for request in decodes]
        self.num_blocks = snapshot.num_available_blocks - sum(map(snapshot.num_new_blocks, decodes))
        self.num_prefill_tokens = 0
        self.num_new_rows = 0
        self.num_admitted_blocks = 0

    def prefill(self, requests: Sequence[Request], budget: int) -> None:
        """Add a chunk of each of `requests` that is in prefill, until `budget` is used."""
        for request in requests:
            if request.is_prefill and self.num_prefill_tokens < budget:
                self._add(request, budget)

    def admit(
        self,
        requests: Sequence[Request],
        budget: int,
        num_slots: int,
        num_kept_blocks: int,
        num_blocks: Callable[[Request], int],
        max_bypasses: int = 0,
    ) -> None:
        """Admit waiting `requests` in order, while slots, tokens and blocks beyond those kept last.

        One that does not fit may be passed by those behind it, `max_bypasses` times in all.
        """
        for request in requests:
            if num_slots <= 0 or self.num_prefill_tokens >= budget:
                return
            needed = num_blocks(request)
            if needed > self.num_blocks - num_kept_blocks:
                num_slots = min(num_slots, max_bypasses - request.num_bypasses)
                continue
            self._add(request, budget)
            new_blocks = self.snapshot.num_new_blocks(request)
            self.num_blocks -= new_blocks
            num_kept_blocks += needed - new_blocks
            self.num_new_rows += _num_rows(request)
            self.num_admitted_blocks += new_blocks
            num_slots -= _num_rows(request)

    def _add(self, request: Request, budget: int) -> None:
        left = budget - self.num_prefill_tokens
        num_tokens = min(self.snapshot.num_to_compute(request), self.chunk_tokens, left)
        self.pairs.append((request, num_tokens))
        self.num_prefill_tokens += num_tokens


def _num_rows(request: Request) -> int:
    """Rows that `request` and the choices still to split off from it come to."""
    return 1 + request.num_forks_to_come


def _split(requests: Sequence[Request]) -> tuple[list[Request], list[Request]]:
    """Online and offline requests, each in their order."""
    online = [request for request in requests if not is_offline(request)]
    return online, [request for request in requests if is_offline(request)]
