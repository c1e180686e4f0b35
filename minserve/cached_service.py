"""A service that answers again what it has answered: identity -> cache -> admission -> engine.

Of several who ask the same at once, one is served by the engine and the others get its answer; if
that one is cancelled or refused, the next is served. Whatever is not surely the same goes through.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from minserve.request import FinishReason, Request
from minserve.reuse.flight import SingleFlight, Waiter
from minserve.reuse.invalidation import CacheEvent
from minserve.reuse.key import CanonicalKey, Decoding, Message, ModelTuple, Query, partition_of
from minserve.reuse.response import Answer, ExactCache
from minserve.scheduling.admission import NO_QUOTA, Quota, Refuse
from minserve.service import Ended, Listener, Output, Piece, Service, Started

log = logging.getLogger("minserve.cache")


class CachedService:
    """A `Service` with an `ExactCache` before it. Belongs to the engine's thread, as it does.

    Args:
        service: Serves what the cache does not.
        cache: Its policy for `answer_class` says who shares answers, and for how long.
        model: What answers, as the key is to have it.
        answer_class: Of every request; over HTTP nothing else is known.
        now_s: The cache's clock. One for all who share a store: by default Unix time.
    """

    def __init__(
        self,
        service: Service,
        cache: ExactCache,
        model: ModelTuple,
        answer_class: str = "default",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.service, self.cache, self.model = service, cache, model
        self.answer_class, self.now_s = answer_class, now_s
        self.client, self.admission = service.client, service.admission
        self._flight: SingleFlight[_Whole] = SingleFlight()
        self._waiting: dict[str, _Asked] = {}

    def submit(self, request: Request, listener: Listener, quota: Quota = NO_QUOTA) -> None:
        """As `Service.submit`. An answer from the cache takes nothing of a quota."""
        query = self._query(request)
        if query is None:
            return self.service.submit(request, listener, quota)
        found = self.cache.look_up(query, self.now_s())
        if found.answer is not None:
            return _tell(listener, _Whole(found.answer.text, **found.answer.extra), "hit")
        try:
            key = partition_of(query), CanonicalKey().of(query)
        except Exception:  # a request without a key is nobody else's
            return self.service.submit(request, listener, quota)
        asked = _Asked(request, query, listener, quota)
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
        return self.cache.invalidate(event, self.now_s())

    def _query(self, request: Request) -> Query | None:
        """The request as caches see it; None for what is not to be cached."""
        sampling = request.sampling
        if sampling.temperature > 0 or sampling.n > 1 or sampling.logprobs is not None:
            return None
        decoding = Decoding(**asdict(sampling) | {"seed": None})  # greedy: the seed has no part
        query = Query(
            identity=request.identity,
            scope=self.cache.policies[self.answer_class].scope,
            answer_class=self.answer_class,
            messages=(Message("prompt", " ".join(map(str, request.prompt_token_ids))),),
            model=replace(self.model, adapter=request.adapter or None),
            decoding=decoding,
        )
        return query if self.cache.policies[self.answer_class].allows(query) else None

    def _lead(self, asked: _Asked) -> None:
        asked.is_leading = True
        asked.began_s, asked.since = self.now_s(), self.cache.num_events()
        self.service.submit(asked.request, lambda output: self._hear(asked, output), asked.quota)

    def _hear(self, asked: _Asked, output: Output) -> None:
        """The leader's outputs go on as they come, and are kept for those who wait."""
        match output:
            case Started():
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
                    del self._waiting[asked.request.id]
                    asked.has_heard = True
                    self._flight.failed(asked.waiter, RuntimeError(error or "failed"))
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
            compute_s=now_s - asked.began_s,
            extra={"num_tokens": whole.num_tokens},
        )
        self.cache.put(asked.query, answer, now_s, asked.since)
        asked.has_heard = True
        self._flight.done(asked.waiter, whole)

    def _followed(self, asked: _Asked, whole: _Whole) -> None:
        if not asked.has_heard:
            self._waiting.pop(asked.request.id, None)
            _tell(asked.listener, whole, "shared")

    def _failed(self, asked: _Asked, error: BaseException) -> None:
        if not asked.has_heard:
            self._waiting.pop(asked.request.id, None)
            asked.listener(Ended(0, FinishReason.ERROR, str(error)))


@dataclass(slots=True)
class _Whole:
    """A whole answer, as its listeners are to hear it."""

    text: str = ""
    num_tokens: int = 0
    reason: str = FinishReason.STOP.value


@dataclass(eq=False, slots=True)
class _Asked:
    """A request in flight, led or followed. `has_heard`: the leader has its answer already."""

    request: Request
    query: Query
    listener: Listener
    quota: Quota
    whole: _Whole = field(default_factory=_Whole)
    waiter: Waiter | None = None
    is_leading: bool = False
    has_heard: bool = False
    began_s: float = 0.0
    since: int = 0


def _tell(listener: Listener, whole: _Whole, cache: str) -> None:
    listener(Started(0, cache=cache))
    listener(Piece(0, whole.text, whole.num_tokens))
    listener(Ended(0, FinishReason(whole.reason)))
