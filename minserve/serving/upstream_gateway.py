"""The course's server before an engine that somebody else wrote: vLLM, SGLang, another minserve.

    identity -> fields -> cache -> admission -> HTTP -> the engine's own scheduler

It is the ordinary `Server`: only what stands in the engine's place is another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from minserve.cached_service import CachedService
from minserve.client import LocalClient
from minserve.clock import EventLoop
from minserve.events import Admitted, Event, Finished, Submitted, TokensProduced
from minserve.output import Detokenizer
from minserve.request import Request
from minserve.scheduling.admission import Admission
from minserve.scheduling.rates import DecayingRatio, Rates
from minserve.service import Listener, Service
from minserve.serving.calls import Call, ServedModel
from minserve.serving.errors import ApiError
from minserve.serving.identity import KeyRing, Salts
from minserve.serving.server import Limits, Server
from minserve.serving.upstream_client import RETRY_S, Upstream, UpstreamClient

LOOK_EVERY_S = 1.0
"""How old the last answer to "are you well?" may be."""
WINDOW_S = 1.0
HALF_LIFE_S = 600.0


class UpstreamService(Service):
    """A `Service` whose engine sends text: stop strings and characters are its affair."""

    def __init__(self, client: UpstreamClient, admission: Admission | None = None) -> None:
        in_its_place = cast(LocalClient, client)
        super().__init__(in_its_place, lambda stop: Detokenizer(lambda ids: "", stop), admission)
        self._upstream = client

    def _send(self, request: Request, listener: Listener) -> None:
        self._upstream.send(request, listener)


class SeenRates(Rates):
    """How fast an engine is that shows no steps: from when its tokens come.

    `tokens_per_s` is the best second of late, where one of ten minutes ago counts half, and never
    less than what was given: an engine with little to do shows little of what it can. The rest are
    means over requests, as they fared.
    """

    def __init__(self, tokens_per_s: float) -> None:
        super().__init__(tokens_per_s)
        self._least = tokens_per_s
        self._best, self._window_s, self._in_window = 0.0, 0.0, 0
        self._prefill = DecayingRatio(super().prefill_tokens_per_s)
        self._gap_s = DecayingRatio(super().decode_step_s)
        self._waiting: dict[str, tuple[float, int]] = {}
        self._last_s: dict[str, float] = {}

    @property
    def tokens_per_s(self) -> float:
        return max(self._least, self._best)

    @property
    def prefill_tokens_per_s(self) -> float:
        return self._prefill.value

    @property
    def decode_step_s(self) -> float:
        return self._gap_s.value

    def note(self, event: Event) -> None:
        now_s = event.time_s
        match event:
            case Submitted(request_id=id, num_prompt_tokens=count):
                self._waiting[id] = now_s, count
            case Admitted(request_id=id) if id in self._waiting:
                sent_s, count = self._waiting.pop(id)
                self._prefill.add(count, max(1e-6, now_s - sent_s))
                self._count(count, now_s)
            case TokensProduced(request_id=id, token_ids=ids):
                if (last_s := self._last_s.get(id)) is not None:
                    self._gap_s.add(now_s - last_s, len(ids))
                self._last_s[id] = now_s
                self._count(len(ids), now_s)
            case Finished(request_id=id):
                self._waiting.pop(id, None)
                self._last_s.pop(id, None)

    def _count(self, num_tokens: int, now_s: float) -> None:
        past_s = now_s - self._window_s
        if past_s >= WINDOW_S:
            faded = self._best * 0.5 ** (past_s / HALF_LIFE_S)
            self._best = max(faded, self._in_window / past_s)
            self._window_s, self._in_window = now_s, 0
        self._in_window += num_tokens


class UpstreamGateway(Server):
    """Identity, fields, caches, admission, jobs and metrics for `upstream`.

    Args:
        model: What clients see. Its tokenizer and chat template are the gateway's own: the
            upstream is sent token ids.
        tokens_per_s: What the upstream computes at least, prompts and answers together, until more
            has been seen.
        with_cache: Puts a response cache before the service, if there is to be one.
    """

    def __init__(
        self,
        model: ServedModel,
        upstream: Upstream,
        keys: KeyRing | None = None,
        salts: Salts | None = None,
        limits: Limits | None = None,
        tokens_per_s: float = 1000.0,
        with_cache: Callable[[Service], CachedService] | None = None,
    ) -> None:
        self.upstream = upstream
        self.client: UpstreamClient
        self._was_alive, self._looked_s, self._looking = False, float("-inf"), asyncio.Lock()

        def make_service(loop: EventLoop) -> Service | CachedService:
            client = self.client = UpstreamClient(upstream, loop)
            admission = Admission(client.engine.log, rates=SeenRates(tokens_per_s))
            service = UpstreamService(client, admission)
            return with_cache(service) if with_cache else service

        super().__init__(model, make_service, keys, salts or Salts(), limits or Limits())

    def start(self) -> None:
        self.client.attach()
        super().start()

    async def check_alive(self) -> None:
        """Raises `ApiError` (503) also while the upstream does not answer."""
        await super().check_alive()
        now_s = asyncio.get_running_loop().time
        async with self._looking:  # however many ask, the upstream is asked once
            if now_s() - self._looked_s > LOOK_EVERY_S:
                self._was_alive = await self.client.is_alive()
                self._looked_s = now_s()
        if not self._was_alive:
            raise ApiError(
                503,
                "the engine behind this gateway does not answer",
                code="upstream_unavailable",
                retry_after_s=RETRY_S,
            )

    def _submit(self, call: Call, request: Request, listener: Listener) -> None:
        self.upstream.dialect.check(request)
        super()._submit(call, request, listener)
