"""A service that answers again what it has answered: identity -> cache -> admission -> engine.

The exact cache is asked first, then, for the classes that allow it, the semantic one. Of several
who ask the same at once, one is served by the engine and the others get its answer; if that one is
cancelled or refused, the next is served. Whatever is not surely the same goes through.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from minserve.cascaded_service import CascadedService
from minserve.request import FinishReason, Request
from minserve.reuse.flight import SingleFlight, Waiter
from minserve.reuse.invalidation import CacheEvent
from minserve.reuse.key import Decoding, Message, ModelTuple, Query, Wording, partition_of
from minserve.reuse.response import Answer, ExactCache, Found, Source
from minserve.reuse.semantic import SemanticCache
from minserve.scheduling.admission import Refuse
from minserve.scheduling.overload import may_enrich
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Ended, Listener, Output, Piece, Service, Started

log = logging.getLogger("minserve.cache")


def undivided(content: str) -> tuple[str, str]:
    """A user's message without evidence in it."""
    return "", content


class CachedService:
    """A `Service` with an `ExactCache` before it. Belongs to the engine's thread, as it does.

    Args:
        service: Serves what the cache does not.
        cache: Its policy for `answer_class` says who shares answers, and for how long.
        model: What answers, as the key is to have it.
        answer_class: Of a request that says nothing of itself.
        now_s: The cache's clock. One for all who share a store: by default Unix time.
        semantic: Over `cache`; asked where that has nothing, for other words of the same question.
        split: A user's message as (evidence, question), which together tell the message: wordings
            of a question may differ, evidence may not.
    """

    def __init__(
        self,
        service: Service | CascadedService,
        cache: ExactCache,
        model: ModelTuple,
        answer_class: str = "default",
        now_s: Callable[[], float] = time.time,
        *,
        semantic: SemanticCache | None = None,
        split: Callable[[str], tuple[str, str]] = undivided,
    ) -> None:
        self.service, self.cache, self.model = service, cache, model
        self.answer_class, self.now_s = answer_class, now_s
        self.semantic, self._split = semantic, split
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """How often each (exact, semantic or flight; answer class; outcome) came about."""
        self.client, self.admission = service.client, service.admission
        self._flight: SingleFlight[_Whole] = SingleFlight()
        self._waiting: dict[str, _Asked] = {}

    def submit(
        self,
        request: Request,
        listener: Listener,
        quota: Quota = NO_QUOTA,
        wording: Wording | None = None,
    ) -> None:
        """As `Service.submit`. An answer from the cache takes nothing of a quota.

        `wording` says what caches cannot see in tokens; who asks is never taken from it.
        """
        wording = wording or Wording(self.answer_class)
        query = self._query(request, wording)
        if query is None:
            return self.service.submit(request, listener, quota, wording)
        found, how = self._look_up(query)
        if found.answer is not None:
            return _tell(listener, _Whole(found.answer.text, **found.answer.extra), how)
        try:
            key = partition_of(query), self.cache.key_of(query)
        except Exception:  # a request without a key is nobody else's
            return self.service.submit(request, listener, quota, wording)
        asked = _Asked(request, query, listener, quota, wording)
        asked.waiter = Waiter(
            key,
            lambda: self._lead(asked),
            lambda whole: self._followed(asked, whole),
            lambda error: self._failed(asked, error),
        )
        self._waiting[request.id] = asked
        self._flight.join(asked.waiter)

    def cancel(self, request_id: str) -> None:
        """As `Service.cancel`. Who waited for a cancelled request's answer is not cancelled."""
        asked = self._waiting.get(request_id)
        if asked is None or asked.is_leading:
            return self.service.cancel(request_id)  # the end that follows lets the next one lead
        del self._waiting[request_id]
        self._flight.leave(asked.waiter)
        asked.listener(Ended(0, FinishReason.CANCELLED))

    def invalidate(self, event: CacheEvent) -> int:
        """Remove the answers that `event` makes wrong; returns how many."""
        return (self.semantic or self.cache).invalidate(event, self.now_s())

    def _look_up(self, query: Query) -> tuple[Found, str]:
        now_s = self.now_s()
        # Computing anew what is still fresh is an extra, and the first thing to go under load.
        may_refresh = self.admission is None or may_enrich(self.admission.rung)
        found = self.cache.look_up(query, now_s, refresh=may_refresh)
        self._count("exact", query, found.outcome)
        # NOTE: one who is to refresh an answer must not get that very answer as a similar one.
        if found.answer is not None or self.semantic is None or found.outcome == "refresh":
            return found, "hit"
        if self.cache.policies[query.answer_class].semantic:
            found = self.semantic.look_up(query, now_s)
            self._count("semantic", query, found.outcome)
        return found, "similar"

    def _count(self, cache: str, query: Query, outcome: str) -> None:
        self.outcomes[cache, query.answer_class, outcome] += 1

    def _turns(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The chat, with the evidence of its last message, if that is a user's, as a turn apart."""
        if not messages or messages[-1].role != "user":
            return messages
        *earlier, last = messages
        evidence, question = self._split(last.content)
        return (*earlier, Message("evidence", evidence), replace(last, content=question))

    def _query(self, request: Request, wording: Wording) -> Query | None:
        """The request as caches see it; None for what is not to be cached."""
        sampling = request.sampling
        if sampling.temperature > 0 or sampling.n > 1 or sampling.logprobs is not None:
            return None
        stated = {"seed": None, "response_format": wording.response_format}  # greedy: no seed
        decoding = Decoding(**asdict(sampling) | stated)
        tokens = Message("prompt", " ".join(map(str, request.prompt_token_ids)))
        apart = (Message("partition", wording.partition),) if wording.partition else ()
        policy = self.cache.policies[wording.answer_class]
        query = Query(
            identity=request.identity,
            scope=policy.scope,
            answer_class=wording.answer_class,
            messages=apart + (self._turns(wording.messages) or (tokens,)),
            model=replace(self.model, adapter=request.adapter or None),
            decoding=decoding,
        )
        return query if policy.allows(query) else None

    def _lead(self, asked: _Asked) -> None:
        asked.is_leading = True
        asked.began_s, asked.since = self.now_s(), self.cache.num_events()
        request, listener = asked.request, partial(self._hear, asked)
        try:
            self.service.submit(request, listener, asked.quota, asked.wording)
        except Exception as error:  # nobody is to wait for what has not begun
            log.exception("request %s could not be submitted", request.id)
            listener(Ended(0, FinishReason.ERROR, f"{type(error).__name__}: {error}"))

    def _hear(self, asked: _Asked, output: Output) -> None:
        """The leader's outputs go on as they come, and are kept for those who wait."""
        match output:
            case Started(route=route):
                asked.whole.route = route
                output = replace(output, cache="miss")
            case Piece():
                asked.whole.text += output.text
                asked.whole.num_tokens += output.num_tokens
            case Refuse():
                self._leave(asked)
            case Ended(reason=reason, error=error):
                asked.whole.reason = reason.value
                if reason is FinishReason.CANCELLED:
                    self._leave(asked)
                elif reason is FinishReason.ERROR:
                    self._waiting.pop(asked.request.id, None)
                    asked.has_heard = True
                    self._flight.failed(asked.waiter, _Failed(error or "failed"))
                else:
                    self._done(asked)
        asked.listener(output)

    def _leave(self, asked: _Asked) -> None:
        self._waiting.pop(asked.request.id, None)
        self._flight.leave(asked.waiter)

    def _done(self, asked: _Asked) -> None:
        self._waiting.pop(asked.request.id, None)
        whole, now_s = asked.whole, self.now_s()
        answer = Answer(
            whole.text,
            whole.reason,
            tuple(Source(id) for id in asked.wording.sources),
            compute_s=now_s - asked.began_s,
            extra={"num_tokens": whole.num_tokens, "route": whole.route},
        )
        if self.cache.put(asked.query, answer, now_s, asked.since) and self.semantic is not None:
            self.semantic.put(asked.query, asked.wording.sources)
        asked.has_heard = True
        self._flight.done(asked.waiter, whole)

    def _followed(self, asked: _Asked, whole: _Whole) -> None:
        if not asked.has_heard:
            self._waiting.pop(asked.request.id, None)
            self._count("flight", asked.query, "shared")
            _tell(asked.listener, whole, "shared")

    def _failed(self, asked: _Asked, error: BaseException) -> None:
        if not asked.has_heard:
            self._waiting.pop(asked.request.id, None)
            asked.listener(Ended(0, FinishReason.ERROR, getattr(error, "why", str(error))))


class _Failed(Exception):
    """The leader's end. `why` is kept as it is: it may have a name and a status."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(slots=True)
class _Whole:
    """A whole answer, as its listeners are to hear it."""

    text: str = ""
    num_tokens: int = 0
    reason: str = FinishReason.STOP.value
    route: str = ""


@dataclass(eq=False, slots=True)
class _Asked:
    """A request in flight, led or followed. `has_heard`: the leader has its answer already."""

    request: Request
    query: Query
    listener: Listener
    quota: Quota
    wording: Wording
    whole: _Whole = field(default_factory=_Whole)
    waiter: Waiter[_Whole] = field(init=False)
    is_leading: bool = False
    has_heard: bool = False
    began_s: float = 0.0
    since: int = 0


def _tell(listener: Listener, whole: _Whole, cache: str) -> None:
    listener(Started(0, cache, whole.route))
    listener(Piece(0, whole.text, whole.num_tokens))
    listener(Ended(0, FinishReason(whole.reason)))
