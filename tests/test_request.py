"""Requests are plain data: what has no meaning is refused, and derived figures are right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, small

from minserve.errors import InvalidRequest
from minserve.request import Request, SamplingParams, Timeline

nan = float("nan")


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": value} for value in (0, -1)]
    + [{"temperature": value} for value in (-0.1, float("inf"), nan)]
    + [{"top_k": -1}, {"stop": ("a", "")}]
    + [{"top_p": value} for value in (0.0, -0.5, 1.01, nan)]
    + [{"min_p": value} for value in (-0.1, 1.1, nan)]
    + [{"repetition_penalty": value} for value in (0.0, -1.0, nan)]
    + [{f"{kind}_penalty": value} for kind in ("presence", "frequency") for value in (-2.1, 2.1)]
    + [{"min_tokens": value} for value in (-1, 17)]
    + [{"logprobs": value} for value in (-1, 21)]
    + [{"n": value} for value in (0, 17)],
    ids=str,
)
def test_sampling_that_has_no_meaning_is_refused(wrong):
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams(**wrong)
    assert refusal.value.hint


def test_what_is_just_allowed_is_accepted():
    SamplingParams(min_p=1.0, presence_penalty=-2, frequency_penalty=2.0, logprobs=20, n=16)
    SamplingParams(max_tokens=3, min_tokens=3, repetition_penalty=1e-3, logprobs=0, top_p=1)


def test_every_choice_has_a_seed_of_its_own_and_the_first_that_of_the_request():
    sampling = SamplingParams(seed=7, temperature=1.0, n=16)
    seeds = [sampling.of_choice(k).seed for k in range(16)]
    assert seeds[0] == 7 and len(set(seeds)) == 16
    assert seeds == [sampling.of_choice(k).seed for k in range(16)]
    assert {sampling.of_choice(k).n for k in range(16)} == {1}
    assert ask("a", sampling={"n": 3}).choice_ids == ["a", "a#1", "a#2"]


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidRequest):
        Request("a", ())


def test_two_requests_are_never_equal_and_share_no_state():
    a, b = ask("a"), ask("a")
    assert a != b
    a.output_token_ids.append(1)
    a.timeline.token_times_s.append(1.0)
    assert b.output_token_ids == [] and b.timeline.token_times_s == []


@given(
    prompt=st.lists(st.integers(), min_size=1, max_size=6),
    output=st.lists(st.integers(), max_size=6),
    bounds=st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted),
)
@small(150)
def test_tokens_are_a_slice_of_prompt_and_output(prompt, output, bounds):
    request = ask("a", prompt)
    request.output_token_ids.extend(output)
    start, end = (min(bound, request.num_tokens) for bound in bounds)
    assert request.tokens(start, end) == tuple((prompt + output)[start:end])
    assert request.num_tokens == len(prompt) + len(output)


@pytest.mark.parametrize(("num_computed", "is_prefill"), [(0, True), (2, True), (3, False)])
def test_prefill_means_that_more_than_the_newest_token_is_to_be_computed(num_computed, is_prefill):
    request = ask("a", 4)
    request.num_computed_tokens = num_computed
    assert request.is_prefill == is_prefill


@given(
    gaps=st.lists(st.integers(0, 100), max_size=6),
    arrival=st.integers(0, 100),
    first=st.integers(0, 100),
)
@small(80)
def test_n_tokens_give_n_minus_1_gaps(gaps, arrival, first):
    timeline = Timeline(float(arrival))
    assert timeline.ttft_s is timeline.e2e_s is timeline.tpot_s is timeline.queue_delay_s is None
    assert timeline.itl_s == []
    time_s = float(arrival + first)
    timeline.token_times_s.append(time_s)
    for gap in gaps:
        time_s += gap
        timeline.token_times_s.append(time_s)
    assert timeline.ttft_s == first and timeline.itl_s == gaps
    assert timeline.e2e_s == first + sum(gaps)
    assert timeline.tpot_s == (sum(gaps) / len(gaps) if gaps else None)
