"""The engine: submit, step, cancel. It ties scheduling to execution and knows neither's inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minserve.errors import ConfigError, ExecutorFailed
from minserve.events import EventLog, StepEnded, StepStarted
from minserve.execution.executor import Executor, Handle, Speculator
from minserve.kv.blocks import BlockPool
from minserve.kv.prefix import PrefixCache
from minserve.request import Request
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching
from minserve.scheduling.compatibility import anyone
from minserve.scheduling.ordering import Ordering
from minserve.scheduling.scheduler import Scheduler


class Engine:
    """Serves requests on one executor, a step at a time. Not thread-safe: one thread owns it.

    Time comes in as `now_s` and is never read. What happens is told to `log`. `pool` replaces the
    engine's own block pool, for instance by the learner's; such a pool needs no prefix cache.
    `is_stopped(request)` is an extra stop rule, asked after each output token. `speculator`
    proposes tokens for a step to check, see `minserve.execution.speculative`.
    """

    def __init__(
        self,
        executor: Executor,
        policy: BatchingPolicy | None = None,
        *,
        prefix_caching: bool = True,
        ordering: Ordering | None = None,
        compatible: Callable[[Request, Request], bool] = anyone,
        log: EventLog | None = None,
        pool: BlockPool | None = None,
        speculator: Speculator | None = None,
        is_stopped: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self.executor = executor
        self.log = log or EventLog()
        self.pool = pool or BlockPool(executor.num_blocks, executor.block_size)
        self.prefix_cache = (
            PrefixCache(self.pool, executor.cache_namespace) if prefix_caching else None
        )
        self.scheduler = Scheduler(
            self.pool,
            policy or ContinuousBatching(),
            prefix_cache=self.prefix_cache,
            ordering=ordering,
            compatible=compatible,
            max_model_len=executor.max_model_len,
            eos_token_ids=executor.eos_token_ids,
            log=self.log,
            speculator=speculator,
        )
        self.is_stopped = is_stopped
        self._handle: Handle | None = None

    @property
    def has_unfinished(self) -> bool:
        """Requests are unfinished, or a step is still to be collected."""
        return self.scheduler.num_unfinished > 0 or self._handle is not None

    @property
    def wake_at_s(self) -> float | None:
        """When to try again, if `begin_step` had nothing to do because the policy waits."""
        return self.scheduler.wake_at_s

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request. Raises `RequestTooLarge` or `InvalidRequest`, and then keeps nothing."""
        self.scheduler.submit(request, now_s)

    def cancel(self, request_id: str, now_s: float) -> bool:
        """End a request, with all its choices, at whatever stage; False if unknown or over."""
        return self.scheduler.cancel(request_id, now_s)

    def begin_step(self, now_s: float) -> Handle | None:
        """Plan and launch a step; None if there is nothing to run now.

        Raises `ConfigError` if the policy decides nonsense, and then nothing has changed. Raises
        `ExecutorFailed` if the executor does, and then every request has ended with an error.
        """
        plan = self.scheduler.plan(now_s)
        if plan is None:
            return None
        rows = tuple((r.request_id, len(r.token_ids), r.num_context_tokens) for r in plan.rows)
        pool, num_waiting = self.pool, len(self.scheduler.waiting)
        counts = pool.num_free, pool.num_used, pool.num_cached
        with self._or_fail_all(now_s):
            self.log.add(StepStarted(now_s, plan.step, rows, num_waiting, *counts))
            self._handle = _computed(self.executor.launch, plan, now_s)
        return self._handle

    def finish_step(self, now_s: float) -> None:
        """Collect the step in flight and take in its tokens. Raises as `begin_step` does."""
        if self._handle is None:
            raise ConfigError("no step is in flight", "begin one before finishing it")
        handle, self._handle = self._handle, None
        with self._or_fail_all(now_s):
            result = _computed(self.executor.collect, handle)
            self.scheduler.commit(handle.plan, result, now_s, self.is_stopped)
        self.log.add(StepEnded(now_s, handle.plan.step))

    def fail_all(self, why: str, now_s: float) -> None:
        """End every request with an error, for whoever cannot go on."""
        self._handle = None
        self.scheduler.fail_all(why, now_s)

    def step(self, now_s: float) -> bool:
        """Run one whole step, for whoever needs no time in between; False if there was none."""
        if self.begin_step(now_s) is None:
            return False
        self.finish_step(now_s)
        return True

    def check_integrity(self) -> None:
        """Raises `BlockError` if any block, table or cache entry contradicts another."""
        self.scheduler.check_integrity()

    @contextmanager
    def _or_fail_all(self, now_s: float) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.fail_all(str(error), now_s)
            raise


def _computed(call: Callable, *args):
    try:
        return call(*args)
    except Exception as error:
        reason = f"the executor failed: {type(error).__name__}: {error}"
        raise ExecutorFailed(reason, "start another executor") from error
