"""`minserve serve --parts`: a learner's checked parts, put into a server one after another.

    parts = ServingParts()
    parts.num_blocks(config, memory_bytes, ...)      kv_bytes_per_token
    parts.engine(executor, limits, ...)              all of ENGINE_PARTS
    parts.salts(scope)                               cache_salt
    parts.exact_cache(store, policies)               response_cache, cache_key
    parts.semantic_cache(semantic)                   semantic_gate
    parts.service(service)                           admission, overload_ladder
    parts.store(store, url, is_open)                 job_lease
    parts.attach(app, server)                        GET /v1/parts

Each call puts in what is the learner's, and leaves the reference where nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest

from minserve.errors import ConfigError
from minserve.events import Event
from minserve.kv.estimate import DTYPE_BYTES, KVShape
from minserve.learn.parts_of_load import install_admission, install_overload_ladder
from minserve.learn.parts_of_reuse import KeyPart, LearnedCache, TaggedCache, gate_part
from minserve.learn.prefix import SaltsPart
from minserve.learn.serving import parts_of_server as put
from minserve.learn.serving.engine import EngineWithParts, Settings
from minserve.learn.serving.guard import LIMIT_S, Guard, PartFailed, Reason
from minserve.learn.serving.shelf import Shelf
from minserve.request import FinishReason, Request
from minserve.reuse.key import CanonicalKey, Query
from minserve.reuse.response import ExactCache
from minserve.scheduling.admission import AdmissionPolicy, Refuse
from minserve.scheduling.overload import Ladder, LadderState, Rung, Signals
from minserve.scheduling.quota import NO_QUOTA, Quota
from minserve.service import Ended, Listener, Output
from minserve.serving.errors import ApiError
from minserve.serving.identity import Principal, Salts, Scope

if TYPE_CHECKING:
    from minserve.clock import Clock
    from minserve.jobs.store import JobStore
    from minserve.reuse.policy import PolicyTable
    from minserve.reuse.semantic import SemanticCache
    from minserve.reuse.stores import Store
    from minserve.serving.server import Server

SERVING = (
    "kv_bytes_per_token",
    *put.ENGINE_PARTS,
    *("cache_salt", "cache_key", "response_cache", "semantic_gate"),
    *("admission", "overload_ladder", "job_lease", "request_measures"),
)
"""Parts that a server can run. The others measure from outside, or are on paper."""


class ServingParts:
    """What `minserve serve --parts` runs. `policy` chooses among the learner's batching policies.

    Raises `ConfigError` for a policy that is none.
    """

    def __init__(self, policy: str | None = None, limit_s: float = LIMIT_S) -> None:
        self.shelf = Shelf(SERVING, Guard(limit_s))
        self._salts: ServedSalts | None = None
        name = f"{policy}_batching" if policy else put.newest_policy(self.shelf)
        self.policy_part = name or "continuous_batching"
        if self.policy_part not in put.POLICIES:
            raise ConfigError(f"policy {policy!r}", "use static, dynamic or continuous")
        for other in set(put.POLICIES) - {self.policy_part}:
            del self.shelf.books[other]

    @property
    def summary(self) -> str:
        """How many of the parts are the learner's."""
        books = self.shelf.books.values()
        return f"{sum(book.is_mine for book in books)} of {len(books)} yours, see `minserve parts`"

    def num_blocks(self, config: Any, memory_bytes: int, block_size: int, dtype: str) -> int | None:
        """Blocks of the KV cache by `kv_bytes_per_token`; None if that is not the learner's, and
        in int8, of whose scales it knows nothing.
        """
        shelf, name = self.shelf, "kv_bytes_per_token"
        if not shelf.is_mine(name) or dtype == "int8":
            return None
        shape = KVShape(config.num_hidden_layers, config.num_kv_heads, config.head_dim)
        taken, target = shape.bytes_per_token(dtype), shelf.books[name].target
        try:
            said = shelf.guard.call(name, target, config, DTYPE_BYTES[dtype])
            if said != taken:
                raise shelf.guard.failed(name, f"it says {said!r:.40} bytes, {taken} are taken")
        except PartFailed:
            return None
        shelf.at_start.append(name)
        return memory_bytes // (block_size * said) or None

    def engine(
        self,
        executor: Any,
        limits: Any,
        policy: Callable[[], Any],
        ordering: Callable[[], Any],
        clock: Clock,
    ) -> EngineWithParts:
        """The engine, with `policy` and `ordering` where the learner has none.

        `limits` has `max_running`, `token_budget` and `prefix_caching`, as `minserve serve` does.
        """
        settings = Settings(
            policy,
            ordering,
            self.policy_part,
            limits.max_running,
            limits.token_budget,
            limits.prefix_caching,
        )
        engine = EngineWithParts(executor, self.shelf, settings, clock)
        engine.log.listen(self._hear)
        return engine

    def salts(self, scope: Scope) -> Salts:
        """The server's salts."""
        self._salts = ServedSalts(self.shelf, scope)
        return self._salts

    def service(self, service: Any) -> Any:
        """`service`, with the learner's admission; each request's way is written down from here."""
        admission, shelf = service.admission, self.shelf
        shelf.undo["admission"] = lambda: setattr(admission, "policy", AdmissionPolicy())
        shelf.undo["overload_ladder"] = lambda: setattr(admission, "ladder", Ladder())
        with suppress(PartFailed):  # one that cannot even be made is off the shelf now
            if shelf.is_mine("admission"):
                install_admission(admission, lambda: ServedAdmission(shelf))
        with suppress(PartFailed):
            if shelf.is_mine("overload_ladder"):
                install_overload_ladder(admission, lambda: ServedLadder(shelf))
        submit = service.submit

        def watched(
            request: Request, listener: Listener, quota: Quota = NO_QUOTA, *more: Any
        ) -> None:
            ledger = shelf.ledger
            passage = ledger.find(request.id) or ledger.begin(request.id, request.arrival_s)

            def heard(output: Output) -> None:
                if isinstance(output, Refuse):
                    passage.state = output.code
                elif isinstance(output, Ended):  # perhaps by a cache, which the engine's log lacks
                    passage.state = output.reason.value
                listener(output)

            if self._salts and request.cache_salt in self._salts.shared:
                ledger.note("cache_salt", request.id)
            try:
                with ledger.during(request.id):
                    submit(request, heard, quota, *more)
            except PartFailed as failure:
                for index in range(request.sampling.n):
                    heard(Ended(index, FinishReason.ERROR, str(failure)))

        service.submit = watched
        return service

    # -- response caches

    def cache_settings(self, settings: Any) -> Any:
        """`settings`, with the response caches switched on for which there is a learner's part."""
        mine = self.shelf.is_mine
        has_gate = mine("semantic_gate")
        has_cache = has_gate or mine("cache_key") or mine("response_cache")
        if has_cache and settings.response_cache == "off":
            settings = replace(settings, response_cache="memory")
        if has_gate and settings.semantic_cache == "off":
            settings = replace(settings, semantic_cache="default")
        return settings

    def exact_cache(self, store: Store, policies: PolicyTable) -> ExactCache:
        """The learner's response cache and keys. A failure in them is a miss, never an error."""
        shelf, key = self.shelf, self._key
        if not shelf.is_mine("response_cache"):
            return ExactCache(store, policies, key_of=KeyPart(key))
        try:
            cache = LearnedCache(policies, lambda *told: shelf.make("response_cache", *told), key)
        except PartFailed:
            return ExactCache(store, policies, key_of=KeyPart(key))
        shelf.undo["response_cache"] = lambda: setattr(cache, "part", TaggedCache(policies, key))
        return cache

    def semantic_cache(self, semantic: SemanticCache) -> None:
        """Have the learner's gate decide in `semantic`, behind the intent's own threshold."""
        if self.shelf.is_mine("semantic_gate"):
            semantic._gate = gate_part(self.shelf.function("semantic_gate"))

    def _key(self, query: Query) -> str:
        shelf, name = self.shelf, "cache_key"
        if not shelf.is_mine(name):
            return CanonicalKey().of(query)
        key = shelf.function(name)(query)
        if not isinstance(key, str) or not key:
            raise shelf.guard.failed(name, f"{key!r:.40} is no key")
        return key

    # -- jobs

    def store(self, store: JobStore, url: str, is_open: bool) -> Any:
        """The store of durable jobs, whose leases the learner's part decides.

        A worker of the server's own works on them, if `is_open`: it has no key.
        """
        if not (is_open and self.shelf.is_mine("job_lease")):
            return store
        from minserve.learn.serving.jobs import ServedStore, start_worker

        served = ServedStore(store, self.shelf)
        start_worker(served, url)
        return served

    def attach(self, app: FastAPI, server: Server) -> None:
        """Add `GET /v1/parts`, for operators, to the application."""

        @app.get("/v1/parts")
        async def parts(request: HttpRequest) -> dict[str, Any]:
            if not request.scope["state"]["principal"].is_operator:
                raise ApiError(403, "parts are shown to keys with the role `operator`")
            return self.shelf.told()

        def stuck(part: str) -> None:
            hint = f"minserve parts use {part} reference"
            server.engine.failure = f"your part {part} does not come back; {hint}, and restart"
            server.engine.on_death(server.engine.failure)

        self.shelf.guard.on_stuck = stuck

    def _hear(self, event: Event) -> None:
        shelf, name = self.shelf, "request_measures"
        ended = shelf.ledger.hear(event)
        if ended is None or not shelf.is_mine(name):
            return
        try:
            with shelf.ledger.during(ended.id):
                measured = shelf.call(
                    name, shelf.books[name].target, ended.arrival_s, list(ended.chunks)
                )
            figures = asdict(measured)
            ended.measures = {key: figures[key] for key in ("ttft_s", "tpot_s", "e2e_s")}
        except PartFailed:
            pass  # the answer is out already
        except (TypeError, KeyError) as error:
            shelf.guard.failed(name, f"it gives no RequestMeasures: {error}")


class ServedSalts(SaltsPart):
    """A learner's salts, beside the server's own: no two that those keep apart may share one."""

    def __init__(self, shelf: Shelf, scope: Scope) -> None:
        super().__init__(shelf.books["cache_salt"].target, scope)
        self._shelf = shelf
        self.shared: dict[str, str] = {}

    def of(self, principal: Principal) -> str:
        """See `Salts.of`. Raises `ApiError`."""
        own, shelf, name = Salts.of(self, principal), self._shelf, "cache_salt"
        if not shelf.is_mine(name):
            return own
        try:
            salt = shelf.guard.call(name, super().of, principal)
            if not isinstance(salt, str) or not salt:
                raise shelf.guard.failed(name, f"{salt!r:.40} is no salt")
            if self.shared.setdefault(salt, own) != own:
                raise shelf.guard.failed(name, "two who may not share have the same salt")
        except PartFailed as failure:
            raise ApiError(500, f"the request failed: {failure}", code=Reason.code) from None
        return salt


class ServedAdmission:
    """A learner's admission, each answer looked at."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf, self._made = shelf, shelf.make("admission")

    def __getattr__(self, question: str) -> Any:
        ask = getattr(self._made, question)

        def asked(*told: Any) -> Refuse | None:
            answer = ask(*told)
            wait_s = getattr(answer, "retry_after_s", None)
            is_refusal = isinstance(answer, Refuse) and (wait_s is None or 0 <= wait_s < 1e9)
            if answer is None or is_refusal:
                return answer
            raise self._shelf.guard.failed("admission", f"{question} answers {answer!r:.60}")

        return asked


class ServedLadder:
    """A learner's ladder. Its failure is no single request's, so the reference just goes on."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf, self._made = shelf, shelf.make("overload_ladder")

    def next(self, state: LadderState, signals: Signals, now_s: float) -> LadderState:
        """See `Ladder.next`."""
        try:
            answer = self._made.next(state, signals, now_s)
            try:
                return LadderState(Rung(answer.rung), answer.calm_since_s)
            except (AttributeError, ValueError, TypeError) as error:
                raise self._shelf.guard.failed("overload_ladder", f"{answer!r:.60}") from error
        except PartFailed:
            return Ladder().next(state, signals, now_s)
