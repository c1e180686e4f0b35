"""An engine that runs a learner's parts, and outlives them.

It is built out of whatever the shelf holds. When a part fails, every request ends with an error
that names it, and the engine is built anew with the reference in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from minserve.clock import Clock
from minserve.engine import Engine
from minserve.errors import ExecutorFailed
from minserve.events import Event, EventLog, Finished, StepEnded, StepStarted
from minserve.execution.executor import StepPlan
from minserve.kv.blocks import BlockPool
from minserve.kv.tables import BlockTables
from minserve.learn import parts_of_engine
from minserve.learn.serving import parts_of_server as put
from minserve.learn.serving.guard import PartFailed
from minserve.learn.serving.loops import Loops
from minserve.learn.serving.shelf import Shelf
from minserve.request import Request, Status


@dataclass(frozen=True, slots=True)
class Settings:
    """What the reference would run, and the limits that a policy is given."""

    policy: Callable[[], Any]
    ordering: Callable[[], Any]
    policy_part: str
    max_running: int = 64
    token_budget: int = 512
    prefix_caching: bool = True


class EngineWithParts(Engine):
    """See `minserve.engine.Engine`. A whole step is run in `begin_step`, by `engine_step`."""

    def __init__(self, executor: Any, shelf: Shelf, settings: Settings, clock: Clock) -> None:
        self.executor, self.shelf, self.settings, self.clock = executor, shelf, settings, clock
        self.log = EventLog(keep=False)
        self.is_stopped: Callable[[Request], bool] = lambda request: False
        self._failure: PartFailed | None = None
        self.loops = Loops(shelf, self._running)
        self._attention = put.attention_of(executor)
        for name in put.ENGINE_PARTS:
            shelf.undo[name] = self._end_all
        self.log.listen(self._hear)
        self._build()

    def begin_step(self, now_s: float) -> Any:
        """Run a step; None if there was none, or a part failed and everybody has been told."""
        step = _Step(self)
        try:
            step.run(now_s)
        except ExecutorFailed:
            raise
        except PartFailed:
            pass  # told by `_end_all`, where it happened
        if self._failure is not None:
            self._build()
            return None
        return step.plan and SimpleNamespace(plan=step.plan, ready_at_s=None)

    def finish_step(self, now_s: float) -> None:
        """Nothing: the step has ended already."""

    def submit(self, request: Request, now_s: float) -> None:
        try:
            super().submit(request, now_s)
        finally:
            if self._failure is not None:
                self._build()

    def cancel(self, request_id: str, now_s: float) -> bool:
        was_there = super().cancel(request_id, now_s)
        if self._failure is not None:
            self._build()
        return was_there

    def _build(self) -> None:
        """Everything anew, out of what is on the shelf now. A part may fail at that, too."""
        while True:
            self._failure = None
            try:
                return self._assemble()
            except PartFailed:
                continue  # it is off the shelf now, so this ends

    def _assemble(self) -> None:
        shelf, settings, is_stopped = self.shelf, self.settings, self.is_stopped
        size = self.executor.block_size
        put.decode_loop(shelf, self.executor, self.loops)
        put.paged_attention(shelf, self.executor, self._attention)
        super().__init__(
            self.executor,
            put.policy(shelf, settings, size),
            prefix_caching=settings.prefix_caching,
            ordering=put.ordering(shelf, settings.ordering()),
            log=self.log,
            pool=cast(BlockPool | None, put.block_pool(shelf, self.executor.num_blocks, size)),
        )
        self.is_stopped = is_stopped
        if settings.prefix_caching:
            self.prefix_cache = put.prefix_cache(shelf, self)
        self.scheduler.tables = _Tables(self.pool, self.prefix_cache, shelf)

    def _end_all(self) -> None:
        """A part has failed: no other is asked any more, and every request ends."""
        self._failure = self.shelf.last_failure
        scheduler = getattr(self, "scheduler", None)
        if scheduler is None:  # not even built
            return
        scheduler.tables = _Nothing()
        self.loops.end_all()
        for request in scheduler._requests.values():  # it may have failed between two queues
            queue = scheduler.running if request.status is Status.RUNNING else scheduler.waiting
            if request not in queue:
                queue.append(request)
        scheduler.fail_all(str(self._failure), self.clock.now_s())

    def _running(self, request_id: str) -> Request:
        return next(r for r in self.scheduler.running if r.id == request_id)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.loops.end(event.request_id)


class _Step:
    """One step: the scheduler and the executor as `engine_step` sees them, and what it did."""

    def __init__(self, engine: EngineWithParts) -> None:
        self.engine, self.shelf = engine, engine.shelf
        self.plan: StepPlan | None = None
        self.lost: ExecutorFailed | None = None
        self.has_planned = self.is_committed = False

    def run(self, now_s: float) -> None:
        """Raises `PartFailed`, or `ExecutorFailed` if it was the executor that failed."""
        shelf, guard = self.shelf, self.shelf.guard
        scheduler = SimpleNamespace(
            plan=self._plan, commit=self._commit, fail_all=self.engine.fail_all
        )
        executor = SimpleNamespace(launch=self._launch, collect=self._collect)
        if not shelf.is_mine("engine_step"):
            parts_of_engine.engine_step(scheduler, executor, now_s)
            return
        step = shelf.books["engine_step"].target
        try:
            guard.call("engine_step", step, scheduler, executor, now_s)
        except ExecutorFailed as error:
            if self.lost is None:
                raise guard.failed("engine_step", f"it raised {error}") from error
        if self.lost is not None:
            raise self.lost
        if self.engine._failure is None:
            if not self.has_planned:
                raise guard.failed("engine_step", "it asked for no plan")
            if self.plan and not self.is_committed:
                raise guard.failed("engine_step", "it planned a step and did not commit it")

    def _plan(self, now_s: float) -> StepPlan | None:
        engine, self.has_planned = self.engine, True
        with self.shelf.guard.outside():
            self.plan = put.planned(self.shelf, engine.settings, engine.scheduler, now_s)
        if self.plan is not None:
            pool, waiting = engine.pool, engine.scheduler.waiting
            rows = tuple((r.request_id, len(r.token_ids), r.num_context_tokens)
                         for r in self.plan.rows)  # fmt: skip
            counts = pool.num_free, pool.num_used, pool.num_cached
            engine.log.add(StepStarted(now_s, self.plan.step, rows, len(waiting), *counts))
            if self.shelf.is_mine("engine_step"):
                for row in self.plan.rows:
                    self.shelf.ledger.note("engine_step", row.request_id)
        return self.plan

    def _launch(self, plan: StepPlan, now_s: float) -> Any:
        return self._computed(self.engine.executor.launch, plan, now_s)

    def _collect(self, handle: Any) -> Any:
        return self._computed(self.engine.executor.collect, handle)

    def _commit(self, plan: StepPlan, result: Any, now_s: float) -> None:
        engine = self.engine
        with self.shelf.guard.outside():
            ended_s = engine.clock.now_s()
            try:
                engine.scheduler.commit(plan, result, ended_s, engine.is_stopped)
            except Exception as error:
                raise engine._failure or error from None
            engine.log.add(StepEnded(ended_s, plan.step))
            self.is_committed = True

    def _computed(self, call: Callable, *args: Any) -> Any:
        with self.shelf.guard.outside():
            try:
                return call(*args)
            except PartFailed:
                raise
            except Exception as error:
                reason = f"the executor failed: {type(error).__name__}: {error}"
                self.lost = ExecutorFailed(reason, "start another executor")
                raise self.lost from error


class _Tables(BlockTables):
    """Says for whom the pool, the prefix cache and its hashes work."""

    def __init__(self, pool: Any, prefix_cache: Any, shelf: Shelf) -> None:
        super().__init__(pool, prefix_cache)
        self._during = shelf.ledger.during

    def admit(self, request: Request) -> bool:
        with self._during(request.id):
            return super().admit(request)

    def fork(self, request: Request, choice: Request) -> None:
        request.num_forks_to_come += 1  # until it has its blocks, `choice` is still to come
        with self._during(request.id):
            super().fork(request, choice)
        request.num_forks_to_come -= 1

    def extend(self, request: Request, num_held: int, num_new: int) -> list:
        with self._during(request.id):
            return super().extend(request, num_held, num_new)

    def settle(self, request: Request, first: int) -> None:
        with self._during(request.id):
            super().settle(request, first)

    def release(self, request: Request) -> None:
        try:
            with self._during(request.id):
                super().release(request)
        except PartFailed:
            if request.status is not Status.FINISHED:
                raise
            request.block_table.clear()  # it has ended well, and is to hear so

    def _match(self, request: Request) -> list[int]:
        with self._during(request.id):
            return super()._match(request)


class _Nothing:
    """Stands in for the block tables once a part has failed, until all is built anew."""

    prefix_cache = None

    def release(self, request: Request) -> None:
        request.block_table.clear()
