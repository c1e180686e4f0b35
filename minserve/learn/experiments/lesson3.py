"""Lesson 3's experiments: memory held and used, blocks that come back, blocks that run out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, Finished, Preempted, StepEnded, StepStarted
from minserve.execution.executor import Executor
from minserve.execution.simulated import SimulatedExecutor, repeatable_token
from minserve.learn.experiments.common import BIG_MODEL, quantile, words
from minserve.learn.parts import get
from minserve.learn.pool import for_engine
from minserve.learn.reference import Candidate
from minserve.northstar.lengths import AZURE, LengthTable
from minserve.request import FinishReason, Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching, Decision, Snapshot

if TYPE_CHECKING:
    from minserve.execution.torch_executor import TorchExecutor


# -- memory, step by step


@dataclass(slots=True)
class MemoryUse:
    """What a run held: per step (tokens resident, slots held), and how many requests ran."""

    pool_tokens: int
    steps: list[tuple[int, int]] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    num_preemptions: int = 0

    @property
    def useful_share(self) -> float:
        """Tokens resident over slots held, over the whole run."""
        held = sum(step[1] for step in self.steps)
        return sum(step[0] for step in self.steps) / held if held else 0.0

    @property
    def peak_running(self) -> int:
        """The most requests that ran at once."""
        return max(self.running, default=0)

    @property
    def totals(self) -> tuple[int, int]:
        """(resident, held), summed over steps: what `plots.waste_bars` takes."""
        return sum(s[0] for s in self.steps), sum(s[1] for s in self.steps)


def serve(
    executor: Executor,
    requests: Sequence[Request],
    *,
    mine: bool = False,
    policy: Any = None,
    use_prefixes: bool = False,
) -> MemoryUse:
    """Serve `requests` to the end on the real engine and watch the memory of every step.

    `mine` runs the learner's block pool. Checks after each step that no block is lost.
    """
    pool = make_pool(executor.num_blocks, executor.block_size, mine)
    engine = Engine(executor, policy, pool=pool, prefix_caching=use_prefixes)
    for request in requests:
        engine.submit(request, 0.0)
    use = MemoryUse(executor.num_blocks * executor.block_size)
    while (handle := engine.begin_step(0.0)) is not None:
        running = engine.scheduler.running
        # While the step is in flight, its own tokens are being written: they count as resident.
        rows = {row.request_id: row.num_context_tokens for row in handle.plan.rows}
        resident = sum(rows.get(r.id, r.num_computed_tokens) for r in running)
        use.steps.append((resident, pool.num_used * executor.block_size))
        use.running.append(len(running))
        engine.finish_step(0.0)
        engine.check_integrity()
    use.num_preemptions = sum(isinstance(e, Preempted) for e in engine.log.events)
    return use


def make_pool(num_blocks: int, block_size: int, mine: bool = False) -> Any:
    """A fresh block pool: the reference, or the learner's."""
    return for_engine(get("block_pool", mine=mine))(num_blocks, block_size)


def tables_of(engine: Engine) -> dict[str, tuple[list[int], int]]:
    """Every running request's block table and tokens: what `plots.block_map` takes."""
    return {r.id: (list(r.block_table), r.num_computed_tokens) for r in engine.scheduler.running}


def fill(steps: int, mine: bool = False) -> Engine:
    """An engine with four requests on 32 imaginary blocks of 16 tokens, after some steps."""
    executor = SimulatedExecutor(32, 16)
    pool = make_pool(32, 16, mine)
    engine = Engine(executor, pool=pool, prefix_caching=False)
    for id, prompt, answer in (("a", 70, 20), ("b", 25, 60), ("c", 120, 8), ("d", 12, 60)):
        engine.submit(words(id, prompt, answer), 0.0)
    for _ in range(steps):
        engine.step(0.0)
    engine.check_integrity()
    return engine


def block_size_sweep(sizes: Sequence[int], requests: Sequence[Request]) -> list[tuple[str, ...]]:
    """(block size, useful share, blocks in the largest table) of the same requests and memory."""
    rows = []
    for size in sizes:
        executor = SimulatedExecutor(12_288 // size, size)
        fresh = [words(r.id, r.num_prompt_tokens, r.sampling.max_tokens) for r in requests]
        use = serve(executor, fresh)
        longest = max(-(-request.num_tokens // size) for request in fresh)
        rows.append((f"{size}", f"{use.useful_share:.1%}", f"{longest}"))
    return rows


def context_caps(
    caps: Sequence[int], total_tokens: int, count: int = 2000, seed: int = 0
) -> list[tuple[str, ...]]:
    """(cap, requests of the Azure trace's lengths that it touches, requests that surely fit)."""
    rng, table = random.Random(seed), LengthTable.load(AZURE)
    contexts = [sum(table.draw(rng)) for _ in range(count)]
    return [
        (f"{cap:,}", f"{sum(c > cap for c in contexts) / count:.1%}", f"{total_tokens // cap:,}")
        for cap in caps
    ]


# -- release


@dataclass(frozen=True, slots=True)
class Moment:
    """A line of a story: when, what happened, and how many blocks were used right after."""

    time_ms: float
    what: str
    blocks_used: int


def freed_ms(moments: Sequence[Moment], request_id: str) -> float:
    """When the blocks of a request that ended were back in the pool."""
    end = next(i for i, m in enumerate(moments) if m.what.startswith(f"{request_id} ends"))
    before = moments[end - 1].blocks_used
    return next(m.time_ms for m in moments[end:] if m.blocks_used < before)


def cancellation(mine: bool = False, cancels: bool = True) -> tuple[list[Moment], list[Event]]:
    """Three requests on the virtual clock; the user of `long` goes away after 40 ms.

    With `cancels=False` nobody tells the engine. Returns the moments at which the number of used
    blocks changed, and the event log.
    """
    executor = SimulatedExecutor(num_blocks=32, block_size=16)
    pool = make_pool(executor.num_blocks, executor.block_size, mine)
    engine = Engine(executor, pool=pool, prefix_caching=False)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    moments: list[Moment] = []

    def note(event: Event) -> None:
        if isinstance(event, StepStarted):
            text = f"step {event.step} begins"
        elif isinstance(event, StepEnded):
            text = f"step {event.step} has ended"
        elif isinstance(event, Finished):
            text = f"{event.request_id} ends: {event.reason}"
        else:
            return
        used = pool.num_used
        if isinstance(event, Finished) or not moments or used != moments[-1].blocks_used:
            moments.append(Moment(round(event.time_s * 1000, 1), text, used))

    engine.log.listen(note)
    client.send(words("short", 20, 8))
    client.send(words("long", 150, 60))
    client.send(words("other", 40, 20))
    if cancels:
        client.cancel("long", at_s=0.040)
    client.run()
    last_s = engine.log.events[-1].time_s
    moments.append(Moment(round(last_s * 1000, 1), "nothing is left to do", pool.num_used))
    return moments, engine.log.events


# -- overload


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
        tokens = range(max(16, min(prompt, 4096)))
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
        client.loop.at(request.arrival_s, lambda request=request: arrive(request))
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
        ttfts_s=[request.timeline.ttft_s for request in served],
        kv_used_share=sum(step.blocks_used for step in steps) / (len(steps) * num_blocks),
        within_s=2.0,
    )


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
        f"{max(request.timeline.ttft_s for request in requests):.1f}",
        f"{engine.log.events[-1].time_s:.1f}",
    )


# -- paged attention on the real model


def compare_attention(
    executor: TorchExecutor, attend: Callable, max_tokens: int = 6
) -> tuple[bool, float]:
    """Answer three prompts with the model's own attention, then through `attend` in every layer.

    Returns whether all tokens are the same, and the largest difference in the KV caches: from the
    second layer on, what is remembered depends on what attention found.
    """
    own_tokens, own_cache = _answer(executor, None, max_tokens)
    tokens, cache = _answer(executor, attend, max_tokens)
    return tokens == own_tokens, (cache - own_cache).abs().max().item()


def _answer(executor: TorchExecutor, attend: Callable | None, max_tokens: int) -> tuple[list, Any]:
    """Greedy tokens of three prompts, and the KV cache that they leave behind."""
    backend = executor.decoder.attention
    executor.kv_cache.zero_()
    try:
        if attend is not None:
            executor.decoder.attention = OneByOne(attend)
        engine = Engine(executor, prefix_caching=False)
        requests = [words(f"r{n}", 20 + 9 * n, max_tokens) for n in range(3)]
        for request in requests:
            engine.submit(request, 0.0)
        while engine.step(0.0):
            pass
        return [request.output_token_ids for request in requests], executor.kv_cache.clone()
    finally:
        executor.decoder.attention = backend


def same_answers_when_preempted(executor_of: Callable[[int], Executor]) -> tuple[int, bool]:
    """Serve the same requests in a tight pool and in a roomy one: (preemptions, same tokens?).

    `executor_of(num_blocks)` makes a fresh executor.
    """
    tokens, preemptions = [], 0
    for num_blocks in (100, 8):
        engine = Engine(executor_of(num_blocks), prefix_caching=False)
        requests = [words(f"r{n}", 20 + 9 * n, 24) for n in range(5)]
        for request in requests:
            engine.submit(request, 0.0)
        while engine.step(0.0):
            engine.check_integrity()
        tokens.append([request.output_token_ids for request in requests])
        preemptions = sum(request.num_preemptions for request in requests)
    return preemptions, tokens[0] == tokens[1]


class OneByOne:
    """An attention backend that calls a learner's function for every token: right, and slow."""

    def __init__(self, attend: Callable) -> None:
        self.attend_one = attend

    def lay_out(
        self, rows: Sequence[Any], block_size: int, device: str, window: int | None = None
    ) -> list:
        """Every token's block table and context length; the lessons' models have no window."""
        return [
            (list(row.block_table), position + 1)
            for row in rows
            for position in range(row.start, row.num_context_tokens)
        ]

    def attend(self, queries: Any, keys: Any, values: Any, layout: list) -> Any:
        """See `minserve.models.attention.Attention.attend`."""
        import torch

        return torch.stack(
            [
                self.attend_one(query, keys, values, table, num_context)
                for query, (table, num_context) in zip(queries, layout, strict=True)
            ]
        )
