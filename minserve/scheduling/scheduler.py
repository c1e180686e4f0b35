"""The mechanism: carries out a policy's decisions and keeps the invariants.

- Every block is free, used or cached; a request's blocks are released exactly once.
- A request has exactly one terminal event, and no token follows it.
- A step runs whole: from `plan` to `commit` its blocks stay put, even if a request is cancelled.
- A block is registered for reuse only after a step has computed it.
- A request for several choices is the first of them; the others split off when its prompt is
  computed, and each choice has its own terminal event, also if that is never reached.

Who holds which block is the affair of `minserve.kv.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, takewhile

from minserve.errors import (
    ConfigError,
    ExecutorFailed,
    InvalidRequest,
    OutOfBlocks,
    RequestTooLarge,
)
from minserve.events import Admitted, EventLog, Finished, Preempted, Submitted, TokensProduced
from minserve.execution.executor import Row, Speculator, StepPlan, StepResult
from minserve.kv.blocks import BlockCopy, BlockPool
from minserve.kv.prefix import PrefixCache
from minserve.kv.tables import BlockTables
from minserve.request import MAX_CHOICES, FinishReason, Request, Status
from minserve.scheduling.batching import BatchingPolicy, Decision, Snapshot
from minserve.scheduling.checks import check_decision
from minserve.scheduling.compatibility import anyone
from minserve.scheduling.ordering import FirstComeFirstServed, Ordering
from minserve.scheduling.queue import Queue

MAX_VAIN_WAKES = 1_000


class Scheduler:
    """Owns every unfinished request and all blocks of `pool`.

    `submit`, `cancel`, `plan` and `commit` are called from one thread; `plan` and `commit`
    alternate. `lookahead` is how many waiting requests a policy sees, or its `batch_size` if more.
    `speculator` guesses tokens that a step computes beside the next; without one, none are.
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
        speculator: Speculator | None = None,
    ) -> None:
        self.pool = pool
        self.policy = policy
        self.tables = BlockTables(pool, prefix_cache)
        self.ordering = ordering or FirstComeFirstServed()
        self.compatible = compatible
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.log = log or EventLog(keep=False)
        self.speculator = speculator
        self.lookahead = max(lookahead, getattr(policy, "batch_size", 0))
        self.waiting = Queue(self.ordering)
        self.running: list[Request] = []
        self.wake_at_s: float | None = None
        self._requests: dict[str, Request] = {}
        self._in_flight: dict[str, Request] = {}
        self._step = 0
        self._num_submitted = 0
        self._num_vain_wakes = 0
        self._has_joined = False
        self._shown: list[Request] = []

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
        if "#" in request.id:
            raise InvalidRequest(f"request id {request.id!r} has a #", "leave that to choices")
        if self._choices(request.id) or request.status is not Status.WAITING:
            raise InvalidRequest(f"request {request.id!r} was submitted before", "use a new id")
        self.ordering.arrived(request, chain(self.waiting.heads(), self.running))
        self._num_submitted += 1
        self._num_vain_wakes = 0
        request.number, request.last_step = self._num_submitted, self._step
        self.waiting.append(request)
        self._requests[request.id] = request
        kind = request.workload_class.value
        self.log.add(Submitted(now_s, request.id, request.num_prompt_tokens, kind))

    def cancel(self, request_id: str, now_s: float) -> bool:
        """End a request with all its choices, or one choice (`id#1`), now and at whatever stage;
        False if it is unknown or has ended already.

        Its blocks go back at once, or, if a step in flight is using them, when that is committed.
        """
        choices = self._choices(request_id)
        for request in choices:
            if request.id in self._requests:  # a listener may have cancelled it
                self._finish(request, FinishReason.CANCELLED, now_s)
        return bool(choices)

    def plan(self, now_s: float) -> StepPlan | None:
        """What to compute next; None if there is nothing to do before `wake_at_s`."""
        if self._in_flight:
            raise ConfigError("a step is in flight", "commit it before planning the next")
        self.waiting.now_s = now_s
        if self._has_joined or not self.ordering.is_fixed:
            self.running.sort(key=self.waiting.key)
        self._has_joined = False
        if self.wake_at_s is not None and now_s >= self.wake_at_s:
            self._num_vain_wakes += 1
        self.wake_at_s = None
        num_before = len(self._requests)
        may_admit = True
        for running, waiting in self._groups():
            self._shown = self.ordering.shown(waiting, self.lookahead) if may_admit else []
            snapshot = self._snapshot(running, self._shown, now_s)
            decision = self.policy.decide(snapshot)
            check_decision(decision, snapshot)
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
            row.sample <= len(token_ids) <= row.sample * (row.num_draft_tokens + 1)
            or index in result.errors
            for index, (row, token_ids) in enumerate(zip(plan.rows, result.token_ids, strict=True))
        )
        if not is_answer:
            raise ExecutorFailed(
                f"step {plan.step} of {len(plan.rows)} rows was answered by {result.token_ids}",
                "return a tuple for each row: if it samples, a token and those of right guesses",
            )
        for index, row in enumerate(plan.rows):
            request = self._in_flight.pop(row.request_id)
            if request.status is Status.FINISHED:  # cancelled in flight
                self.tables.release(request)
            elif index in result.errors:
                self._finish(request, FinishReason.ERROR, now_s, result.errors[index])
            else:
                logprobs = result.logprobs.get(index, ())
                self._advance(request, row, result.token_ids[index], logprobs, now_s, is_stopped)

    def fail_all(self, why: str, now_s: float) -> None:
        """End everything with an error, in flight or not, and trust no cached block any more."""
        for request in list(self._requests.values()):
            if request.id in self._requests:  # a listener may have cancelled it
                self._finish(request, FinishReason.ERROR, now_s, why)
        for request in self._in_flight.values():
            self.tables.release(request)
        self._in_flight.clear()
        if self.tables.prefix_cache:
            self.tables.prefix_cache.clear()

    def check_integrity(self) -> None:
        """Walk all state; raises `BlockError` on the first contradiction."""
        owners = {id(request): request for request in (*self.running, *self._in_flight.values())}
        self.pool.check_integrity(request.block_table for request in owners.values())
        if self.tables.prefix_cache:
            self.tables.prefix_cache.check_integrity()

    def _choices(self, request_id: str) -> list[Request]:
        """What is unfinished of a request and the choices that split off it."""
        ids = [request_id, *(f"{request_id}#{index}" for index in range(1, MAX_CHOICES))]
        return [self._requests[each] for each in ids if each in self._requests]

    # -- planning

    def _groups(self) -> Iterator[tuple[list[Request], Queue]]:
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
            yield running, Queue(self.ordering, waiting, self.waiting.now_s)
            left = [r for r in left if r is not anchor and not self.compatible(anchor, r)]

    def _snapshot(self, running: list[Request], waiting: list[Request], now_s: float) -> Snapshot:
        return Snapshot(
            now_s,
            tuple(running),
            tuple(waiting),
            self.pool.num_available,
            self.tables.num_to_compute,
            self.tables.num_new_blocks,
        )

    def _carry_out(self, decision: Decision, now_s: float) -> tuple[list[Row], list[BlockCopy]]:
        planned, copies = [], []
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
                    copies += self.tables.extend(request, held, num_tokens)
                except OutOfBlocks as error:
                    has_preempted = True
                    self._make_room(request, victims, now_s, error)
                else:
                    self._in_flight[request.id] = request
                    planned.append((request, num_tokens))
                    break
        drafts = self._drafts(planned, copies)
        rows = [self._row(request, count, drafts.get(request.id, ())) for request, count in planned]
        return rows, copies

    def _drafts(
        self, planned: list[tuple[Request, int]], copies: list[BlockCopy]
    ) -> dict[str, tuple[int, ...]]:
        """Guesses for those who decode, as far as blocks are left over: nobody goes for them."""
        if not self.speculator:
            return {}
        decoding = [request for request, _ in planned if not request.is_prefill]
        guesses = self.speculator.propose(decoding, sum(count for _, count in planned))
        drafts = {}
        for request, guess in zip(decoding, guesses, strict=True):
            room = request.sampling.max_tokens - request.num_output_tokens - 1
            draft = tuple(guess[:room])
            try:
                copies += self.tables.extend(request, request.num_tokens, len(draft))
            except OutOfBlocks:
                continue
            drafts[request.id] = draft
        return drafts

    def _admit(self, request: Request, now_s: float) -> bool:
        """Give a waiting request blocks for all its tokens; False if too few can be had."""
        if not self.tables.admit(request):
            return False
        self.waiting.remove(request)
        for passed in takewhile(lambda other: other is not request, self._shown):
            passed.num_bypasses += passed.status is Status.WAITING
        self.running.append(request)
        self._has_joined = True
        request.status, request.num_bypasses = Status.RUNNING, 0
        if request.timeline.scheduled_s is None:
            request.timeline.scheduled_s = now_s
        self.log.add(Admitted(now_s, request.id, request.num_cached_tokens))
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
        self.tables.release(request)
        request.status, request.num_computed_tokens = Status.WAITING, 0
        request.num_preemptions += 1
        self.waiting.append(request)
        self.log.add(Preempted(now_s, request.id))

    def _row(self, request: Request, num_tokens: int, draft: tuple[int, ...]) -> Row:
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        request.last_step = self._step + 1
        sample = end == request.num_tokens
        has_history = sample and request.sampling.has_penalties
        return Row(
            request.id,
            (*request.tokens(start, end), *draft),
            start,
            tuple(request.block_table),
            sample,
            request.num_output_tokens,
            request.sampling,
            request.adapter,
            len(draft),
            request.tokens(0, end) if has_history else (),
        )

    # -- committing

    def _advance(
        self,
        request: Request,
        row: Row,
        token_ids: tuple[int, ...],
        logprobs: tuple,
        now_s: float,
        is_stopped: Callable[[Request], bool],
    ) -> None:
        num_taken, reason = 0, None
        while num_taken < len(token_ids) and reason is None:
            token_id = token_ids[num_taken]
            num_taken += 1
            request.output_token_ids.append(token_id)
            request.timeline.token_times_s.append(now_s)
            reason = self._reason_to_finish(request, token_id, is_stopped)
        num_right = max(0, num_taken - 1)
        request.num_computed_tokens += len(row.token_ids) - row.num_draft_tokens + num_right
        self.tables.settle(request, row.start)
        num_prefilled = min(row.num_context_tokens, request.num_prompt_tokens) - row.start
        self.ordering.served(request, max(0, num_prefilled), num_taken)
        if self.speculator and row.num_draft_tokens:
            self.speculator.verified(request, row.num_draft_tokens, len(token_ids) - 1)
        if token_ids:
            tokens, logprobs = token_ids[:num_taken], logprobs[:num_taken]
            self.log.add(TokensProduced(now_s, request.id, tokens, logprobs, row.num_draft_tokens))
            self._fork(request, now_s)
        if reason and request.status is Status.RUNNING:  # a listener may have cancelled it
            self._finish(request, reason, now_s)

    def _fork(self, request: Request, now_s: float) -> None:
        """Split off the choices that a request, whose prompt is computed now, still has to come."""
        while request.num_forks_to_come and request.status is Status.RUNNING:
            choice = request.fork(now_s)
            self.tables.fork(request, choice)
            self.running.append(choice)
            self._has_joined = True
            self._requests[choice.id] = choice
            self.log.add(Admitted(now_s, choice.id, choice.num_cached_tokens))

    def _reason_to_finish(
        self, request: Request, token_id: int, is_stopped: Callable[[Request], bool]
    ) -> FinishReason | None:
        sampling = request.sampling
        is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
        is_end = is_eos or token_id in sampling.stop_token_ids
        if (is_end and request.num_output_tokens > sampling.min_tokens) or is_stopped(request):
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
            self.tables.release(request)
        if self.speculator:
            self.speculator.forget(request)
        unborn = request.choice_ids[request.sampling.n - request.num_forks_to_come :]
        request.num_forks_to_come = 0
        self.log.add(Finished(now_s, request.id, reason.value, request.num_output_tokens, error))
        for choice_id in unborn:
            self.log.add(Finished(now_s, choice_id, reason.value, 0, error))
