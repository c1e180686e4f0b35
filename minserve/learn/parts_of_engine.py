"""How parts that are plain functions stand in the engine, and the reference of each.

`decode_loop`, `engine_step` and `ordering` are what a lesson asks for; the classes let a real
engine run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.request import Request
from minserve.scheduling.ordering import Ordering

AGEING_S = 10.0
"""Seconds of waiting that count as one level of priority in the part `ordering`."""


def decode_loop(
    forward: Callable[[Sequence[int]], Any],
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    eos_token_ids: frozenset[int],
) -> list[int]:
    """Greedy generation: read the prompt, then write a token at a time.

    `forward(token_ids)` reads them behind what it has read before, and returns the logits of the
    next token, `[vocab]`. Returns the output; an end token is its last. N tokens take N calls.
    """
    output: list[int] = []
    logits = forward(prompt_token_ids)
    while True:
        token = int(logits.argmax())
        output.append(token)
        if token in eos_token_ids or len(output) == max_tokens:
            return output
        logits = forward([token])


def engine_step(scheduler: Any, executor: Any, now_s: float) -> bool:
    """One step: plan, launch, collect, commit. False if there was nothing to do.

    If the executor fails, every request ends with an error, and the failure goes on.
    """
    plan = scheduler.plan(now_s)
    if plan is None:
        return False
    try:
        result = executor.collect(executor.launch(plan, now_s))
    except Exception as error:
        scheduler.fail_all(str(error), now_s)
        raise
    scheduler.commit(plan, result, now_s)
    return True


@dataclass(frozen=True, slots=True)
class Asking:
    """A waiting request as `ordering` sees it. `deadline_s` is None if there is none."""

    id: str
    arrival_s: float
    priority: int = 0
    deadline_s: float | None = None


def ordering(request: Asking, now_s: float) -> tuple[float, float, float]:
    """Sort key, lower first: priority that grows with waiting, then deadline, then arrival."""
    level = request.priority + (now_s - request.arrival_s) // AGEING_S
    deadline_s = float("inf") if request.deadline_s is None else request.deadline_s
    return -level, deadline_s, request.arrival_s


class OrderingPart(Ordering):
    """Sorts the engine's queue by `function(request, now_s)`."""

    is_fixed = False

    def __init__(self, function: Callable[[Asking, float], Any]) -> None:
        self.function = function

    def key(self, request: Request, now_s: float) -> Any:
        asking = Asking(request.id, request.arrival_s, request.priority, request.deadline_s)
        return self.function(asking, now_s)
