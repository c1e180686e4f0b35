"""A batching policy as a learner writes it: a function from what it sees to who runs.

    def policy(view, ...settings) -> [(request, num_tokens), ...]  or  Wait(until_s)

Memory is one number here, `view.free_tokens`; lesson 3 looks inside. `PolicyPart` lets the engine
run such a function as its batching policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.errors import ConfigError
from minserve.scheduling.batching import Decision, Snapshot


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as a policy sees it.

    `num_to_compute` tokens must be computed before it can write its next one: the whole prompt at
    first, 1 while it writes. `num_to_hold` is the memory, in tokens, that letting it run takes
    from `View.free_tokens`.
    """

    id: str
    arrival_s: float
    num_to_compute: int
    num_to_hold: int

    @property
    def is_prefill(self) -> bool:
        """It is still reading its prompt."""
        return self.num_to_compute > 1


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may know: the time, who runs, who waits (oldest first), and free memory."""

    now_s: float
    running: tuple[Seen, ...]
    waiting: tuple[Seen, ...]
    free_tokens: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Run nobody now, and ask again at `until_s`."""

    until_s: float


class PolicyPart:
    """Runs `function(view, **settings)` as the engine's batching policy.

    The engine counts memory in blocks of `block_size` tokens; when it runs out, the latest to
    arrive are preempted. Raises `ConfigError`, in words, for an answer that is none.
    """

    def __init__(
        self, function: Callable[..., Any], block_size: int = 16, **settings: float
    ) -> None:
        self.function = function
        self.block_size = block_size
        self.settings = settings
        if "batch_size" in settings:  # the scheduler then shows it that many
            self.batch_size = int(settings["batch_size"])

    def decide(self, snapshot: Snapshot) -> Decision:
        requests = {r.id: r for r in (*snapshot.running, *snapshot.waiting)}
        answer = self.function(self._view(snapshot), **self.settings)
        if isinstance(answer, Wait):
            return Decision(wake_at_s=answer.until_s)
        run = []
        for item in _pairs(answer):
            seen, num_tokens = item
            if getattr(seen, "id", None) not in requests:
                raise ConfigError(f"the policy runs {seen!r}", "run requests of the view only")
            run.append((requests[seen.id], num_tokens))
        return Decision(run, victims=snapshot.running[::-1])

    def _view(self, snapshot: Snapshot) -> View:
        size = self.block_size

        def seen(request: Any) -> Seen:
            return Seen(
                request.id,
                request.arrival_s,
                snapshot.num_to_compute(request),
                snapshot.num_new_blocks(request) * size,
            )

        return View(
            snapshot.now_s,
            tuple(map(seen, snapshot.running)),
            tuple(map(seen, snapshot.waiting)),
            snapshot.num_available_blocks * size,
        )


def _pairs(answer: Any) -> Sequence[tuple[Any, int]]:
    try:
        return [(seen, num_tokens) for seen, num_tokens in answer]
    except (TypeError, ValueError):
        raise ConfigError(
            f"the policy answers {answer!r:.80}", "return a list of (request, num_tokens) pairs"
        ) from None


# -- the reference of each


def static_batching(view: View, batch_size: int) -> list[tuple[Seen, int]]:
    """A batch starts together, and nobody joins until its last request has finished."""
    batch = list(view.running)
    if not batch:
        free = view.free_tokens
        for request in view.waiting[:batch_size]:
            if request.num_to_hold > free:
                break
            free -= request.num_to_hold
            batch.append(request)
    return [(request, request.num_to_compute) for request in batch]


def dynamic_batching(
    view: View, batch_size: int, max_wait_s: float
) -> list[tuple[Seen, int]] | Wait:
    """Static, but a batch starts when it is full or its oldest has waited `max_wait_s`."""
    if not view.running and 0 < len(view.waiting) < batch_size:
        due_s = min(request.arrival_s for request in view.waiting) + max_wait_s
        if view.now_s < due_s:
            return Wait(due_s)
    return static_batching(view, batch_size)


def continuous_batching(view: View, token_budget: int, max_running: int) -> list[tuple[Seen, int]]:
    """Everybody who writes gets a token; what is left of the budget reads prompts, in chunks.

    Requests join and leave between steps (Orca, 2022); prompts in chunks (Sarathi, 2023).
    """
    run = [(request, 1) for request in view.running if not request.is_prefill]
    budget = token_budget - len(run)
    free = view.free_tokens - sum(request.num_to_hold for request, _ in run)
    slots = max_running - len(view.running)
    for request in (*(r for r in view.running if r.is_prefill), *view.waiting):
        if budget <= 0:
            break
        if request in view.waiting:
            if slots <= 0 or request.num_to_hold > free:
                break
            slots -= 1
            free -= request.num_to_hold
        num_tokens = min(request.num_to_compute, budget)
        run.append((request, num_tokens))
        budget -= num_tokens
    return run
