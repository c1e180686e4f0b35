"""Guesses make steps fewer and change no token: greedy, sampled, batched or preempted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    POLICIES,
    ask,
    check,
    check_drained,
    check_output,
    check_plan,
    choices,
    content_engine,
    drain,
    expected_output,
    oracle,
    policies,
    prompts,
    small,
)

from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution.simulated import SimulatedExecutor
from minserve.execution.speculative import NgramProposer, SimulatedProposer, Speculation


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_guesses_right_and_wrong_change_no_token(policy, prefix_caching):
    guesses = oracle(4, lambda request, position: position % 7 not in (1, 5, 6))
    engine = content_engine(
        policy(), num_blocks=14, speculator=guesses, prefix_caching=prefix_caching
    )
    sampled = {"temperature": 1.0, "seed": 5}
    requests = [ask(f"r{n}", 5 + n, 12, sampling=sampled if n % 2 else {}) for n in range(5)]
    for request in requests:
        engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    for request in requests:
        check_output(request)
    assert {0, 3} <= {num_right for _, _, num_right in guesses.outcomes}
    assert sorted(guesses.forgotten) == sorted(request.id for request in requests)


@given(
    asked=st.lists(
        st.tuples(prompts, st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4
    ),
    policy=policies,
    num_blocks=st.integers(11, 24),
    period=st.integers(1, 5),
    num_guesses=st.integers(1, 6),
    prefix_caching=st.booleans(),
)
@small(120)
def test_guesses_for_choices_of_any_requests_under_any_policy(
    asked, policy, num_blocks, period, num_guesses, prefix_caching
):
    guesses = oracle(num_guesses, lambda request, position: position % period != 0)
    engine = content_engine(
        policy, num_blocks, 2, speculator=guesses, prefix_caching=prefix_caching
    )
    requests = [
        ask(f"r{k}", prompt[:12], max_tokens, sampling={"n": n, "temperature": 1.0, "seed": k})
        for k, (prompt, max_tokens, n) in enumerate(asked)
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
        for choice in choices(request):
            assert engine.log.finished[choice.id] == 1
            assert engine.log.tokens[choice.id] == expected_output(choice)


def simulate(speculator, max_tokens: int = 200):
    engine = Engine(SimulatedExecutor(), speculator=speculator)
    request = ask("a", 8, max_tokens)
    engine.submit(request, 0.0)
    num_steps = 0
    while engine.step(float(num_steps)):
        num_steps += 1
    return request.output_token_ids, num_steps


def token(request_id: str, position: int) -> int:
    from minserve.execution.executor import Row
    from minserve.execution.simulated import repeatable_token
    from minserve.request import SamplingParams

    return repeatable_token(Row(request_id, (), 0, (), True, position, SamplingParams()))


@pytest.mark.parametrize(("acceptance", "most_steps"), [(1.0, 45), (0.8, 100), (0.0, 200)])
def test_the_more_guesses_are_right_the_fewer_steps_it_takes(acceptance, most_steps):
    tokens, _ = simulate(None)
    speculation = Speculation(SimulatedProposer(token, acceptance))
    assert simulate(speculation)[0] == tokens
    assert simulate(Speculation(SimulatedProposer(token, acceptance)))[1] <= most_steps
    if acceptance in (0.0, 1.0):
        assert speculation.acceptance == pytest.approx(acceptance, abs=0.02)


def test_it_switches_itself_off_where_guesses_are_wrong_and_tries_again():
    speculation = Speculation(SimulatedProposer(token, 0.0), retry_after=32)
    simulate(speculation)
    assert 2 <= speculation.num_checks <= 10 and speculation.num_skipped > 150


def test_a_large_batch_asks_more_of_guesses_than_a_single_stream():
    alone, crowd = (Speculation(SimulatedProposer(token, 0.7)) for _ in range(2))
    simulate(alone)
    engine = Engine(SimulatedExecutor(), speculator=crowd)
    for n in range(32):
        engine.submit(ask(f"r{n}", 8, 60), 0.0)
    while engine.step(0.0):
        pass
    assert crowd.num_checks / (crowd.num_checks + crowd.num_skipped) < 0.5
    assert alone.num_checks > alone.num_skipped


def test_n_grams_guess_what_followed_the_same_words_and_nothing_else():
    proposer = NgramProposer()
    request = ask("a", (1, 2, 3, 4, 5, 1, 2, 3))
    assert proposer.draft([request], 2) == [(4, 5)]
    request.output_token_ids += [9, 8]
    assert proposer.draft([request], 2) == [()]
    request.output_token_ids += [2, 3]
    assert proposer.draft([request], 3) == [(9, 8, 2)]  # the latest occurrence
    proposer.forget("a")
    assert proposer.draft([ask("a", (7, 7, 8))], 2) == [()]


@pytest.mark.parametrize("wrong", [{"num_guesses": 0}, {"token_cost": 2.0}, {"memory": 1.0}])
def test_settings_that_have_no_meaning_are_refused(wrong):
    with pytest.raises(ConfigError):
        Speculation(NgramProposer(), **wrong)
