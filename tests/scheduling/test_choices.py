"""Several choices of one prompt: computed once, ended once each, and each as if it were alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    POLICIES,
    TerminalEvents,
    ask,
    check,
    check_drained,
    check_plan,
    choices,
    content_engine,
    drain,
    expected_output,
    policies,
    prompts,
    small,
)

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.errors import InvalidRequest
from minserve.events import Finished, TokensProduced
from minserve.request import FinishReason

SAMPLED = {"temperature": 1.0, "seed": 3}


def check_choices(engine, request, is_cut_short: bool = False) -> None:
    """Each choice ended once, with the tokens that it would have alone."""
    for choice in choices(request):
        assert engine.log.finished[choice.id] == 1
        tokens, right = engine.log.tokens.get(choice.id, []), expected_output(choice)
        assert tokens == (right[: len(tokens)] if is_cut_short else right)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_choice_has_the_tokens_that_it_would_have_alone(policy, num_prompt, prefix_caching):
    engine = content_engine(policy(), num_blocks=40, prefix_caching=prefix_caching)
    request = ask("a", num_prompt, 6, sampling={"n": 4, **SAMPLED})
    engine.submit(request, 0.0)
    engine.submit(ask("b", num_prompt, 3), 0.0)
    drain(engine)
    check_drained(engine)
    check_choices(engine, request)
    assert len({tuple(engine.log.tokens[id]) for id in request.choice_ids}) == 4


def test_the_prompt_is_computed_once_and_its_blocks_are_shared():
    engine = content_engine(num_blocks=20, prefix_caching=False)
    request = ask("a", 10, 4, sampling={"n": 3, **SAMPLED})
    engine.submit(request, 0.0)
    engine.step(0.0)
    assert engine.pool.num_used == 3, "three choices hold the prompt's three blocks together"
    engine.step(0.0)
    # Each but the last to write has its own copy of the block in which the prompt ends.
    assert engine.pool.num_used == 2 + 3
    drain(engine)
    num_tokens = sum(plan.num_tokens for plan in engine.executor.plans)
    # The prompt; each other choice computes its last token again; of 4 tokens 3 are computed.
    assert num_tokens == 10 + 2 * 1 + 3 * 3
    assert sum(len(plan.copies) for plan in engine.executor.plans) == 2
    check_choices(engine, request)


def test_a_choice_that_is_preempted_is_computed_again_alone():
    engine = content_engine(num_blocks=8, block_size=2, prefix_caching=False)
    request = ask("a", 4, 8, sampling={"n": 3, **SAMPLED})
    engine.submit(request, 0.0)
    drain(engine)
    preempted = {event.request_id for event in engine.log.events if event.kind == "preempted"}
    assert preempted and preempted < set(request.choice_ids)
    check_drained(engine)
    check_choices(engine, request)


def test_more_choices_than_fit_together_take_turns():
    engine = content_engine(num_blocks=4, block_size=2)
    request = ask("a", 3, 5, sampling={"n": 16, **SAMPLED})
    engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    check_choices(engine, request)


def test_admission_leaves_room_for_the_choices_to_come():
    engine = content_engine(num_blocks=6, block_size=2)
    engine.submit(ask("first", 4, 6), 0.0)
    engine.submit(ask("a", 4, 2, sampling={"n": 4, **SAMPLED}), 0.0)
    engine.step(0.0)
    # Two blocks for its prompt and one for each choice to come do not fit beside the first.
    assert [request.id for request in engine.scheduler.running] == ["first"]
    drain(engine)
    check_drained(engine)


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("in_flight", [True, False])
def test_a_cancel_ends_every_choice_once_at_whatever_stage(num_steps, in_flight):
    engine = content_engine(num_blocks=40, policy=POLICIES["continuous, small chunks"]())
    request = ask("a", 7, 9, sampling={"n": 3, **SAMPLED})
    engine.submit(request, 0.0)
    for _ in range(num_steps):
        engine.step(0.0)
    if in_flight:
        engine.begin_step(0.0)
    assert engine.cancel("a", 0.0) is True and engine.cancel("a", 0.0) is False
    if in_flight:
        engine.finish_step(0.0)
    check_drained(engine)
    check_choices(engine, request, is_cut_short=True)
    finished = [event for event in engine.log.events if isinstance(event, Finished)]
    assert {event.reason for event in finished} == {"cancelled"}


def test_a_cancel_reaches_choices_that_outlive_the_first():
    engine = content_engine()
    right = [
        expected_output(choice) for choice in choices(ask("a", 4, 9, sampling={"n": 2, **SAMPLED}))
    ]
    end = next(token for token in right[0] if token not in right[1])
    request = ask("a", 4, 9, sampling={"n": 2, "stop_token_ids": (end,), **SAMPLED})
    engine.submit(request, 0.0)
    while engine.log.finished["a"] == 0:
        engine.step(0.0)
    with pytest.raises(InvalidRequest):  # the id is still in use
        engine.submit(ask("a"), 0.0)
    assert engine.cancel("a", 0.0) is True
    check_drained(engine)
    assert engine.log.finished["a"] == engine.log.finished["a#1"] == 1


def test_one_choice_can_be_cancelled_alone():
    engine = content_engine()
    request = ask("a", 4, 5, sampling={"n": 3, **SAMPLED})
    engine.submit(request, 0.0)
    engine.step(0.0)
    assert engine.cancel("a#1", 0.0) is True
    drain(engine)
    check_drained(engine)
    assert engine.log.tokens.get("a#1", []) == []
    assert len(engine.log.tokens["a"]) == len(engine.log.tokens["a#2"]) == 5


def test_ids_of_choices_cannot_be_taken_by_others():
    with pytest.raises(InvalidRequest):
        content_engine().submit(ask("a#1"), 0.0)


@pytest.mark.parametrize("kind", ["admitted", "tokens", "finished"])
@pytest.mark.parametrize("whom", ["a", "a#1", "a#2"])
def test_a_listener_may_cancel_while_choices_split_off(kind, whom):
    engine = content_engine()
    request = ask("a", 5, 3, sampling={"n": 3, **SAMPLED})
    engine.log.listen(lambda event: event.kind == kind and engine.cancel(whom, 0.0))
    engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    check_choices(engine, request, is_cut_short=True)


def test_every_choice_ends_when_a_request_fails_before_they_split_off():
    engine = content_engine()
    engine.executor.row_errors = lambda plan: {0: "bad row"}
    request = ask("a", sampling={"n": 3})
    engine.submit(request, 0.0)
    drain(engine)
    errors = {e.request_id: e.error for e in engine.log.events if isinstance(e, Finished)}
    assert errors == dict.fromkeys(request.choice_ids, "bad row")


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a_client_hears_of_every_choice(max_tokens):
    engine = content_engine()
    client = LocalClient(engine, EventLoop(VirtualClock()))
    request, heard = ask("a", 5, max_tokens, sampling={"n": 3, **SAMPLED}), []
    client.send(request, heard.append)
    client.send(ask("a", 5, 1, arrival_s=0.0), heard.append)  # refused: the id is in use
    client.run()
    check_drained(engine)
    for choice in choices(request):
        tokens = [
            token
            for event in heard
            if isinstance(event, TokensProduced) and event.request_id == choice.id
            for token in event.token_ids
        ]
        assert tokens == expected_output(choice)
    finished = [event.request_id for event in heard if isinstance(event, Finished)]
    assert sorted(finished) == ["a", *request.choice_ids]


def test_a_client_hears_that_every_choice_of_a_refused_request_has_ended():
    client = LocalClient(content_engine(max_model_len=8), EventLoop(VirtualClock()))
    request, heard = ask("a", 9, sampling={"n": 3}), []
    client.send(request, heard.append)
    client.run()
    assert [event.request_id for event in heard] == request.choice_ids
    assert request.finish_reason is FinishReason.ERROR


@given(
    asked=st.lists(
        st.tuples(prompts, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
    policy=policies,
    num_blocks=st.integers(9, 24),
    prefix_caching=st.booleans(),
)
@small(120)
def test_choices_of_any_requests_under_any_policy(asked, policy, num_blocks, prefix_caching):
    engine = content_engine(
        policy, num_blocks, 2, prefix_caching=prefix_caching, log=TerminalEvents()
    )
    requests = [
        ask(f"r{k}", prompt[:12], max_tokens, sampling={"n": n, **SAMPLED, "seed": seed})
        for k, (prompt, max_tokens, n, seed) in enumerate(asked)
    ]
    for request in requests:
        engine.submit(request, 0.0)
    now_s = 0.0
    while engine.has_unfinished:
        handle = engine.begin_step(now_s)
        if handle is None:
            now_s = max(now_s, engine.wake_at_s)
            continue
        check_plan(engine, handle.plan)
        engine.finish_step(now_s)
        check(engine)
        now_s += 1.0
    check_drained(engine)
    for request in requests:
        check_choices(engine, request)
