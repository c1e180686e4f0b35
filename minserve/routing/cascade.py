"""The cheapest model first, a dearer one where its answer fails validation (FrugalGPT, Chen 2023).

What decides is a check of the answer against its task and evidence. A model's own confidence is no
evidence, and is not asked for. A cascade is worth what it does end to end, on every slice that
matters: an average hides the slice where the small model is always wrong and always believed.

Equivalent inputs: answers that pass the same check. Valid for one task. Scope: its asker. Order
matters: cheapest first. Once cancelled, no further attempt begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minserve.client import EngineClient
from minserve.errors import ConfigError
from minserve.events import Event, Finished, TokensProduced
from minserve.request import Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Route(Generic[T]):
    """One model. `request_of(task, id)` asks it in its own tokens, `decode` reads its answer."""

    name: str
    client: EngineClient
    request_of: Callable[[T, str], Request]
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one route came to. `reason` is its finish reason; times on the client's clock."""

    route: str
    text: str
    reason: str
    is_valid: bool
    num_tokens: int
    ended_s: float


@dataclass(frozen=True, slots=True)
class Routed:
    """The end of a task. `answer` is that of the last attempt if valid, else None: better no
    answer than one that failed its check.
    """

    task_id: str
    attempts: tuple[Attempt, ...]
    is_cancelled: bool = False

    @property
    def answer(self) -> str | None:
        last = self.attempts[-1] if self.attempts else None
        return last.text if last and last.is_valid and not self.is_cancelled else None

    @property
    def route(self) -> str | None:
        return self.attempts[-1].route if self.attempts else None


class Cascade(Generic[T]):
    """Asks `routes` in order until `validate(task, text)` says True.

    Only answers that ended by themselves are put to the check; one that raises has failed.
    `make_stop(task)`, asked at each attempt, gives a test of the text so far that says True once it
    is whole: the attempt ends there, as if by itself.
    """

    def __init__(
        self,
        routes: Sequence[Route[T]],
        validate: Callable[[T, str], bool],
        make_stop: Callable[[T], Callable[[str], bool]] | None = None,
    ) -> None:
        if not routes:
            raise ConfigError("a cascade without routes", "give at least one")
        self.routes, self._validate = tuple(routes), validate
        self._make_stop = make_stop or (lambda task: lambda text: False)
        self._running: dict[str, _Run[T]] = {}

    def ask(self, task_id: str, task: T, on_end: Callable[[Routed], None]) -> None:
        """Have `task` answered; `on_end(routed)` is called once."""
        if task_id in self._running:
            raise ConfigError(f"task id {task_id!r} is in use", "choose another")
        run = self._running[task_id] = _Run(task_id, task, on_end)
        self._try(run, 0)

    def cancel(self, task_id: str) -> None:
        """End a task, whichever route it is on; after its end this does nothing."""
        if run := self._running.get(task_id):
            run.is_cancelled = True
            self.routes[len(run.attempts)].client.cancel(run.request_id)

    def _try(self, run: _Run[T], number: int) -> None:
        route = self.routes[number]
        run.request_id, run.token_ids = f"{run.task_id}@{route.name}", []
        run.is_whole, run.stop = False, self._make_stop(run.task)
        request = route.request_of(run.task, run.request_id)
        route.client.send(request, lambda event: self._hear(run, number, event))

    def _hear(self, run: _Run[T], number: int, event: Event) -> None:
        route = self.routes[number]
        if isinstance(event, TokensProduced) and not run.is_whole:
            run.token_ids.extend(event.token_ids)
            if run.stop(route.decode(run.token_ids)):
                run.is_whole = True
                route.client.cancel(run.request_id)
        if not isinstance(event, Finished):
            return
        text, reason = route.decode(run.token_ids), "stop" if run.is_whole else event.reason
        is_valid = reason == "stop" and self._is_valid(run.task, text)
        run.attempts.append(
            Attempt(route.name, text, reason, is_valid, len(run.token_ids), event.time_s)
        )
        if is_valid or run.is_cancelled or number + 1 == len(self.routes):
            del self._running[run.task_id]
            run.on_end(Routed(run.task_id, tuple(run.attempts), run.is_cancelled))
        else:
            self._try(run, number + 1)

    def _is_valid(self, task: T, text: str) -> bool:
        try:
            return self._validate(task, text) is True
        except Exception:  # a check that cannot be made has not been passed
            return False


@dataclass(slots=True)
class _Run(Generic[T]):
    task_id: str
    task: T
    on_end: Callable[[Routed], None]
    attempts: list[Attempt] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    request_id: str = ""
    is_whole: bool = False
    stop: Callable[[str], bool] = bool
    is_cancelled: bool = False
