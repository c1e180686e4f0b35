"""Lesson 3's experiments: memory held and used, blocks that come back, attention over blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, Finished, Preempted, StepEnded, StepStarted
from minserve.execution.executor import Executor
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.attention import OneByOne
from minserve.learn.experiments.common import words
from minserve.learn.parts import get
from minserve.learn.pool import for_engine
from minserve.northstar.lengths import AZURE, LengthTable
from minserve.request import Request, SamplingParams

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
    rows: list[tuple[str, ...]] = []
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


# -- a smaller precision

PRECISION_HEADING = ("cache", "bytes per token", "tokens that fit", "most at once", "answers right")


def precisions(cache_bytes: int, count: int = 24, model: str = "nano") -> list[tuple[str, ...]]:
    """The first `count` of Northstar's questions from as many bytes of cache, in float32 and int8.

    Everybody asks at once, greedily and with natural stops, so that answers can be checked.
    """
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.northstar.corpus import load_corpus
    from minserve.northstar.questions import is_qualified, load_questions, prompt_of

    corpus, questions = load_corpus(), load_questions()[:count]
    rows: list[tuple[str, ...]] = []
    for name, kept in (("float32", "auto"), ("int8", "int8")):
        per_token = TorchExecutor(model, num_blocks=1, kv_cache_dtype=kept).kv_bytes_allocated // 16
        num_blocks = cache_bytes // (16 * per_token)
        executor = TorchExecutor(model, num_blocks=num_blocks, kv_cache_dtype=kept)
        requests = []
        for question in questions:
            prompt = executor.tokenizer.encode(
                prompt_of(question, corpus), add_special_tokens=False
            )
            requests.append(Request(question.id, tuple(prompt), SamplingParams(max_tokens=48)))
        use = serve(executor, requests)
        answers = [executor.tokenizer.decode(request.output_token_ids) for request in requests]
        right = sum(map(is_qualified, questions, answers, [corpus.version] * count))
        rows.append(
            (
                name,
                f"{per_token:,}",
                f"{num_blocks * 16:,}",
                f"{use.peak_running}",
                f"{right} of {count}",
            )
        )
    return rows


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
