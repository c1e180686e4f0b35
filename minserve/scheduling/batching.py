"""Batching policies: pure functions from a snapshot to a decision, each on one screen.

A policy sees requests in the order of the ordering and must not change them. It may not run a
request that does not fit: a waiting one needs `num_new_blocks` free blocks to be admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from minserve.errors import ConfigError
from minserve.request import Request


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a policy may know at `now_s`.

    `running` hold blocks and `waiting` hold none; of a long queue only the first are shown.
    `num_to_compute(request)` is how many of its tokens need computing before the next can be
    sampled, prefix hits left out; `num_new_blocks(request)` how many more blocks it needs for that.
    """

    now_s: float
    running: Sequence[Request]
    waiting: Sequence[Request]
    num_available_blocks: int
    num_to_compute: Callable[[Request], int]
    num_new_blocks: Callable[[Request], int]


@dataclass(frozen=True, slots=True)
class Decision:
    """Who runs the next step, in order, and how many tokens each computes.

    If blocks run out on the way, `victims` are preempted in their order, unless the step has them
    already. An empty `run` may come with the time at which to ask again.
    """

    run: Sequence[tuple[Request, int]] = ()
    victims: Sequence[Request] = ()
    wake_at_s: float | None = None


class BatchingPolicy(Protocol):
    """Decides each step anew; see `Snapshot` and `Decision`."""

    def decide(self, snapshot: Snapshot) -> Decision: ...


class StaticBatching:
    """A batch starts together and nobody joins until its last request has finished.

    Takes whatever waits when the engine is empty, up to `batch_size`, and computes all its prompts
    in one step. Suits offline work of even length; a short answer's slot stays empty until the
    longest answer of its batch is done.
    """

    def __init__(self, batch_size: int = 16) -> None:
        _require(batch_size=batch_size)
        self.batch_size = batch_size

    def decide(self, snapshot: Snapshot) -> Decision:
        batch = snapshot.running or self._gather(snapshot)
        run = [(request, snapshot.num_to_compute(request)) for request in batch]
        return Decision(run, victims=batch[::-1])

    def _gather(self, snapshot: Snapshot) -> list[Request]:
        batch, num_blocks = [], snapshot.num_available_blocks
        for request in snapshot.waiting[: self.batch_size]:
            num_blocks -= snapshot.num_new_blocks(request)
            if num_blocks < 0:
                break
            batch.append(request)
        return batch


class DynamicBatching(StaticBatching):
    """Like static, but a batch starts when it is full or its oldest has waited `max_wait_s`.

    Suits models that answer in one pass, such as embedders and classifiers: a bounded wait buys a
    fuller batch.
    """

    def __init__(self, batch_size: int = 16, max_wait_s: float = 0.05) -> None:
        super().__init__(batch_size)
        if max_wait_s < 0:
            raise ConfigError(f"max_wait_s is {max_wait_s}", "use 0 or more seconds")
        self.max_wait_s = max_wait_s

    def decide(self, snapshot: Snapshot) -> Decision:
        if not snapshot.running and 0 < len(snapshot.waiting) < self.batch_size:
            due_s = min(request.arrival_s for request in snapshot.waiting) + self.max_wait_s
            if snapshot.now_s < due_s:
                return Decision(wake_at_s=due_s)
        return super().decide(snapshot)


class ContinuousBatching:
    """Requests join and leave between steps (Orca, 2022); prompts come in chunks (Sarathi, 2023).

    Each step computes at most `token_budget` tokens: first one for every running decode, then
    prefill chunks, oldest first. Neither side starves: a decode is never left out, and because the
    budget exceeds `max_running`, prefill always has some of it.

    A request that does not fit is passed by smaller ones, but `max_bypasses` times at most: then
    nobody behind it is admitted until it fits.
    """

    def __init__(
        self,
        token_budget: int = 512,
        max_running: int = 64,
        chunk_tokens: int | None = None,
        max_bypasses: int = 32,
    ) -> None:
        chunk_tokens = token_budget if chunk_tokens is None else chunk_tokens
        _require(token_budget=token_budget, max_running=max_running, chunk_tokens=chunk_tokens)
        if token_budget <= max_running:
            raise ConfigError(
                f"a budget of {token_budget} tokens leaves no prefill beside {max_running} decodes",
                "make token_budget larger than max_running",
            )
        self.token_budget = token_budget
        self.max_running = max_running
        self.chunk_tokens = chunk_tokens
        self.max_bypasses = max_bypasses

    def decide(self, snapshot: Snapshot) -> Decision:
        decodes = [request for request in snapshot.running if not request.is_prefill]
        run = [(request, 1) for request in decodes]
        budget = self.token_budget - len(decodes)
        num_blocks = snapshot.num_available_blocks - sum(map(snapshot.num_new_blocks, decodes))

        for request in snapshot.running:
            if request.is_prefill and budget > 0:
                num_tokens = min(snapshot.num_to_compute(request), self.chunk_tokens, budget)
                run.append((request, num_tokens))
                budget -= num_tokens

        # Choices that are still to split off will run as well.
        running = snapshot.running
        num_slots = self.max_running - sum(1 + request.num_forks_to_come for request in running)
        for request in snapshot.waiting:
            if budget <= 0 or num_slots <= 0:
                break
            if snapshot.num_new_blocks(request) > num_blocks:
                num_slots = min(num_slots, self.max_bypasses - request.num_bypasses)
                continue
            num_tokens = min(snapshot.num_to_compute(request), self.chunk_tokens, budget)
            run.append((request, num_tokens))
            budget -= num_tokens
            num_blocks -= snapshot.num_new_blocks(request)
            num_slots -= 1 + request.num_forks_to_come

        return Decision(run, victims=snapshot.running[::-1])


def _require(**at_least_one: int) -> None:
    for name, value in at_least_one.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}", "use at least 1")
