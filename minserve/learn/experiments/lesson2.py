"""Lesson 2's experiments: who is in the batch, on the virtual clock and on the real model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, StepStarted
from minserve.execution.executor import Executor
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.learn.experiments.common import BIG_MODEL, again, or_never, quantile, ttft_s, words
from minserve.learn.parts import get
from minserve.learn.parts_of_engine import OrderingPart
from minserve.learn.policies import PolicyPart
from minserve.northstar.lengths import AZURE, LengthTable
from minserve.request import Identity, Request, SamplingParams
from minserve.scheduling.compatibility import anyone


def policy(name: str, mine: bool = True, **settings: Any) -> PolicyPart:
    """A batching part as the engine takes it: yours if it is ready, else the reference."""
    return PolicyPart(get(name, mine=mine), **settings)


# -- runs


@dataclass(slots=True)
class Run:
    """What came of a run: its requests, and its event log. Times are the clock's, in seconds."""

    requests: list[Request]
    events: list[Event]

    @property
    def steps(self) -> list[StepStarted]:
        """Every engine step."""
        return [event for event in self.events if isinstance(event, StepStarted)]

    @property
    def mean_rows(self) -> float:
        """Requests in a step, on average."""
        return sum(len(step.rows) for step in self.steps) / len(self.steps)

    @property
    def span_s(self) -> float:
        """When the last token came."""
        return max(request.timeline.token_times_s[-1] for request in self.requests)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of everybody over the whole span."""
        return sum(request.num_output_tokens for request in self.requests) / self.span_s

    def ttft_s(self, share: float) -> float:
        """A quantile of the time to first token (nearest rank)."""
        return quantile([ttft_s(request) for request in self.requests], share)

    def itl_s(self, share: float) -> float:
        """A quantile of the gaps between tokens, of all requests together."""
        return quantile([gap for r in self.requests for gap in r.timeline.itl_s], share)

    def e2e_s(self, share: float) -> float:
        """A quantile of the time from arrival to the last token."""
        return quantile([or_never(r.timeline.e2e_s) for r in self.requests], share)

    def one_pass_row(self, name: str) -> tuple[str, ...]:
        """Cells under `ONE_PASS_HEADING`, for requests that write nothing."""
        waits = (f"{self.e2e_s(share) * 1000:.0f}" for share in (0.5, 0.95))
        return name, f"{len(self.steps)}", f"{self.mean_rows:.1f}", *waits

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `HEADING`."""
        return (
            name,
            f"{self.mean_rows:.1f}",
            f"{self.ttft_s(0.5):.2f}",
            f"{self.ttft_s(0.95):.2f}",
            f"{self.itl_s(0.95) * 1000:.0f}",
            f"{self.span_s:.1f}",
            f"{self.tokens_per_s:.0f}",
        )


HEADING = (
    "policy",
    "requests per step",
    "TTFT p50 (s)",
    "TTFT p95 (s)",
    "ITL p95 (ms)",
    "all done (s)",
    "tokens/s",
)


ONE_PASS_HEADING = ("policy", "passes", "texts per pass", "p50 (ms)", "p95 (ms)")


def simulate(
    policy: Any,
    requests: Sequence[Request],
    *,
    cost: CostModel = BIG_MODEL,
    num_blocks: int = 16_384,
    compatible: Callable[[Request, Request], bool] = anyone,
    order: Callable[..., Any] | None = None,
) -> Run:
    """Serve fresh copies of `requests` on the virtual clock; `order` is the part `ordering`."""
    requests = [again(request) for request in requests]
    engine = Engine(
        SimulatedExecutor(num_blocks, 16, cost=cost),
        policy,
        prefix_caching=False,
        compatible=compatible,
        ordering=OrderingPart(order) if order else None,
    )
    client = LocalClient(engine, EventLoop(VirtualClock()))
    for request in requests:
        client.send(request)
    client.run()
    engine.check_integrity()
    return Run(requests, engine.log.events)


def serve(executor: Executor, policy: Any, requests: Sequence[Request]) -> Run:
    """Serve fresh copies of `requests`, all there from the start; counts steps, not seconds."""
    requests = [again(request) for request in requests]
    engine = Engine(executor, policy, prefix_caching=False)
    for request in requests:
        engine.submit(request, 0.0)
    while engine.step(0.0):
        engine.check_integrity()
    return Run(requests, engine.log.events)


# -- traffic


def lunch_hour(report: int = 160) -> list[Request]:
    """Eight people: seven short answers, and one long report in the first four."""
    answers = {"anna": 8, "ben": 12, "report": report, "dora": 10, "emil": 8, "fay": 12, "gus": 9}
    requests = [words(name, 60, most) for name, most in answers.items()]
    return [*requests, words("hal", 60, 10)]


def chat_traffic(count: int = 120, rate_per_s: float = 6.0, seed: int = 2) -> list[Request]:
    """Chat requests with the lengths of the Azure trace, at random times; answers up to 400."""
    rng, table = random.Random(seed), LengthTable.load(AZURE)
    requests, time_s = [], 0.0
    for number in range(count):
        prompt, answer = (round(x) for x in table.draw(rng))
        prompt, answer = max(16, min(prompt, 2048)), max(2, min(answer, 400))
        requests.append(words(f"r{number:03}", prompt, answer, time_s))
        time_s += rng.expovariate(rate_per_s)
    return requests


def embedding_traffic(count: int = 200, rate_per_s: float = 60.0, seed: int = 2) -> list[Request]:
    """Texts to embed: one pass over 20 to 200 tokens, and nothing is written."""
    rng = random.Random(seed)
    requests, time_s = [], 0.0
    for number in range(count):
        requests.append(words(f"t{number:03}", rng.randint(20, 200), 1, time_s))
        time_s += rng.expovariate(rate_per_s)
    return requests


EMBEDDER = CostModel(per_step_s=0.02, per_token_s=2e-6, per_row_s=1e-4, per_context_token_s=0.0)
"""An encoder's costs, a round guess: a pass costs nearly the same for one text as for eight."""


# -- the long prompt


@dataclass(frozen=True, slots=True)
class Burst:
    """What the writers felt while three long prompts came in."""

    longest_gap_ms: float
    long_ttft_s: float
    run: Run


def long_prompts(policy: Any, prompt_tokens: int = 3000) -> Burst:
    """Six people read answers as they are written; then three long prompts arrive at once."""
    writers = [words(f"chat {n}", 40, 120) for n in range(6)]
    long = [words(f"long {n}", prompt_tokens, 10, arrival_s=0.5) for n in range(3)]
    run = simulate(policy, [*writers, *long])
    gaps = [gap for request in run.requests[:6] for gap in request.timeline.itl_s]
    first = max(ttft_s(request) for request in run.requests[6:])
    return Burst(round(max(gaps) * 1000, 1), round(first, 2), run)


def separate_pools(prompt_tokens: int = 3000) -> tuple[float, float]:
    """The same burst on two machines: one only reads prompts, the other only writes.

    Returns the longest gap of the writers in ms, and the slowest first token of the long prompts
    in s. The KV cache is moved for free here, which no network does.
    """
    from minserve.scheduling.batching import ContinuousBatching

    writers = [words(f"chat {n}", 40, 120) for n in range(6)]
    long = [words(f"long {n}", prompt_tokens, 1, arrival_s=0.5) for n in range(3)]
    reading = simulate(ContinuousBatching(token_budget=8192), [*map(_only_read, writers), *long])
    moved = [
        words(f"{r.id} written", 1, r.sampling.max_tokens, read.timeline.token_times_s[0])
        for r, read in zip([*writers, *long], reading.requests, strict=True)
    ]
    writing = simulate(ContinuousBatching(token_budget=8192), moved)
    gaps = [gap for request in writing.requests[:6] for gap in request.timeline.itl_s]
    first = max(ttft_s(request) for request in reading.requests[6:])
    return round(max(gaps) * 1000, 1), round(first, 2)


def _only_read(request: Request) -> Request:
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    return Request(request.id, request.prompt_token_ids, sampling, arrival_s=request.arrival_s)


# -- who may share a batch, and whose turn it is


def two_models(count: int = 6) -> list[Request]:
    """Requests that want different adapters, one after another; the first half is alder's."""
    requests = [words(f"{'legal' if n % 2 else 'sales'} {n}", 40, 8) for n in range(count)]
    for number, request in enumerate(requests):
        request.adapter = "legal" if number % 2 else "sales"
        request.identity = Identity("alder" if number < count // 2 else "marlow")
    return requests


def busy_desk() -> list[Request]:
    """Twenty people, one served at a time; two are urgent, one has a deadline."""
    requests = [words(f"r{n:02}", 40, 30, arrival_s=0.01 * n) for n in range(20)]
    requests[12].priority = 1
    requests[18].priority = 1
    requests[15].deadline_s = 4.0
    return requests


def places(run: Run) -> dict[str, int]:
    """In which place each request got its first token."""
    by_time = sorted(run.requests, key=lambda request: request.timeline.token_times_s[0])
    return {request.id: place for place, request in enumerate(by_time, start=1)}


# -- the engine's step


def serve_with_step(
    step: Callable[..., bool], executor: Executor, requests: Sequence[Request]
) -> Run:
    """Serve `requests` with nothing but `step(scheduler, executor, now_s)` in a loop."""
    requests = [again(request) for request in requests]
    engine = Engine(executor, prefix_caching=False)
    for request in requests:
        engine.submit(request, 0.0)
    for _ in range(sum(request.max_total_tokens for request in requests)):
        if not step(engine.scheduler, executor, 0.0):
            break
    engine.check_integrity()
    return Run(requests, engine.log.events)
