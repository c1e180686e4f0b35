"""Fakes, strategies and checks that the tests of the core share. No weights, no wall clock."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from minserve.engine import Engine
from minserve.events import Event, EventLog, Finished, TokensProduced
from minserve.execution.executor import Row, StepPlan, StepResult, accepted
from minserve.request import FinishReason, Request, SamplingParams, Status
from minserve.scheduling.batching import ContinuousBatching, DynamicBatching, StaticBatching
from minserve.scheduling.expected import ShortestExpected
from minserve.scheduling.ordering import (
    EarliestDeadline,
    FirstComeFirstServed,
    PriorityWithAgeing,
    VirtualTokenCounter,
)

VOCAB = 997


def small(max_examples: int, **more) -> settings:
    """Hypothesis settings: no deadline on a shared machine, the same examples on every CI run."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=bool(os.environ.get("MINSERVE_CI")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        **more,
    )


# -- an executor that notices wrong memory


@dataclass(frozen=True, slots=True)
class ContentHandle:
    plan: StepPlan
    ready_at_s: float | None = None


@dataclass
class ContentExecutor:
    """An executor whose tokens depend on what its KV blocks really hold.

    It keeps one array of slots per block. As a real kernel does, a step first carries out the
    copies, then writes every row's tokens into the slots that the row's block table names, and
    then reads each context back through that table. What it writes for a position is a digest of
    the token, the adapter and of what the slot before holds, so it stands for the whole prefix,
    as a key does in a causal model. The next token is a hash of everything read back, of the seed
    and of the output position.

    So a wrong block table, a block that two owners write, a copy left out or made too late, a
    block reused before it was computed or under another salt's adapter, or a slot that still
    holds an earlier owner's data: each changes a token. `expected_output` is what is right.

    Everything happens in `collect`, the last moment at which a step may touch its blocks.
    `plans` logs every launch. `on_launch`, `on_collect` and `row_errors` inject faults.
    """

    num_blocks: int = 16
    block_size: int = 4
    max_model_len: int = 1_000
    eos_token_ids: frozenset[int] = frozenset()
    cache_namespace: str = "content"
    plans: list[StepPlan] = field(default_factory=list)
    on_launch: Callable[[StepPlan], None] = lambda plan: None
    on_collect: Callable[[StepPlan], None] = lambda plan: None
    row_errors: Callable[[StepPlan], dict[int, str]] = lambda plan: {}

    def __post_init__(self) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Lose the contents of every block, as a device that is reset does."""
        self.blocks = [[b"stale"] * self.block_size for _ in range(self.num_blocks)]

    def launch(self, plan: StepPlan, now_s: float) -> ContentHandle:
        self.plans.append(plan)
        self.on_launch(plan)
        return ContentHandle(plan)

    def collect(self, handle: ContentHandle) -> StepResult:
        plan = handle.plan
        self.on_collect(plan)
        for copy in plan.copies:
            self.blocks[copy.target] = list(self.blocks[copy.source])
        for row in plan.rows:
            self._write(row)
        tokens = tuple(self._next_tokens(row) if row.sample else () for row in plan.rows)
        return StepResult(tokens, self.row_errors(plan))

    def _write(self, row: Row) -> None:
        for position, token_id in enumerate(row.token_ids, start=row.start):
            before = self._read(row, position - 1) if position else b""
            block, slot = divmod(position, self.block_size)
            self.blocks[row.block_table[block]][slot] = _kv(before, token_id, row.adapter)

    def _read(self, row: Row, position: int) -> bytes:
        block, slot = divmod(position, self.block_size)
        return self.blocks[row.block_table[block]][slot]

    def _next_tokens(self, row: Row) -> tuple[int, ...]:
        context = [self._read(row, position) for position in range(row.num_context_tokens)]
        first = len(context) - row.num_draft_tokens
        tokens = [
            _sample(context[: first + n], row.sampling, row.output_position + n)
            for n in range(row.num_draft_tokens + 1)
        ]
        return accepted(row.draft_token_ids, tokens)


@dataclass
class Guesses:
    """A `Speculator` that proposes `guess(request)`, knows who decodes, and logs what it hears."""

    guess: Callable[[Request], Sequence[int]]
    outcomes: list[tuple[str, int, int]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def propose(self, requests: Sequence[Request], num_tokens: int) -> list[Sequence[int]]:
        assert all(request.num_tokens == request.num_computed_tokens + 1 for request in requests)
        assert num_tokens >= len(requests)
        return [self.guess(request) for request in requests]

    def verified(self, request: Request, num_proposed: int, num_right: int) -> None:
        assert request.id not in self.forgotten and 0 <= num_right <= num_proposed
        self.outcomes.append((request.id, num_proposed, num_right))

    def forget(self, request: Request) -> None:
        self.forgotten.append(request.id)


def oracle(num_guesses: int, is_right: Callable[[Request, int], bool]) -> Guesses:
    """Guesses the next tokens, those wrong for which `is_right(request, position)` says so."""

    def guess(request: Request) -> list[int]:
        position = request.num_output_tokens
        right = expected_output(request, position + num_guesses)[position:]
        return [
            token if is_right(request, position + n) else (token + 1) % VOCAB
            for n, token in enumerate(right)
        ]

    return Guesses(guess)


def expected_output(
    request: Request, max_tokens: int | None = None, eos_token_ids: frozenset[int] = frozenset()
) -> list[int]:
    """What a `ContentExecutor` with perfect memory answers: the oracle."""
    context: list[bytes] = []
    output: list[int] = []

    def extend(token_id: int) -> None:
        before = context[-1] if context else b""
        context.append(_kv(before, token_id, request.adapter))

    for token_id in request.prompt_token_ids:
        extend(token_id)
    sampling = request.sampling
    while len(output) < (sampling.max_tokens if max_tokens is None else max_tokens):
        output.append(_sample(context, sampling, len(output)))
        is_eos = output[-1] in eos_token_ids and not sampling.ignore_eos
        if is_eos or output[-1] in sampling.stop_token_ids:
            break
        extend(output[-1])
    return output


def _kv(before: bytes, token_id: int, adapter: str) -> bytes:
    return blake2b(b"%s|%d|%s" % (before, token_id, adapter.encode()), digest_size=8).digest()


def _sample(context: Sequence[bytes], sampling: SamplingParams, output_position: int) -> int:
    noise = b"%d/%d" % (sampling.seed, output_position) if sampling.temperature else b""
    digest = blake2b(b"".join(context) + noise, digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


# -- checks


class TerminalEvents(EventLog):
    """An event log that fails at once when anything about a request follows its last event."""

    def __init__(self, keep: bool = True) -> None:
        super().__init__(keep)
        self.finished: Counter[str] = Counter()
        self.tokens: dict[str, list[int]] = {}

    def add(self, event: Event) -> None:
        request_id = getattr(event, "request_id", None)
        assert not self.finished[request_id], f"{event} follows the end of {request_id}"
        if isinstance(event, Finished):
            self.finished[request_id] += 1
        if isinstance(event, TokensProduced):
            self.tokens.setdefault(request_id, []).extend(event.token_ids)
        super().add(event)


def check(engine: Engine) -> None:
    """What must hold between any two calls, beside the engine's own `check_integrity`."""
    engine.check_integrity()
    scheduler, pool = engine.scheduler, engine.pool
    assert pool.num_free + pool.num_used + pool.num_cached == pool.num_blocks
    held = {request.id for request in (*scheduler.waiting, *scheduler.running)}
    assert len(held) == len(scheduler.waiting) + len(scheduler.running) == scheduler.num_unfinished
    for request in scheduler.waiting:
        assert request.status is Status.WAITING and request.block_table == []
        assert request.num_computed_tokens == 0
    for request in scheduler.running:
        assert request.status is Status.RUNNING
        assert len(request.block_table) >= pool.blocks_for(request.num_computed_tokens)
        assert request.num_computed_tokens < request.num_tokens


def check_plan(engine: Engine, plan: StepPlan) -> None:
    """A step writes only blocks that nobody else reads, and leaves no victim in it."""
    ids = [row.request_id for row in plan.rows]
    assert len(set(ids)) == len(ids)
    running = {request.id for request in engine.scheduler.running}
    assert set(ids) <= running, "a row's request is not running: it was preempted in this step"
    size = engine.pool.block_size
    for row in plan.rows:
        written = set(row.block_table[row.start // size : -(-row.num_context_tokens // size)])
        assert row.token_ids and written
        for other in plan.rows:
            assert other is row or not written & set(other.block_table)


def check_drained(engine: Engine) -> None:
    """After the last request every block is free or cached, and no table holds any."""
    assert not engine.has_unfinished
    engine.check_integrity()
    assert engine.pool.num_used == 0
    assert engine.pool.num_free + engine.pool.num_cached == engine.pool.num_blocks


def choices(request: Request) -> list[Request]:
    """Each choice of a request as one of its own, for what it should answer."""
    return [
        Request(
            id, request.prompt_token_ids, request.sampling.of_choice(n), adapter=request.adapter
        )
        for n, id in enumerate(request.choice_ids)
    ]


def check_output(request: Request, eos_token_ids: frozenset[int] = frozenset()) -> None:
    """A finished request has exactly the oracle's tokens; one cut short a prefix of them."""
    right = expected_output(request, eos_token_ids=eos_token_ids)
    if request.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
        right = right[: request.num_output_tokens]
    assert request.output_token_ids == right, request.id


def drain(engine: Engine, now_s: float = 0.0, max_steps: int = 2_000) -> int:
    """Step until nothing is left, within a bound; returns the number of steps.

    Time jumps to the policy's `wake_at_s` where it waits, and otherwise goes on by 1 s a step.
    """
    for num_steps in range(max_steps):
        check(engine)
        if not engine.has_unfinished:
            return num_steps
        if engine.step(now_s):
            now_s += 1.0
        elif engine.wake_at_s is not None:
            now_s = max(now_s, engine.wake_at_s)
    raise AssertionError(f"not idle after {max_steps} steps: a livelock")


def content_engine(policy=None, num_blocks: int = 16, block_size: int = 4, **more) -> Engine:
    """An engine over a `ContentExecutor`, whose log allows nothing after a terminal event."""
    names = ("max_model_len", "eos_token_ids")
    ours = {name: more.pop(name) for name in names if name in more}
    executor = more.pop("executor", None) or ContentExecutor(num_blocks, block_size, **ours)
    return Engine(executor, policy, log=more.pop("log", None) or TerminalEvents(), **more)


def ask(
    id: str = "r",
    prompt: int | Sequence[int] = 8,
    max_tokens: int = 4,
    *,
    sampling: dict | None = None,
    **fields,
) -> Request:
    """A request; an int as `prompt` means that many tokens that no other id shares."""
    if isinstance(prompt, int):
        prompt = [int.from_bytes(id.encode()[:6], "little") + 1_000 + n for n in range(prompt)]
    params = SamplingParams(max_tokens=max_tokens, **(sampling or {}))
    return Request(id, tuple(prompt), params, **fields)


# -- strategies

POLICIES = {
    "static": lambda: StaticBatching(batch_size=3),
    "dynamic": lambda: DynamicBatching(batch_size=3, max_wait_s=2.0),
    "continuous": lambda: ContinuousBatching(token_budget=64, max_running=8),
    "continuous, small chunks": lambda: ContinuousBatching(
        token_budget=7, max_running=4, chunk_tokens=3
    ),
    "continuous, no bypass": lambda: ContinuousBatching(
        token_budget=9, max_running=3, max_bypasses=0
    ),
}

continuous_policies = st.builds(
    lambda max_running, spare, chunk, bypasses: ContinuousBatching(
        token_budget=max_running + spare,
        max_running=max_running,
        chunk_tokens=chunk,
        max_bypasses=bypasses,
    ),
    st.integers(1, 6),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(0, 4),
)
policies = st.one_of(
    continuous_policies,
    st.builds(StaticBatching, st.integers(1, 4)),
    st.builds(DynamicBatching, st.integers(1, 4), st.floats(0, 3)),
)

ORDERINGS = [
    *(FirstComeFirstServed, EarliestDeadline, PriorityWithAgeing, VirtualTokenCounter),
    ShortestExpected,
]

# Prompts of few different tokens, and one document that many begin with: prefixes are often equal.
DOCUMENT = tuple(range(500, 520))
prompts = st.builds(
    lambda shared, own: (*DOCUMENT[:shared], *own) or (1,),
    st.integers(0, 12),
    st.lists(st.integers(1, 2), max_size=5),
)


def thrashing_engine(**more):
    """Three requests that fit one by one, but not together: they must preempt each other."""
    engine = content_engine(num_blocks=6, block_size=2, **more)
    requests = [ask(f"r{n}", (*DOCUMENT[:3], n), max_tokens=8) for n in range(3)]
    return engine, requests
