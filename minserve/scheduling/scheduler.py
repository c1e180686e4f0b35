"""The mechanism: carries out a policy's decisions and keeps the invariants.

- Every block is free, used or cached; a request's blocks are released exactly once.
- A request has exactly one terminal event, and no token follows it.
- A step runs whole: from `plan` to `commit` its blocks stay put, even if a request is cancelled.
- A block is registered for reuse only after a step has computed it.

Block ownership, for a request with prompt `pppp pppp p` and output `oo` in blocks of four:

    block_table   [ b0        b1        b2       ]
    tokens          p p p p   p p p p   p o o _
                    '-- shared from the     '-- num_computed_tokens: written up to here
                        prefix cache            own blocks: only this request writes them
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from numbers import Integral

from minserve.errors import (
    ConfigError,
    ExecutorFailed,
    InvalidRequest,
    OutOfBlocks,
    RequestTooLarge,
)
from minserve.events import Admitted, EventLog, Finished, Preempted, Submitted, TokensProduced
from minserve.execution.executor import Row, StepPlan, StepResult
from minserve.kv.blocks import BlockCopy, BlockPool
from minserve.kv.prefix import PrefixCache
from minserve.request import FinishReason, Request, Status
from minserve.scheduling.batching import BatchingPolicy, Decision, Snapshot
from minserve.scheduling.compatibility import anyone
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering

MAX_VAIN_WAKES = 1_000


class Scheduler:
    """Owns every unfinished request and all blocks of `pool`.

    `submit`, `cancel`, `plan` and `commit` are called from one thread; `plan` and `commit`
    alternate. `lookahead` is how many waiting requests a policy sees, or its `batch_size` if more.
    """

    def __init__(
        self,
        pool: BlockPool,
        policy: BatchingPolicy,
        *,
        prefix_cache: PrefixCache | None = None,
        ordering: Ordering | None = None,
        compatible: Callable[[Request, Request], bool] = anyone,
        max_model_len: int = 1 << 30,
        eos_token_ids: frozenset[int] = frozenset(),
        log: EventLog | None = None,
        lookahead: int = 64,
    ) -> None:
        self.pool = pool
        self.policy = policy
        self.prefix_cache = prefix_cache
        self.ordering = ordering or FirstComeFirstServed()
        self.compatible = compatible
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.log = log or EventLog(keep=False)
        self.lookahead = max(lookahead, getattr(policy, "batch_size", 0))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.wake_at_s: float | None = None
        self._requests: dict[str, Request] = {}
        self._in_flight: dict[str, Request] = {}
        self._step = 0
        self._num_submitted = 0
        self._num_vain_wakes = 0

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    def submit(self, request: Request, now_s: float) -> None:
        """Queue `request`. Raises `RequestTooLarge` if it could not run even in an empty pool."""
        num_tokens, limit = request.max_total_tokens, self.max_model_len
        num_blocks = self.pool.blocks_for(num_tokens - 1)  # the last token is never computed
        if num_tokens > limit:
            raise RequestTooLarge(
                f"request {request.id!r} may reach {num_tokens} tokens, the context holds {limit}",
                "shorten the prompt or lower max_tokens",
            )
        if num_blocks > self.pool.num_blocks:
            raise RequestTooLarge(
                f"request {request.id!r} may need {num_blocks} KV blocks, "
                f"the pool has {self.pool.num_blocks}",
                "shorten the prompt, lower max_tokens, or give the pool more blocks",
            )
        if request.id in self._requests or request.status is not Status.WAITING:
            raise InvalidRequest(f"request {request.id!r} was submitted before", "use a new id")
        self.ordering.arrived(request, [*self.waiting, *self.running])
        self._num_submitted += 1
        self._num_vain_wakes = 0
        request.number, request.last_step = self._num_submitted, self._step
        self._enqueue(request, now_s)
        self._requests[request.id] = request
        kind = request.workload_class.value
        self.log.add(Submitted(now_s, request.id, request.num_prompt_tokens, kind))

    def cancel(self, request_id: str, now_s: float) -> bool:
        """End a request now, at whatever stage; False if it is unknown or has ended already.

        Its blocks go back at once, or, if a step in flight is using them, when that is committed.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish(request, FinishReason.CANCELLED, now_s)
        return True

    def plan(self, now_s: float) -> StepPlan | None:
        """What to compute next; None if there is nothing to do before `wake_at_s`."""
        if self._in_flight:
            raise ConfigError("a step is in flight", "commit it before planning the next")
        self._sort(now_s)
        if self.wake_at_s is not None and now_s >= self.wake_at_s:
            self._num_vain_wakes += 1
        self.wake_at_s = None
        num_before = len(self._requests)
        may_admit = True
        for running, waiting in self._groups():
            shown = self.ordering.shown(waiting, self.lookahead) if may_admit else []
            snapshot = self._snapshot(running, shown, now_s)
            decision = self.policy.decide(snapshot)
            self._check(decision, snapshot)
            try:
                rows, copies = self._carry_out(decision, now_s)
            except BaseException as error:
                self.fail_all(f"planning failed: {error}", now_s)
                raise
            if rows:
                self._step += 1
                self._num_vain_wakes = 0
                for request in () if self.compatible is anyone else (*running, *waiting):
                    request.last_step = self._step  # its group has had its turn
                return StepPlan(self._step, tuple(rows), tuple(copies))
            if decision.wake_at_s is None:
                may_admit = False  # NOTE: else other groups could keep it short of blocks for ever
            else:
                self.wake_at_s = min(decision.wake_at_s, self.wake_at_s or float("inf"))
        if len(self._requests) < num_before:  # somebody outgrew the pool: there is room now
            return self.plan(now_s)
        if self._requests and (self.wake_at_s is None or self._num_vain_wakes > MAX_VAIN_WAKES):
            waits = "gives no wake_at_s" if self.wake_at_s is None else "only ever waits"
            raise ConfigError(
                f"the policy runs none of {len(self._requests)} requests and {waits}",
                "run somebody who fits, or say when to ask again",
            )
        return None

    def commit(
        self,
        plan: StepPlan,
        result: StepResult,
        now_s: float,
        is_stopped: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        """Take in a step's result. `is_stopped(request)` adds a stop rule, such as stop strings.

        Raises `ExecutorFailed`, and takes in nothing, if the result does not answer the plan.
        """
        is_answer = len(result.token_ids) == len(plan.rows) and all(
            bool(token_ids) == row.sample or index in result.errors
            for index, (row, token_ids) in enumerate(zip(plan.rows, result.token_ids, strict=True))
        )
        if not is_answer:
            raise ExecutorFailed(
                f"step {plan.step} of {len(plan.rows)} rows was answered by {result.token_ids}",
                "return a tuple for each row: tokens if it samples, else empty",
            )
        for index, row in enumerate(plan.rows):
            request = self._in_flight.pop(row.request_id)
            if request.status is Status.FINISHED:  # cancelled in flight
                self.pool.release(request.block_table)
            elif index in result.errors:
                self._finish(request, FinishReason.ERROR, now_s, result.errors[index])
            else:
                self._advance(request, row, result.token_ids[index], now_s, is_stopped)

    def fail_all(self, why: str, now_s: float) -> None:
        """End everything with an error, in flight or not, and trust no cached block any more."""
        for request in list(self._requests.values()):
            if request.id in self._requests:  # a listener may have cancelled it
                self._finish(request, FinishReason.ERROR, now_s, why)
        for request in self._in_flight.values():
            self.pool.release(request.block_table)
        self._in_flight.clear()
        if self.prefix_cache:
            self.prefix_cache.clear()

    def check_integrity(self) -> None:
        """Walk all state; raises `BlockError` on the first contradiction."""
        owners = {id(request): request for request in (*self.running, *self._in_flight.values())}
        self.pool.check_integrity(request.block_table for request in owners.values())
        if self.prefix_cache:
            self.prefix_cache.check_integrity()

    # -- planning

    def _sort(self, now_s: float) -> None:
        def key(request: Request):
            return self._key(request, now_s)

        self.running.sort(key=key)
        if not self.ordering.is_fixed:
            self.waiting.sort(key=key)

    def _key(self, request: Request, now_s: float):
        return self.ordering.key(request, now_s), request.number

    def _groups(self) -> Iterator[tuple[list[Request], list[Request]]]:
        """Whom to plan for: those compatible with whoever has gone longest without a turn.

        If nobody of that group can run (its blocks are not free), the next group is tried, but
        admits nobody.
        """
        if self.compatible is anyone:
            if self._requests:
                yield self.running, self.waiting
            return
        left = [*self.running, *self.waiting]
        while left:
            anchor = min(left, key=lambda request: request.last_step)
            running, waiting = (
                [request for request in side if self.compatible(anchor, request)]
                for side in (self.running, self.waiting)
            )
            yield running, waiting
            left = [r for r in left if r is not anchor and not self.compatible(anchor, r)]

    def _snapshot(self, running: list[Request], waiting: list[Request], now_s: float) -> Snapshot:
        return Snapshot(
            now_s,
            tuple(running),
            tuple(waiting),
            self.pool.num_available,
            lambda request: request.num_tokens - self._num_computed_or_cached(request),
            self._num_new_blocks,
        )

    def _num_computed_or_cached(self, request: Request) -> int:
        if request.status is Status.RUNNING:
            return request.num_computed_tokens
        return len(self._match(request)) * self.pool.block_size

    def _num_new_blocks(self, request: Request) -> int:
        num_blocks = self.pool.blocks_for(request.num_tokens)
        if request.status is Status.RUNNING:
            return num_blocks - len(request.block_table)
        return num_blocks - sum(self.pool.references(b) > 0 for b in self._match(request))

    def _match(self, request: Request) -> list[int]:
        if self.prefix_cache is None:
            return []
        self._hash(request, request.num_tokens)
        tokens = request.tokens(0, request.num_tokens)
        return self.prefix_cache.match(tokens, request.block_hashes, self._root(request))

    def _hash(self, request: Request, num_tokens: int) -> None:
        hashes, size = request.block_hashes, self.pool.block_size
        start = len(hashes) * size
        if num_tokens - start >= size:
            parent = hashes[-1] if hashes else self._root(request)
            hashes += self.prefix_cache.hashes(request.tokens(start, num_tokens), parent)

    def _root(self, request: Request) -> bytes:
        return self.prefix_cache.root(request.cache_salt, request.adapter)

    def _check(self, decision: Decision, snapshot: Snapshot) -> None:
        """Raises `ConfigError` if the policy decided nonsense; nothing has been changed yet."""
        if not isinstance(decision, Decision):
            raise ConfigError(f"the policy decided {decision!r}", "return a Decision")
        shown = {id(request) for request in (*snapshot.running, *snapshot.waiting)}
        seen = set()
        for item in decision.run:
            try:
                request, num_tokens = item
            except (TypeError, ValueError):
                hint = "run (request, num_tokens) pairs"
                raise ConfigError(f"the policy runs {item!r}", hint) from None
            if id(request) not in shown or id(request) in seen:
                raise ConfigError(
                    f"the policy runs {getattr(request, 'id', request)!r}, which it was not shown "
                    "or has listed twice",
                    "run each request of the snapshot at most once",
                )
            if not isinstance(num_tokens, Integral) or num_tokens < 1:
                raise ConfigError(
                    f"the policy gives {request.id!r} {num_tokens!r} tokens", "give 1 or more"
                )
            seen.add(id(request))
        for victim in decision.victims:
            if id(victim) not in shown:
                raise ConfigError(
                    f"the policy preempts {getattr(victim, 'id', victim)!r}, which it was not shown"
                )
        wake_at_s, now_s = decision.wake_at_s, snapshot.now_s
        if wake_at_s is not None and not decision.run and not now_s < wake_at_s < float("inf"):
            raise ConfigError(
                f"the policy wants to be asked again at {wake_at_s} s, and it is {now_s} s",
                "give a time that is still to come",
            )

    def _carry_out(self, decision: Decision, now_s: float) -> tuple[list[Row], list[BlockCopy]]:
        rows, copies = [], []
        victims = list(decision.victims)
        has_preempted = False
        for request, num_tokens in decision.run:
            # NOTE: a victim of this step waits too; admitting anyone now would thrash.
            is_waiting = request.status is Status.WAITING
            if is_waiting and (has_preempted or not self._admit(request, now_s)):
                continue
            held = request.num_computed_tokens
            num_tokens = min(num_tokens, request.num_tokens - held)
            while request.status is Status.RUNNING:
                try:
                    copies += self.pool.append(request.block_table, held, num_tokens)
                except OutOfBlocks as error:
                    has_preempted = True
                    self._make_room(request, victims, now_s, error)
                else:
                    rows.append(self._row(request, num_tokens))
                    break
        return rows, copies

    def _admit(self, request: Request, now_s: float) -> bool:
        """Give a waiting request blocks for all its tokens, shared ones first; False if too few."""
        if self._num_new_blocks(request) > self.pool.num_available:
            return False
        table = request.block_table = self.pool.share(self._match(request))
        num_cached = len(table) * self.pool.block_size
        self.pool.append(table, num_cached, request.num_tokens - num_cached)
        if self.prefix_cache:
            self.prefix_cache.count(request.num_tokens, num_cached)
        position = self.waiting.index(request)
        for passed in self.waiting[:position]:
            passed.num_bypasses += 1
        del self.waiting[position]
        self.running.append(request)
        request.num_computed_tokens = request.num_cached_tokens = num_cached
        request.status, request.num_bypasses = Status.RUNNING, 0
        if request.timeline.scheduled_s is None:
            request.timeline.scheduled_s = now_s
        self.log.add(Admitted(now_s, request.id, num_cached))
        return True

    def _make_room(
        self, request: Request, victims: list[Request], now_s: float, error: OutOfBlocks
    ) -> None:
        """Preempt the next victim that is not in this step; if there is none, `request` itself."""
        while victims:
            victim = victims.pop(0)
            is_free_to_go = victim.status is Status.RUNNING and victim.id not in self._in_flight
            if is_free_to_go and victim is not request:
                return self._preempt(victim, now_s)
        if len(self.running) == 1:
            self._finish(request, FinishReason.ERROR, now_s, f"outgrew the pool: {error}")
        else:
            self._preempt(request, now_s)

    def _preempt(self, request: Request, now_s: float) -> None:
        self.running.remove(request)
        self.pool.release(request.block_table)
        request.status, request.num_computed_tokens = Status.WAITING, 0
        request.num_preemptions += 1
        self._enqueue(request, now_s)
        self.log.add(Preempted(now_s, request.id))

    def _row(self, request: Request, num_tokens: int) -> Row:
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        request.last_step = self._step + 1
        self._in_flight[request.id] = request
        return Row(
            request.id,
            request.tokens(start, end),
            start,
            tuple(request.block_table),
            end == request.num_tokens,
            request.num_output_tokens,
            request.sampling,
            request.adapter,
        )

    def _enqueue(self, request: Request, now_s: float) -> None:
        bisect.insort(self.waiting, request, key=lambda other: self._key(other, now_s))

    # -- committing

    def _advance(
        self,
        request: Request,
        row: Row,
        token_ids: tuple[int, ...],
        now_s: float,
        is_stopped: Callable[[Request], bool],
    ) -> None:
        request.num_computed_tokens += len(row.token_ids)
        self._register(request, row.start // self.pool.block_size)
        num_prefilled = min(row.num_context_tokens, request.num_prompt_tokens) - row.start
        self.ordering.served(request, max(0, num_prefilled), len(token_ids))
        for position, token_id in enumerate(token_ids, start=1):
            request.output_token_ids.append(token_id)
            request.timeline.token_times_s.append(now_s)
            reason = self._reason_to_finish(request, token_id, is_stopped)
            if reason or position == len(token_ids):
                self.log.add(TokensProduced(now_s, request.id, token_ids[:position]))
            if reason and request.status is Status.RUNNING:  # a listener may have cancelled it
                self._finish(request, reason, now_s)
            if request.status is Status.FINISHED:
                return

    def _register(self, request: Request, first: int) -> None:
        size = self.pool.block_size
        end = request.num_computed_tokens // size
        if self.prefix_cache is None or first == end:  # most decodes fill no block
            return
        self._hash(request, request.num_computed_tokens)
        root = self._root(request)
        for index in range(first, end):
            tokens = request.tokens(index * size, (index + 1) * size)
            self.prefix_cache.register(
                request.block_table, request.block_hashes, index, tokens, root
            )

    def _reason_to_finish(
        self, request: Request, token_id: int, is_stopped: Callable[[Request], bool]
    ) -> FinishReason | None:
        sampling = request.sampling
        is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
        if is_eos or token_id in sampling.stop_token_ids or is_stopped(request):
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_output_tokens >= sampling.max_tokens else None

    def _finish(
        self, request: Request, reason: FinishReason, now_s: float, error: str | None = None
    ) -> None:
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        del self._requests[request.id]
        request.status, request.finish_reason, request.error = Status.FINISHED, reason, error
        request.timeline.finished_s = now_s
        if request.id not in self._in_flight:
            self.pool.release(request.block_table)
        count = request.num_output_tokens
        self.log.add(Finished(now_s, request.id, reason.value, count, error))
