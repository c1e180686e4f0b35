"""What the experiments of several lessons share: requests to serve, and a large model's costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from minserve.execution.simulated import CostModel
from minserve.request import Request, SamplingParams

# Round figures of the order of an 8B model on one accelerator; not measured. Only comparisons
# within one table mean anything.
BIG_MODEL = CostModel(per_step_s=0.015, per_token_s=1e-4, per_row_s=5e-5, per_context_token_s=2e-9)


def northstar_requests(
    count: int, encode: Callable[[str], Sequence[int]], seed: int = 0, max_answer: int = 64
) -> list[Request]:
    """Northstar's timing traffic, all waiting at time 0; output lengths are forced.

    Answers are cut to `max_answer` tokens, so that a lesson's run takes seconds.
    """
    from minserve.northstar.traffic import make_traffic

    traffic = make_traffic(
        "timing", count, encode, rate_per_s=1.0, seed=seed, max_total_tokens=1024
    )
    return [
        replace(
            arrival,
            arrival_s=0.0,
            sampling=replace(
                arrival.sampling, max_tokens=min(arrival.sampling.max_tokens, max_answer)
            ),
        ).request()
        for arrival in traffic
    ]


def words(id: str, num_tokens: int, max_tokens: int, arrival_s: float = 0.0) -> Request:
    """A request of that many prompt and output tokens, whatever they say."""
    prompt = tuple(5 + (7 * i + len(id)) % 500 for i in range(num_tokens))
    return Request(
        id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), arrival_s=arrival_s
    )


def again(request: Request) -> Request:
    """The same request, not yet served."""
    return Request(
        request.id,
        request.prompt_token_ids,
        request.sampling,
        identity=request.identity,
        arrival_s=request.arrival_s,
        deadline_s=request.deadline_s,
        priority=request.priority,
        adapter=request.adapter,
        cache_salt=request.cache_salt,
    )


def or_never(time_s: float | None) -> float:
    """The time; infinite for what has not come."""
    return math.inf if time_s is None else time_s


def ttft_s(request: Request) -> float:
    """Seconds to its first token; infinite for a request that has none."""
    return or_never(request.timeline.ttft_s)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
