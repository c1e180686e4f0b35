"""A service that checks what can be checked, and asks a dearer model where the answer fails.

    request -> cheap model -> check -> told
                                |
                                +-> dearer model -> check -> told, or an error

What an answer is checked by comes from its request (`minserve.reuse.validation`). One without a
check goes to the first model alone and is told as it comes. One with a check is told once it is
whole and has passed, streamed or not: what was shown cannot be taken back. Idea: FrugalGPT (Chen
et al., 2023); `minserve.routing.cascade` is the same between any two engine clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from minserve.errors import ConfigError
from minserve.request import FinishReason, Request
from minserve.reuse.key import Wording
from minserve.reuse.validation import Check
from minserve.scheduling.admission import Refuse
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Attempt, Ended, Listener, Output, Piece, Service, Started

log = logging.getLogger("minserve.cascade")


@dataclass(frozen=True, slots=True)
class Route:
    """One model. `request_of(request, wording, id)` asks it the same in its own tokens; None if it
    cannot be asked.
    """

    model: str
    service: Service
    request_of: Callable[[Request, Wording, str], Request | None]


class NoValidAnswer(str):
    """Why a request failed, with the name and status that its client is told."""

    code, status, may_retry = "no_valid_answer", 502, False


class CascadedService:
    """A `Service` over several, on one event loop: the first serves, the others where it fails.

    Args:
        service: The cheap model's. It lets requests in; the others' admission may refuse what
            comes to them, and then the request is refused.
        model: What the cheap model is called.
        dearer: The others, cheapest first.
        check_of: The check of a request, or None.
    """

    def __init__(
        self,
        service: Service,
        model: str,
        dearer: Sequence[Route],
        check_of: Callable[[Wording], Check | None],
    ) -> None:
        if not dearer:
            raise ConfigError("a cascade without a dearer model", "give at least one")
        self.service = service
        self.client, self.admission = service.client, service.admission
        self.on_attempt: Callable[[Request, Attempt], None] = lambda request, attempt: None
        """Hears of every attempt that ends, on the thread of the loop."""
        self._routes = (Route(model, service, lambda request, wording, id: request), *dearer)
        self._check_of = check_of
        self._running: dict[str, _Run] = {}

    @property
    def models(self) -> list[str]:
        """In the order in which they are asked."""
        return [route.model for route in self._routes]

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
    ) -> None:
        """As `Service.submit`. `wording` says what the answer is checked by."""
        wording = wording or Wording()
        is_plain = request.sampling.n == 1 and request.sampling.logprobs is None
        check = self._check_of(wording) if is_plain else None
        if check is None:
            return self.service.submit(request, listener, quota, wording)
        run = self._running[request.id] = _Run(request, wording, listener, quota, check)
        self._try(run, 0)

    def cancel(self, request_id: str) -> None:
        """As `Service.cancel`, whichever model is at it."""
        if run := self._running.get(request_id):
            run.is_cancelled = True
            return self._routes[run.number].service.cancel(run.asked.id)
        self.service.cancel(request_id)

    def _try(self, run: _Run, number: int) -> None:
        route = self._routes[number]
        id = f"{run.request.id}@{number}" if number else run.request.id
        run.number, run.began_s = number, self.client.loop.clock.now_s()
        run.text, run.num_tokens, run.num_cached_tokens = "", 0, 0
        try:
            asked = route.request_of(run.request, run.wording, id)
            if asked is None:
                return self._end(run, self._failure(run))
            run.asked = asked
            route.service.submit(asked, partial(self._hear, run), run.quota)
        except Exception:  # nobody is to wait for what has not begun
            log.exception("request %s could not be sent to %s", id, route.model)
            self._ended(run, Ended(0, FinishReason.ERROR))

    def _hear(self, run: _Run, output: Output) -> None:
        match output:
            case Started(num_cached_tokens=num_cached_tokens):
                run.num_cached_tokens = num_cached_tokens
            case Piece(text=text, num_tokens=num_tokens):
                run.text += text
                run.num_tokens += num_tokens
            case Refuse(code=code):
                self._note(run, code)
                self._end(run, output)
            case Ended():
                self._ended(run, output)

    def _ended(self, run: _Run, ended: Ended) -> None:
        is_whole = ended.reason is FinishReason.STOP
        is_right = is_whole and _passes(run)
        outcome = ("passed" if is_right else "failed") if is_whole else ended.reason.value
        attempt = self._note(run, outcome)
        if run.is_cancelled or ended.reason is FinishReason.CANCELLED:
            self._end(run, Ended(0, FinishReason.CANCELLED))
        elif is_right:
            started = Started(
                run.num_cached_tokens, route=attempt.model, attempts=tuple(run.attempts)
            )
            self._end(run, started, Piece(0, run.text, run.num_tokens), ended)
        elif run.number + 1 < len(self._routes):
            self._try(run, run.number + 1)
        else:
            self._end(run, self._failure(run))

    def _note(self, run: _Run, outcome: str) -> Attempt:
        now_s = self.client.loop.clock.now_s()
        attempt = Attempt(
            self._routes[run.number].model,
            run.asked.num_prompt_tokens,
            run.num_tokens,
            outcome,
            run.began_s,
            now_s,
        )
        run.attempts.append(attempt)
        self.on_attempt(run.request, attempt)
        return attempt

    def _failure(self, run: _Run) -> Ended:
        """Better no answer than one that failed its check."""
        told = ", ".join(f"{attempt.model}: {attempt.outcome}" for attempt in run.attempts)
        why = NoValidAnswer(f"no model's answer passed its check ({told})")
        return Ended(0, FinishReason.ERROR, why)

    def _end(self, run: _Run, *outputs: Output) -> None:
        if self._running.pop(run.request.id, None):
            for output in outputs:
                run.listener(output)


def cascade_of(service: object) -> CascadedService | None:
    """The cascade that is part of `service`, if there is one."""
    layers = service, getattr(service, "service", None)
    return next((layer for layer in layers if isinstance(layer, CascadedService)), None)


@dataclass(eq=False, slots=True)
class _Run:
    """A request with a check, and what the model that is at it has said."""

    request: Request
    wording: Wording
    listener: Listener
    quota: Quota
    check: Check
    attempts: list[Attempt] = field(default_factory=list)
    number: int = 0
    asked: Request = field(init=False)
    began_s: float = 0.0
    text: str = ""
    num_tokens: int = 0
    num_cached_tokens: int = 0
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.asked = self.request


def _passes(run: _Run) -> bool:
    try:
        return run.check(run.text) is True
    except Exception:  # a check that cannot be made has not been passed
        log.exception("the check of request %s failed", run.request.id)
        return False
