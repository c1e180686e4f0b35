"""Fault injection, by the stage at which something goes wrong in a step.

Whatever fails, and whenever: the others are served or end with an error, each exactly once, all
blocks come back, and what is served afterwards is right.
"""

from __future__ import annotations

import pytest
from support import (
    DOCUMENT,
    ContentExecutor,
    Guesses,
    ask,
    check,
    check_drained,
    check_output,
    content_engine,
    drain,
)

from minserve.errors import BlockError, ExecutorFailed, MinserveError
from minserve.execution.executor import StepResult
from minserve.request import FinishReason
from minserve.scheduling.batching import ContinuousBatching
from minserve.scheduling.ordering import Ordering


class Fault(Exception):
    pass


class Once:
    """Raises on the `left`-th call from when that is set, and never again."""

    left = 0

    def __call__(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Fault("injected")
        return 0.0


class FaultyOrdering(Ordering):
    """Fails while the running requests are sorted, or a victim goes back to the queue."""

    def __init__(self, fault):
        self.fault = fault

    def served(self, *_):
        self.fault()


class FaultyPolicy(ContinuousBatching):
    def __init__(self, fault):
        super().__init__(token_budget=64, max_running=8)
        self.fault = fault

    def decide(self, snapshot):
        self.fault()
        return super().decide(snapshot)


def lose(executor: ContentExecutor, fault: Once):
    def call(plan):
        try:
            fault()
        except Fault:
            executor.wipe()
            raise

    return call


def engine_with(stage: str, at: int):
    """An engine in which `stage` fails on its `at`-th time."""
    fault = Once()
    executor = ContentExecutor(num_blocks=6, block_size=2)
    more = {}
    if stage == "policy":
        more["policy"] = FaultyPolicy(fault)
    elif stage == "launch":
        executor.on_launch = lose(executor, fault)
    elif stage == "collect":
        executor.on_collect = lose(executor, fault)
    elif stage == "stop rule":
        more["is_stopped"] = lambda request: bool(fault())
    elif stage == "accounting":
        more["ordering"] = FaultyOrdering(fault)
    engine = content_engine(executor=executor, **more)
    if stage.startswith("listener"):
        kind = stage.removeprefix("listener: ")
        engine.log.listen(lambda event: event.kind == kind and fault())
    if stage in ("append", "release", "share"):
        call = getattr(engine.pool, stage)
        setattr(engine.pool, stage, lambda *args: (fault(), call(*args))[1])
    if stage == "register":
        register = engine.prefix_cache.register
        engine.prefix_cache.register = lambda *args: (fault(), register(*args))[1]
    engine.submit(ask("warm", (*DOCUMENT[:3], 9), 1), 0.0)  # so that there is a prefix to hit
    drain(engine)
    engine.executor.plans.clear()
    fault.left = at
    return engine


STAGES = ["policy", "launch", "collect", "stop rule", "accounting", "register", "append", "share"]
STAGES += [f"listener: {kind}" for kind in ("step_started", "admitted", "preempted", "tokens")]
STAGES += ["listener: finished", "listener: step_ended"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_after_a_fault_at_any_stage_everything_ends_once_and_the_engine_serves_on(stage, at):
    engine = engine_with(stage, at)
    requests = [ask(f"r{n}", (*DOCUMENT[:3], n), 8) for n in range(3)]
    for request in requests:
        engine.submit(request, 0.0)
    num_faults = 0
    while engine.has_unfinished:
        try:
            drain(engine)
        except Fault:
            num_faults += 1
        except ExecutorFailed as error:
            assert isinstance(error.__cause__, Fault)
            num_faults += 1
        check(engine)
    assert num_faults == 1
    check_drained(engine)
    for request in requests:
        assert engine.log.finished[request.id] == 1
        check_output(request)
    later = [ask(f"later{n}", (*DOCUMENT[:3], n), 8) for n in range(3)]
    for request in later:
        engine.submit(request, 9.0)
    drain(engine, 9.0)
    check_drained(engine)
    for request in later:
        assert request.finish_reason is FinishReason.LENGTH
        check_output(request)


@pytest.mark.parametrize("stage", ["launch", "collect"])
@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled in flight", "not"])
def test_a_lost_executor_ends_the_rows_in_flight_the_waiting_and_the_running(stage, is_cancelled):
    engine = engine_with(stage, 3)
    requests = [ask(f"r{n}", 4, 6) for n in range(5)]
    for request in requests:
        engine.submit(request, 0.0)
    engine.step(0.0)
    engine.step(0.0)
    with pytest.raises(ExecutorFailed):
        engine.begin_step(0.0)
        if is_cancelled:
            engine.cancel("r0", 0.0)
        engine.finish_step(0.0)
    check_drained(engine)
    assert engine.pool.num_cached == 0, "what a lost executor computed is not reused"
    reasons = {request.finish_reason for request in requests}
    assert FinishReason.ERROR in reasons
    assert all("injected" in r.error for r in requests if r.finish_reason is FinishReason.ERROR)
    assert engine.step(0.0) is False


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled in flight", "not"])
def test_a_row_that_fails_ends_alone(step, row, is_cancelled):
    engine = content_engine(num_blocks=30)
    requests = [ask(f"r{n}", (*DOCUMENT[:4], n), 6) for n in range(3)]
    for request in requests:
        engine.submit(request, 0.0)
    engine.executor.row_errors = lambda plan: {row: "bad row"} if plan.step == step else {}
    for _ in range(step):
        handle = engine.begin_step(0.0)
        if is_cancelled and handle.plan.step == step:
            engine.cancel(f"r{row}", 0.0)
        engine.finish_step(0.0)
        check(engine)
    drain(engine)
    check_drained(engine)
    for n, request in enumerate(requests):
        assert engine.log.finished[request.id] == 1
        check_output(request)
        failed = FinishReason.CANCELLED if is_cancelled else FinishReason.ERROR
        assert request.finish_reason is (failed if n == row else FinishReason.LENGTH)
    if not is_cancelled:
        assert requests[row].error == "bad row"


def test_a_row_that_fails_leaves_nothing_to_be_reused():
    engine = content_engine()
    engine.executor.row_errors = lambda plan: {0: "bad row"} if plan.step == 1 else {}
    engine.submit(ask("a", DOCUMENT[:9]), 0.0)
    engine.step(0.0)
    assert engine.pool.num_cached == 0
    again = ask("b", DOCUMENT[:9])
    engine.submit(again, 0.0)
    drain(engine)
    assert again.num_cached_tokens == 0
    check_output(again)


WRONG = {
    "too few rows": lambda tokens: tokens[:-1],
    "too many rows": lambda tokens: (*tokens, (1,)),
    "no token for a row that samples": lambda tokens: ((), *tokens[1:]),
    "a token for a row that does not": lambda tokens: (*tokens[:-1], (1,)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_result_that_does_not_answer_the_plan_is_a_typed_error(wrong):
    """The plan has one row that samples and, last, one that is in mid-prompt."""
    policy = ContinuousBatching(token_budget=16, max_running=4, chunk_tokens=4)
    engine = content_engine(policy)
    executor = engine.executor
    engine.submit(ask("short", 4, 6), 0.0)
    engine.submit(ask("long", 12, 2), 0.0)
    collect = executor.collect
    executor.collect = lambda handle: StepResult(wrong(collect(handle).token_ids), {})
    handle = engine.begin_step(0.0)
    assert [row.sample for row in handle.plan.rows] == [True, False]
    with pytest.raises(MinserveError):
        engine.finish_step(0.0)
    check_drained(engine)
    assert engine.log.tokens == {}


def counting_engine(**more):
    """An engine that counts up from 5, and guesses the next three numbers."""

    def count(first, num_tokens):
        return tuple(range(5 + first, 5 + first + num_tokens))

    engine = content_engine(speculator=Guesses(lambda r: count(r.num_output_tokens, 3)), **more)
    engine.executor.collect = lambda handle: StepResult(
        tuple(count(row.output_position, 1 + row.num_draft_tokens) for row in handle.plan.rows), {}
    )
    return engine


def test_more_tokens_than_guesses_are_no_answer():
    engine = content_engine()
    engine.executor.collect = lambda handle: StepResult(((5, 6),), {})
    engine.submit(ask("a"), 0.0)
    with pytest.raises(ExecutorFailed):
        engine.step(0.0)
    check_drained(engine)


def test_several_tokens_for_a_row_are_taken_up_to_the_stop_and_no_further():
    """As speculation returns them."""
    engine = counting_engine(eos_token_ids=frozenset({7}))
    request = ask("a", max_tokens=9)
    engine.submit(request, 0.0)
    drain(engine)
    assert request.output_token_ids == [5, 6, 7] and engine.log.tokens["a"] == [5, 6, 7]
    assert request.finish_reason is FinishReason.STOP
    check_drained(engine)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_several_tokens_never_exceed_max_tokens(max_tokens):
    engine = counting_engine()
    request = ask("a", max_tokens=max_tokens)
    engine.submit(request, 0.0)
    drain(engine)
    assert request.output_token_ids == [5, 6, 7, 8][:max_tokens]
    assert len(request.timeline.token_times_s) == max_tokens


@pytest.mark.parametrize("how", ["released twice", "never released"])
def test_a_block_released_twice_or_never_is_found_out(how):
    engine = content_engine()
    request = ask("a", 8, 4)
    engine.submit(request, 0.0)
    engine.step(0.0)
    if how == "released twice":
        engine.pool.release(list(request.block_table))
    else:
        engine.pool.share(request.block_table)
    with pytest.raises(BlockError):
        engine.check_integrity()


def test_a_submit_that_the_ordering_refuses_keeps_nothing():
    class Picky(Ordering):
        def key(self, request, now_s):
            if request.deadline_s is None:
                raise Fault("no deadline")
            return request.deadline_s

    engine = content_engine(ordering=Picky())
    engine.submit(ask("a", deadline_s=1.0), 0.0)
    with pytest.raises(Fault):
        engine.submit(ask("b"), 0.0)
    check(engine)
    drain(engine)
    check_drained(engine)
    assert set(engine.log.finished) - {None} == {"a"}
