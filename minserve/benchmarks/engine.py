"""What one engine owes its users: a cached prefix is quick, and planning a step costs little."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

from minserve.engine import Engine
from minserve.errors import MinserveError
from minserve.execution.step_times import StepTimes
from minserve.execution.torch_executor import TorchExecutor
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Seconds to the first token of two prompts that begin alike, the first of them `cold`.

    `num_cached_tokens` of the second were not computed.
    """

    cold_s: float
    hit_s: float
    num_cached_tokens: int


def prefix_hit(
    executor: TorchExecutor, rng: random.Random, num_shared: int = 1024, num_own: int = 32
) -> PrefixHit:
    """Serve two prompts of random tokens, alone: `num_shared` in common, then `num_own` each."""
    engine = Engine(executor, ContinuousBatching(token_budget=512, max_running=8))
    shared = _tokens(executor, rng, num_shared)
    seconds, request = [], None
    for name in ("cold", "hit"):
        prompt = shared + _tokens(executor, rng, num_own)
        request = Request(name, prompt, SamplingParams(max_tokens=1, ignore_eos=True))
        began_s = time.perf_counter()
        engine.submit(request, 0.0)
        _run(engine, request)
        seconds.append(time.perf_counter() - began_s)
    return PrefixHit(*seconds, request.num_cached_tokens)


@dataclass(frozen=True, slots=True)
class StepShares:
    """Where the time of `num_steps` steps went, by part (`step_times.PARTS`), and how long one is.

    `bookkeeping` is the share of scheduling and sampling together.
    """

    num_steps: int
    step_s: float
    shares: dict[str, float]

    @property
    def bookkeeping(self) -> float:
        return self.shares["scheduling"] + self.shares["sampling"]


def step_shares(
    executor: TorchExecutor,
    rng: random.Random,
    sampling: SamplingParams,
    batch_size: int = 32,
    num_steps: int = 64,
) -> StepShares:
    """Steps in which `batch_size` requests decode behind prompts of 128 tokens, and nothing else.

    Prompts and the first steps are not counted.
    """
    engine = Engine(executor, ContinuousBatching(512, batch_size), prefix_caching=False)
    requests = []
    for index in range(batch_size):
        own = replace(sampling, max_tokens=num_steps + 32, ignore_eos=True, seed=index)
        requests.append(Request(f"r{index}", _tokens(executor, rng, 128), own))
        engine.submit(requests[-1], 0.0)
    while any(request.num_output_tokens < 3 for request in requests):
        engine.step(0.0)
    with StepTimes(engine) as times:
        began_s = time.perf_counter()
        for _ in range(num_steps):
            engine.step(0.0)
        took_s = time.perf_counter() - began_s
    for request in requests:
        engine.cancel(request.id, 0.0)
    shares = {part: spent_s / took_s for part, spent_s in times.seconds().items()}
    return StepShares(num_steps, took_s / num_steps, shares)


def _tokens(executor: TorchExecutor, rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(100, executor.config.vocab_size) for _ in range(count))


def _run(engine: Engine, request: Request) -> None:
    while engine.step(0.0):
        pass
    if request.num_output_tokens != 1:
        raise MinserveError(f"no token came: {request.error}", "give the pool more blocks")
