"""Lesson 3's experiments with more requests than the memory holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import StepStarted
from minserve.execution.simulated import SimulatedExecutor, repeatable_token
from minserve.learn.experiments.common import BIG_MODEL, quantile, ttft_s, words
from minserve.learn.reference import Candidate
from minserve.northstar.lengths import AZURE, LengthTable
from minserve.request import FinishReason, Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching, Decision, Snapshot

if TYPE_CHECKING:
    pass


# -- the incident


DASHBOARD_HEADING = (
    "users at once",
    "compute in use",
    "KV blocks used (peak)",
    "slowest first token (s)",
    "all done after (s)",
)


def dashboard(num_users: int, context_tokens: int = 1000, answer: int = 64) -> tuple[str, ...]:
    """`num_users` ask at once, on the virtual clock: cells under `DASHBOARD_HEADING`.

    Compute in use is the share of the step's token budget that is computed while answers are
    written. The pool holds 2,048 blocks of 16 tokens.
    """
    budget, num_blocks = 1024, 2048
    executor = SimulatedExecutor(num_blocks, 16, cost=BIG_MODEL)
    policy = ContinuousBatching(token_budget=budget, max_running=256)
    engine = Engine(executor, policy, prefix_caching=False)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    requests = [words(f"u{n:03}", context_tokens - answer, answer) for n in range(num_users)]
    for request in requests:
        client.send(request)
    client.run()
    steps = [event for event in engine.log.events if isinstance(event, StepStarted)]
    decode_steps = [s for s in steps if all(tokens == 1 for _, tokens, _ in s.rows)]
    busy = sum(len(s.rows) for s in decode_steps) / (budget * len(decode_steps))
    return (
        f"{num_users}",
        f"{busy:.0%}",
        f"{max(step.blocks_used for step in steps) / num_blocks:.0%}",
        f"{max(ttft_s(request) for request in requests):.1f}",
        f"{engine.log.events[-1].time_s:.1f}",
    )


# -- what to do when blocks run out


class ReserveWorstCase(ContinuousBatching):
    """Admits a request only if everybody's largest possible size fits at once: nobody is preempted.

    What `max_tokens` allows is kept free, whether or not it is ever used.
    """

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.num_blocks, self.block_size = num_blocks, block_size

    def decide(self, snapshot: Snapshot) -> Decision:
        """As the base class, but it shows it only those waiting who fit even at their largest."""
        left = self.num_blocks - sum(map(self._most_blocks, snapshot.running))
        admissible = []
        for request in snapshot.waiting:
            left -= self._most_blocks(request)
            if left < 0:
                break
            admissible.append(request)
        return super().decide(replace(snapshot, waiting=tuple(admissible)))

    def _most_blocks(self, request: Request) -> int:
        return -(-request.max_total_tokens // self.block_size)


class PreemptBy(ContinuousBatching):
    """Continuous batching whose victims are chosen by `make_room`, the part `preemption`."""

    def __init__(self, make_room: Callable[[list[Candidate], int], list[str]], **options: Any):
        super().__init__(**options)
        self.make_room = make_room

    def decide(self, snapshot: Snapshot) -> Decision:
        """As the base class, with other victims."""
        decision = super().decide(snapshot)
        running = {request.id: request for request in snapshot.running}
        needed = sum(max(0, snapshot.num_new_blocks(r)) for r, _ in decision.run if r.id in running)
        candidates = [Candidate(r.id, r.arrival_s, len(r.block_table)) for r in running.values()]
        ids = self.make_room(candidates, needed - snapshot.num_available_blocks)
        return replace(decision, victims=[running[id] for id in ids])


@dataclass(slots=True)
class OverloadResult:
    """What became of everybody who asked. Times in seconds on the virtual clock."""

    name: str
    num_asked: int
    num_served: int
    num_refused: int
    num_preemptions: int
    recomputed_tokens: int
    span_s: float
    ttfts_s: list[float]
    kv_used_share: float
    within_s: float

    @property
    def attained(self) -> int:
        """Served with the first token in time; whoever was refused does not count."""
        return sum(t <= self.within_s for t in self.ttfts_s)

    def ttft_s(self, share: float) -> float:
        """A quantile of the time to first token, of those who were served (nearest rank)."""
        return quantile(self.ttfts_s, share) if self.ttfts_s else 0.0

    def row(self) -> tuple[str, ...]:
        """Cells of a table; the heading is `OVERLOAD_HEADING`."""
        return (
            self.name,
            f"{self.num_served}",
            f"{self.num_refused}",
            f"{self.num_preemptions}",
            f"{self.recomputed_tokens:,}",
            f"{self.kv_used_share:.0%}",
            f"{self.ttft_s(0.5):.1f}",
            f"{self.ttft_s(0.95):.1f}",
            f"{self.attained}",
        )


OVERLOAD_HEADING = (
    "when blocks run out",
    "served",
    "refused",
    "preemptions",
    "tokens recomputed",
    "KV used (mean)",
    "TTFT p50 (s)",
    "TTFT p95 (s)",
    "first token within 2 s",
)

MAX_ANSWER = 1024  # what clients ask for; traced answers are mostly far shorter


def overload(
    kind: str,
    num_requests: int = 150,
    rate_per_s: float = 4.0,
    num_blocks: int = 1600,
    seed: int = 3,
    make_room: Callable[[list[Candidate], int], list[str]] | None = None,
) -> OverloadResult:
    """More requests than the memory holds, on the virtual clock; lengths as in the Azure trace.

    `kind` is `reserve` (for the worst case, and make others wait), `preempt` (admit at once, take
    blocks back when they run out), or `refuse` (as preempt, but whoever comes while much is queued
    is told at once to come back). `make_room` replaces the choice of victims.
    """
    rng = random.Random(seed)
    table = LengthTable.load(AZURE)
    ends: dict[str, int] = {}
    requests = []
    time_s = 0.0
    for number in range(num_requests):
        prompt, output = (round(x) for x in table.draw(rng))
        id = f"r{number:03}"
        ends[id] = max(2, min(output, MAX_ANSWER))
        sampling = SamplingParams(max_tokens=MAX_ANSWER)
        tokens = tuple(range(max(16, min(prompt, 4096))))
        requests.append(Request(id, tokens, sampling, arrival_s=time_s))
        time_s += rng.expovariate(rate_per_s)

    def token(row: Any) -> int:
        return 0 if row.output_position + 1 >= ends[row.request_id] else 1 + repeatable_token(row)

    executor = SimulatedExecutor(
        num_blocks, 16, cost=BIG_MODEL, eos_token_ids=frozenset({0}), token=token
    )
    options = {"token_budget": 1024, "max_running": 128}
    policies = {
        "reserve": lambda: ReserveWorstCase(num_blocks, 16, **options),
        "preempt": lambda: ContinuousBatching(**options),
        "refuse": lambda: ContinuousBatching(**options),
    }
    policy = PreemptBy(make_room, **options) if make_room else policies[kind]()
    engine = Engine(executor, policy, prefix_caching=False)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    refused = _send_all(client, requests, refuse_early=kind == "refuse")
    client.run()
    return _overload_result(kind, engine, requests, refused, num_blocks)


MAX_QUEUED_TOKENS = 4096


def _send_all(client: LocalClient, requests: Sequence[Request], refuse_early: bool) -> list[str]:
    """Send everything; the ids that were refused come back in a list that fills as time goes on."""
    refused: list[str] = []

    def arrive(request: Request) -> None:
        queued = sum(r.num_tokens for r in client.engine.scheduler.waiting)
        if refuse_early and queued + request.num_tokens > MAX_QUEUED_TOKENS:
            refused.append(request.id)
        else:
            client.send(request)

    for request in requests:
        client.loop.at(request.arrival_s, partial(arrive, request))
    return refused


def _overload_result(
    kind: str, engine: Engine, requests: Sequence[Request], refused: list[str], num_blocks: int
) -> OverloadResult:
    events = engine.log.events
    steps = [event for event in events if isinstance(event, StepStarted)]
    served = [r for r in requests if r.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
    computed = sum(tokens for step in steps for _, tokens, _ in step.rows)
    needed = sum(request.num_tokens - 1 for request in served)
    return OverloadResult(
        name={"reserve": "reserve and wait", "preempt": "preempt", "refuse": "refuse early"}[kind],
        num_asked=len(requests),
        num_served=len(served),
        num_refused=len(refused),
        num_preemptions=sum(request.num_preemptions for request in requests),
        recomputed_tokens=computed - needed,
        span_s=events[-1].time_s,
        ttfts_s=[ttft_s(request) for request in served],
        kv_used_share=sum(step.blocks_used for step in steps) / (len(steps) * num_blocks),
        within_s=2.0,
    )
