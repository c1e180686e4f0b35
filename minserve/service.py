"""A request's way through, without HTTP and on either clock:

    identity -> cache -> admission -> engine or job -> text

Whoever accepts work (the HTTP server, a chat in the terminal, a test) gives a `Request` that
carries the identity from its own records, and hears text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minserve.client import LocalClient
from minserve.events import Admitted, Event, Finished, TokenLogprob, TokensProduced
from minserve.output import Detokenizer
from minserve.request import FinishReason, Request
from minserve.scheduling.admission import Admission, Admit, Defer, Refuse
from minserve.scheduling.quota import NO_QUOTA, Quota

if TYPE_CHECKING:
    from minserve.reuse.key import Wording


@dataclass(frozen=True, slots=True)
class Attempt:
    """One model's answer to a request that others may have been asked as well.

    `outcome` is `passed` or `failed`, its check, or how it ended before it was whole.
    """

    model: str
    num_prompt_tokens: int
    num_output_tokens: int
    outcome: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is being computed; `num_cached_tokens` of it were already.

    `cache` says what the response cache made of it: `hit`, `similar` (of another wording), `shared`
    or `miss`; empty without one. `route` names the model that a cascade took the answer from, after
    the `attempts` of all that it asked; both are empty without one.
    """

    num_cached_tokens: int
    cache: str = ""
    route: str = ""
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """More of choice `index`: text that may be shown, and `num_tokens` more tokens.

    Text may lag behind its tokens. `token_ids` and `logprobs` (empty unless asked for) are those
    of the tokens that have text, so not of one that ended the output.
    """

    index: int
    text: str
    num_tokens: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Choice `index` is over: nothing about it follows. `error` says why, if it failed."""

    index: int
    reason: FinishReason
    error: str | None = None


Output = Started | Piece | Ended | Refuse
"""`Refuse`, from admission, is the only one of its request: it was not let in."""
Listener = Callable[[Output], None]


class Service:
    """Lets requests in, has them served, and turns their tokens into text.

    It belongs to the thread that runs the client's event loop. Stop strings are found as the
    tokens come, so the engine ends the request, and frees its blocks, in the step that completes
    one.

    Args:
        client: The engine. Its extra stop rule becomes this service's.
        detokenizer: Makes a fresh one for the stop strings of a request.
        admission: Decides who comes in; without it everybody does.
    """

    def __init__(
        self,
        client: LocalClient,
        detokenizer: Callable[[Sequence[str]], Detokenizer],
        admission: Admission | None = None,
    ) -> None:
        self.client = client
        self.admission = admission
        self._detokenizer = detokenizer
        self._deferred: dict[str, tuple[Request, Listener]] = {}
        self._choices: dict[str, _Choice] = {}
        client.engine.is_stopped = self._is_stopped

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
    ) -> None:
        """Serve `request`; `listener(output)` hears of it until each choice has `Ended`.

        `wording` is for a cache in front; here it is of no use.
        """
        if self.admission is None:
            return self._send(request, listener)
        loop = self.client.loop
        match self.admission.ask(request, loop.clock.now_s(), quota):
            case Refuse() as refusal:
                listener(refusal)
            case Defer(until_s=until_s):
                self._deferred[request.id] = request, listener
                loop.at(until_s, lambda: self._ask_again(request.id, quota))
            case Admit(max_tokens=max_tokens):
                max_tokens = max(max_tokens, request.sampling.min_tokens)
                request.sampling = replace(request.sampling, max_tokens=max_tokens)
                self._send(request, listener)

    def cancel(self, request_id: str) -> None:
        """End a request with all its choices, at whatever stage; does nothing after its end."""
        if deferred := self._deferred.pop(request_id, None):
            request, listener = deferred
            for index in range(request.sampling.n):
                listener(Ended(index, FinishReason.CANCELLED))
        else:
            self.client.cancel(request_id)

    def _ask_again(self, request_id: str, quota: Quota) -> None:
        if deferred := self._deferred.pop(request_id, None):  # else its client has gone
            self.submit(*deferred, quota)

    def _send(self, request: Request, listener: Listener) -> None:
        for index, id in enumerate(request.choice_ids):
            text = self._detokenizer(request.sampling.stop)
            self._choices[id] = _Choice(index, text, listener)
        self.client.send(request, self._hear)

    def _is_stopped(self, request: Request) -> bool:
        choice = self._choices.get(request.id)
        return choice is not None and choice.append(request.output_token_ids[-1])

    def _hear(self, event: Event) -> None:
        choice = self._choices.get(getattr(event, "request_id", ""))
        if choice is None:
            return
        match event:
            case Admitted(num_cached_tokens=num_cached_tokens):
                choice.start(num_cached_tokens)
            case TokensProduced():
                choice.produced(event)
            case Finished():
                del self._choices[event.request_id]
                if self.admission:
                    self.admission.leave(event.request_id)  # the engine may never have had it
                choice.end(FinishReason(event.reason), event.error)


class _Choice:
    """The text of one choice, on its way out."""

    def __init__(self, index: int, detokenizer: Detokenizer, listener: Listener) -> None:
        self._index = index
        self._detokenizer = detokenizer
        self._listener = listener
        self._has_started = index > 0  # the prompt is the first choice's affair
        self._text = ""
        self._num_appended = 0

    def append(self, token_id: int) -> bool:
        """Take the newest token; whether it completes a stop string."""
        self._num_appended += 1
        self._text += self._detokenizer.append([token_id])
        return self._detokenizer.matched_stop is not None

    def start(self, num_cached_tokens: int) -> None:
        if not self._has_started:  # NOTE: after a preemption it is admitted again
            self._has_started = True
            self._listener(Started(num_cached_tokens))

    def produced(self, event: TokensProduced) -> None:
        # A token that ends the output by itself has not been appended: it has no text.
        num_shown, self._num_appended = self._num_appended, 0
        text, self._text = self._text, ""
        token_ids, logprobs = event.token_ids[:num_shown], event.logprobs[:num_shown]
        self._listener(Piece(self._index, text, len(event.token_ids), token_ids, logprobs))

    def end(self, reason: FinishReason, error: str | None) -> None:
        if rest := self._detokenizer.finish():
            self._listener(Piece(self._index, rest, 0))
        self._listener(Ended(self._index, reason, error))
