"""The engine as a whole: who is refused, how requests end, and nothing is lost on the way.

Every test here runs over `ContentExecutor`, whose tokens change if a block holds anything wrong.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import (
    DOCUMENT,
    ORDERINGS,
    POLICIES,
    ContentExecutor,
    TerminalEvents,
    ask,
    check,
    check_drained,
    check_output,
    check_plan,
    content_engine,
    drain,
    expected_output,
    policies,
    prompts,
    small,
    thrashing_engine,
)

from minserve.errors import ConfigError, InvalidRequest, RequestTooLarge
from minserve.events import Finished, Submitted, TokensProduced
from minserve.request import FinishReason, Identity, Request, SamplingParams, Status
from minserve.scheduling.batching import ContinuousBatching, StaticBatching
from minserve.scheduling.compatibility import anyone, same_adapter

# -- refused at the door


@pytest.mark.parametrize("prompt", [1, 60, 64, 500])
def test_what_could_never_fit_is_refused_and_nothing_is_kept(prompt):
    engine = content_engine(num_blocks=4, block_size=4, max_model_len=30)
    served = ask("small", 8)
    engine.submit(served, 0.0)
    for too_large in (ask("pool", prompt, 17), ask("context", prompt, 30)):
        with pytest.raises(RequestTooLarge) as refusal:
            engine.submit(too_large, 0.0)
        assert too_large.id in str(refusal.value) and refusal.value.hint
        check(engine)
    drain(engine)
    check_drained(engine)
    assert served.finish_reason is FinishReason.LENGTH
    assert {e.request_id for e in engine.log.events if isinstance(e, Submitted)} == {"small"}


@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("prompt", [1, 4, 7])
def test_a_request_that_just_fills_the_pool_runs_to_its_end(block_size, prompt):
    num_tokens = 12  # the last token of all is never computed
    engine = content_engine(num_blocks=-(-(num_tokens - 1) // block_size), block_size=block_size)
    request = ask("a", prompt, num_tokens - prompt)
    engine.submit(request, 0.0)
    drain(engine)
    assert request.finish_reason is FinishReason.LENGTH
    check_output(request)
    num_slots = engine.pool.num_blocks * block_size
    with pytest.raises(RequestTooLarge):
        engine.submit(ask("b", prompt, num_slots + 2 - prompt), 0.0)


def test_a_request_that_just_fills_the_context_runs_and_one_token_more_is_refused():
    engine = content_engine(max_model_len=12)
    request = ask("a", 8, 4)
    engine.submit(request, 0.0)
    with pytest.raises(RequestTooLarge):
        engine.submit(ask("b", 8, 5), 0.0)
    drain(engine)
    assert request.num_output_tokens == 4


@pytest.mark.parametrize("stage", ["waiting", "running", "in flight", "finished"])
def test_a_request_is_accepted_once(stage):
    engine = content_engine()
    request = ask("a")
    engine.submit(request, 0.0)
    if stage == "running":
        engine.step(0.0)
    elif stage == "in flight":
        engine.begin_step(0.0)
    elif stage == "finished":
        drain(engine)
    with pytest.raises(InvalidRequest):
        engine.submit(request, 0.0)
    if stage != "finished":
        with pytest.raises(InvalidRequest):
            engine.submit(ask("a"), 0.0)
    if stage == "in flight":
        engine.finish_step(0.0)
    drain(engine)
    check_output(request)
    assert engine.log.finished["a"] == 1


def test_an_id_may_be_used_again_after_its_end_even_while_the_old_step_is_in_flight():
    engine = content_engine()
    old, new = ask("a"), ask("a", DOCUMENT[:6])
    engine.log = engine.scheduler.log = TerminalEvents()
    engine.submit(old, 0.0)
    engine.begin_step(0.0)
    engine.cancel("a", 0.0)
    engine.log.finished.clear()
    engine.submit(new, 0.0)
    check(engine)
    engine.finish_step(0.0)
    drain(engine)
    check_drained(engine)
    check_output(new)
    assert old.output_token_ids == []


# -- the ends of a request


STAGES = ["waiting", "before any", "prefill", "prefill in flight", "decode", "decode in flight"]
STAGES += ["last step in flight", "preempted", "finished"]


def bring_to(stage: str, engine, request) -> None:
    """Submit `request` and go on until it is at `stage`."""
    last = request.sampling.max_tokens - 1
    reached = {
        "waiting": lambda: True,
        "before any": lambda: True,
        "prefill": lambda: 0 < request.num_computed_tokens < request.num_prompt_tokens,
        "decode": lambda: request.num_output_tokens == 2,
        "last step": lambda: request.num_output_tokens == last,
        "preempted": lambda: request.num_preemptions > 0 and request.status is Status.WAITING,
        "finished": lambda: request.status is Status.FINISHED,
    }[stage.removesuffix(" in flight")]
    if stage == "before any":
        return
    engine.submit(request, 0.0)
    for _ in range(200):
        if reached() and not stage.endswith("in flight"):
            return
        is_reached, handle = reached(), engine.begin_step(0.0)
        if is_reached and request.id in [row.request_id for row in handle.plan.rows]:
            return
        engine.finish_step(0.0)
    raise AssertionError(f"never came to {stage}")


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["prefix", "no prefix"])
@pytest.mark.parametrize(
    ("stage", "has_neighbours"),
    [(stage, True) for stage in STAGES]
    + [(stage, False) for stage in STAGES if stage != "preempted"],  # alone nobody preempts it
)
def test_a_cancel_at_any_stage_ends_it_once_and_returns_every_block(
    stage, prefix_caching, has_neighbours
):
    policy = ContinuousBatching(token_budget=12, max_running=8, chunk_tokens=3)
    engine = content_engine(policy, 10, block_size=2, prefix_caching=prefix_caching)
    neighbours = [ask(f"n{n}", (*DOCUMENT[:4], n), 12) for n in range(2 * has_neighbours)]
    for neighbour in neighbours:
        engine.submit(neighbour, 0.0)
    request = ask("a", (*DOCUMENT[:6], 9), 6)
    bring_to(stage, engine, request)
    num_tokens, num_used = request.num_output_tokens, engine.pool.num_used
    is_there = stage not in ("before any", "finished")
    assert engine.cancel("a", 1.0) == is_there
    check(engine)
    assert engine.cancel("a", 1.0) is False, "a second cancel does nothing"
    check(engine)
    if stage.endswith("in flight"):
        assert engine.pool.num_used == num_used, "the step still writes to these blocks"
        engine.finish_step(1.0)
        check(engine)
    drain(engine, 2.0)
    check_drained(engine)
    assert engine.log.finished["a"] == (stage != "before any")
    if is_there:
        assert request.finish_reason is FinishReason.CANCELLED
        assert request.num_output_tokens == num_tokens
    for neighbour in neighbours:
        check_output(neighbour)
        assert neighbour.finish_reason is FinishReason.LENGTH


def test_a_waiting_request_that_is_cancelled_never_prefills():
    engine = content_engine(StaticBatching(1))
    engine.submit(ask("busy"), 0.0)
    engine.step(0.0)
    engine.submit(ask("left"), 0.0)
    engine.cancel("left", 0.0)
    drain(engine)
    rows = [row.request_id for plan in engine.executor.plans for row in plan.rows]
    assert "left" not in rows and "busy" in rows


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_when_every_client_leaves_the_engine_is_idle_after_the_step_in_flight(policy):
    engine = content_engine(policy(), num_blocks=30)
    requests = [ask(f"r{n}", n + 3, 8) for n in range(6)]
    for request in requests:
        engine.submit(request, 0.0)
    engine.step(9.0)
    engine.begin_step(9.0)
    for request in requests:
        engine.cancel(request.id, 9.0)
    engine.finish_step(9.0)
    assert engine.step(9.0) is False
    check_drained(engine)


@pytest.mark.parametrize("kind", ["tokens", "admitted", "preempted", "submitted", "finished"])
@pytest.mark.parametrize("whom", ["itself", "everybody"])
def test_a_listener_may_cancel_from_within_an_event(kind, whom):
    """As a server does that finds the client gone while it delivers a token, even the last."""
    engine, requests = thrashing_engine()

    def leave(event):
        if event.kind == kind:
            for request in requests:
                if whom == "everybody" or request.id == event.request_id:
                    engine.cancel(request.id, 0.0)

    engine.log.listen(leave)
    for request in requests:
        engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    for request in requests:
        check_output(request)
    assert all(engine.log.finished[r.id] == 1 for r in requests if r.timeline.finished_s == 0.0)


@pytest.mark.parametrize("position", range(1, 5))
def test_a_listener_that_cancels_at_the_last_token_gives_one_terminal_event(position):
    engine = content_engine()
    request = ask("a", max_tokens=4)

    def leave(event):
        if isinstance(event, TokensProduced) and request.num_output_tokens == position:
            engine.cancel("a", 0.0)

    engine.log.listen(leave)
    engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    assert request.num_output_tokens == position
    assert engine.log.finished["a"] == 1


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("how", ["eos", "stop token", "stop rule"])
def test_generation_stops_at_the_first_stop_and_says_why(position, how):
    probe = expected_output(ask("a", DOCUMENT[:5], 5))
    stop = probe[position]
    engine = content_engine(
        eos_token_ids=frozenset({stop} if how == "eos" else ()),
        is_stopped=lambda r: how == "stop rule" and r.output_token_ids[-1] == stop,
    )
    params = {"stop_token_ids": (stop,)} if how == "stop token" else {}
    request = ask("a", DOCUMENT[:5], 5, sampling=params)
    engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    assert request.output_token_ids == probe[: probe.index(stop) + 1]
    assert request.finish_reason is FinishReason.STOP


def test_ignore_eos_runs_to_the_full_length():
    probe = expected_output(ask("a", DOCUMENT[:5], 5))
    engine = content_engine(eos_token_ids=frozenset(probe))
    request = ask("a", DOCUMENT[:5], 5, sampling={"ignore_eos": True})
    engine.submit(request, 0.0)
    drain(engine)
    assert request.output_token_ids == probe


def test_the_last_event_says_how_many_tokens_came():
    engine = content_engine()
    engine.submit(ask("a", max_tokens=3), 0.0)
    drain(engine)
    assert engine.log.events[-2] == Finished(2.0, "a", "length", 3)


def test_the_timeline_says_when_it_came_ran_and_spoke():
    engine = content_engine(StaticBatching(1))
    first, second = ask("a", max_tokens=3), ask("b", max_tokens=2, arrival_s=0.5)
    engine.submit(first, 0.0)
    engine.step(1.0)
    engine.submit(second, 1.5)
    for now_s in (2.0, 3.0, 4.0, 5.0):
        engine.step(now_s)
    assert first.timeline.scheduled_s == 1.0 and first.timeline.token_times_s == [1.0, 2.0, 3.0]
    assert second.timeline.scheduled_s == 4.0 and second.timeline.queue_delay_s == 3.5
    assert second.timeline.ttft_s == 3.5 and second.timeline.finished_s == 5.0


def test_preemption_does_not_move_the_first_schedule():
    engine, requests = thrashing_engine()
    for request in requests:
        engine.submit(request, 0.0)
    admitted: dict[str, float] = {}
    engine.log.listen(
        lambda e: e.kind == "admitted" and admitted.setdefault(e.request_id, e.time_s)
    )
    drain(engine)
    assert any(request.num_preemptions for request in requests)
    assert {r.id: r.timeline.scheduled_s for r in requests} == admitted


# -- the order of calls


def test_a_second_step_cannot_begin_before_the_first_is_finished():
    engine = content_engine()
    request = ask("a")
    engine.submit(request, 0.0)
    engine.begin_step(0.0)
    with pytest.raises(ConfigError):
        engine.begin_step(0.0)
    engine.finish_step(0.0)
    drain(engine)
    check_output(request)


def test_finish_without_a_step_in_flight_is_an_error_that_ends_nobody():
    engine = content_engine()
    request = ask("a")
    engine.submit(request, 0.0)
    with pytest.raises(ConfigError):
        engine.finish_step(0.0)
    drain(engine)
    check_output(request)
    assert request.finish_reason is FinishReason.LENGTH


def test_an_idle_engine_has_nothing_to_step():
    engine = content_engine()
    assert engine.begin_step(0.0) is None and engine.step(0.0) is False
    assert engine.wake_at_s is None and not engine.has_unfinished
    assert engine.cancel("nobody", 0.0) is False


# -- everything at once


class EngineMachine(RuleBasedStateMachine):
    """Any order of submit, begin, finish and cancel, over a pool that is always too small."""

    @initialize(
        policy=policies,
        ordering=st.sampled_from(ORDERINGS),
        compatible=st.sampled_from([anyone, anyone, same_adapter]),
        prefix_caching=st.booleans(),
        num_blocks=st.integers(7, 12),
    )
    def start(self, policy, ordering, compatible, prefix_caching, num_blocks):
        self.engine = content_engine(
            policy,
            num_blocks,
            block_size=2,
            ordering=ordering(),
            compatible=compatible,
            prefix_caching=prefix_caching,
        )
        self.requests: list[Request] = []
        self.handle = None
        self.now_s = 0.0

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 6),
        adapter=st.sampled_from(["", "", "X"]),
        salt=st.sampled_from(["", "", "X"]),
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 2),
    )
    def submit(self, prompt, max_tokens, adapter, salt, tenant, priority):
        request = Request(
            f"r{len(self.requests)}",
            prompt,
            SamplingParams(max_tokens),
            identity=Identity(tenant),
            arrival_s=self.now_s,
            adapter=adapter,
            cache_salt=salt,
            priority=priority,
        )
        try:
            self.engine.submit(request, self.now_s)
        except RequestTooLarge:
            assert request.max_total_tokens - 1 > 2 * self.engine.pool.num_blocks
        else:
            self.requests.append(request)

    @precondition(lambda self: self.handle is None)
    @rule(pause_s=st.sampled_from([0.0, 0.1, 5.0]))
    def begin(self, pause_s):
        self.now_s += pause_s
        self.handle = self.engine.begin_step(self.now_s)
        if self.handle:
            check_plan(self.engine, self.handle.plan)
        elif self.engine.has_unfinished:
            assert self.engine.wake_at_s > self.now_s

    @precondition(lambda self: self.handle is not None)
    @rule()
    def finish(self):
        self.now_s += 0.1
        self.engine.finish_step(self.now_s)
        self.handle = None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.requests[-4:]))
        was_over = request.status is Status.FINISHED
        assert self.engine.cancel(request.id, self.now_s) == (not was_over)

    @invariant()
    def all_adds_up(self):
        if hasattr(self, "engine"):
            check(self.engine)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        if self.handle:
            self.engine.finish_step(self.now_s)
        drain(self.engine, self.now_s)
        check_drained(self.engine)
        for request in self.requests:
            check_output(request)
            assert self.engine.log.finished[request.id] == 1
            assert self.engine.log.tokens.get(request.id, []) == request.output_token_ids


EngineMachine.TestCase.settings = small(120, stateful_step_count=40)
TestEngine = EngineMachine.TestCase


def test_the_log_without_keeping_is_empty_but_heard():
    engine = content_engine(log=TerminalEvents(keep=False), executor=ContentExecutor())
    heard = []
    engine.log.listen(heard.append)
    engine.submit(ask("a"), 0.0)
    drain(engine)
    assert engine.log.events == [] and isinstance(heard[-2], Finished)
