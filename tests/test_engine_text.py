"""The engine's answers: the same text whatever the schedule, and whatever is reused.

Every test here runs over `ContentExecutor`, whose tokens change if a block holds anything wrong.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import (
    DOCUMENT,
    ORDERINGS,
    POLICIES,
    TerminalEvents,
    ask,
    check,
    check_drained,
    check_output,
    check_plan,
    content_engine,
    continuous_policies,
    drain,
    expected_output,
    policies,
    prompts,
    small,
    thrashing_engine,
)

from minserve.events import Preempted
from minserve.request import FinishReason, Identity, Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching
from minserve.scheduling.compatibility import anyone, same_adapter, same_tenant


@st.composite
def workloads(draw):
    """Requests, each with the number of steps that pass before it comes."""
    return [
        (
            draw(prompts),
            draw(st.integers(1, 8)),
            draw(st.sampled_from(["", "", "X"])),  # adapter
            draw(st.sampled_from(["", "", "X"])),  # salt
            draw(st.sampled_from([0, 0, 7])),  # seed
            draw(st.integers(0, 3)),  # steps before it arrives
            draw(st.one_of(st.none(), st.none(), st.integers(0, 6))),  # steps before a cancel
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


def serve(engine, workload) -> list[Request]:
    """Submit, step and cancel as the workload says, then drain; checked after every call."""
    requests = [
        Request(
            f"r{index}",
            prompt,
            SamplingParams(max_tokens, temperature=float(seed > 0), seed=seed),
            adapter=adapter,
            cache_salt=salt,
            identity=Identity(salt or "a"),
            deadline_s=float(index % 3) if index % 2 else None,
            priority=index % 3,
        )
        for index, (prompt, max_tokens, adapter, salt, seed, _, _) in enumerate(workload)
    ]
    for tick in range(12):
        now_s = float(tick)
        due = [r for r, (*_, wait, _) in zip(requests, workload, strict=True) if wait == tick]
        for request in due:
            request.arrival_s = request.timeline.arrival_s = now_s
            engine.submit(request, now_s)
            check(engine)
        handle = engine.begin_step(now_s)
        if handle:
            check_plan(engine, handle.plan)
        for request, (*_, wait, patience) in zip(requests, workload, strict=True):
            if patience is not None and wait + patience == tick:
                engine.cancel(request.id, now_s)
                check(engine)
        if handle:
            engine.finish_step(now_s)
            check(engine)
    drain(engine, 12.0)
    check_drained(engine)
    return requests


@given(
    workload=workloads(),
    policy=policies,
    ordering=st.sampled_from(ORDERINGS),
    compatible=st.sampled_from([anyone, anyone, same_adapter, same_tenant]),
    num_blocks=st.integers(12, 20),
    prefix_caching=st.booleans(),
)
@small(250)
def test_text_depends_on_nothing_but_the_request(
    workload, policy, ordering, compatible, num_blocks, prefix_caching
):
    engine = content_engine(
        policy,
        num_blocks,
        block_size=2,
        ordering=ordering(),
        compatible=compatible,
        prefix_caching=prefix_caching,
    )
    requests = serve(engine, workload)
    for request, (*_, patience) in zip(requests, workload, strict=True):
        check_output(request)
        assert engine.log.finished[request.id] == 1
        assert engine.log.tokens.get(request.id, []) == request.output_token_ids
        if patience is None:
            assert request.finish_reason is FinishReason.LENGTH


@given(workload=workloads(), policy=continuous_policies, num_hashes=st.sampled_from([1, 2, 5]))
@small(80)
def test_text_survives_hash_collisions(workload, policy, num_hashes):
    engine = content_engine(policy, 14, block_size=2)
    engine.prefix_cache._hash_block = lambda parent, tokens: bytes(
        [(sum(tokens) + sum(parent[-1:])) % num_hashes]
    )
    for request in serve(engine, workload):
        check_output(request)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("prefix_caching", [True, False], ids=["prefix", "no prefix"])
@pytest.mark.parametrize("num_blocks", [6, 7, 30])
def test_preemption_does_not_change_the_text(policy, prefix_caching, num_blocks):
    engine = content_engine(
        policy(), num_blocks, block_size=2, prefix_caching=prefix_caching, log=TerminalEvents()
    )
    requests = [ask(f"r{n}", (*DOCUMENT[:3], n), max_tokens=8) for n in range(3)]
    for request in requests:
        engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    for request in requests:
        assert request.output_token_ids == expected_output(request)
    has_preempted = any(isinstance(event, Preempted) for event in engine.log.events)
    assert has_preempted == (num_blocks < 30)


def test_a_shared_prefix_is_computed_once():
    engine = content_engine(num_blocks=30)
    engine.submit(ask("a", (*DOCUMENT, 1)), 0.0)
    drain(engine)
    num_planned = sum(plan.num_tokens for plan in engine.executor.plans)
    again = ask("b", (*DOCUMENT, 2))
    engine.submit(again, 0.0)
    drain(engine)
    assert again.num_cached_tokens == 20
    assert sum(plan.num_tokens for plan in engine.executor.plans) - num_planned == 1 + 3
    check_output(again)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_next_turn_of_a_chat_reuses_prompt_and_answer_of_the_one_before(policy):
    engine = content_engine(policy(), num_blocks=30, block_size=2)
    first = ask("first", DOCUMENT[:9], 8)
    engine.submit(first, 0.0)
    drain(engine)
    second = ask("second", (*first.prompt_token_ids, *first.output_token_ids, 1, 2))
    engine.submit(second, 0.0)
    drain(engine)
    assert second.num_cached_tokens == 16, "whole blocks of the 16 tokens that were computed"
    check_output(second)


@pytest.mark.parametrize("chunk", [2, 3, 64])
def test_a_readmitted_request_computes_its_tokens_less_those_cached(chunk):
    policy = ContinuousBatching(token_budget=64, max_running=8, chunk_tokens=chunk)
    engine, requests = thrashing_engine(policy=policy)
    for request in requests:
        engine.submit(request, 0.0)
    lives: dict[str, list[int]] = {}  # tokens computed in each stay of a request
    totals: dict[str, list[int]] = {}

    def listen(event):
        if event.kind == "admitted":
            request = next(r for r in requests if r.id == event.request_id)
            lives.setdefault(request.id, []).append(event.num_cached_tokens)
            totals.setdefault(request.id, []).append(event.num_cached_tokens)
        elif event.kind == "step_started":
            for request_id, num_computed, num_context in event.rows:
                lives[request_id][-1] += num_computed
                totals[request_id][-1] = num_context

    engine.log.listen(listen)
    drain(engine)
    assert lives == totals, "computed + cached = the context, in every stay"
    readmissions = [e.num_cached_tokens for e in engine.log.events if e.kind == "admitted"][3:]
    assert readmissions and max(readmissions) > 0, "some readmission hits the prefix cache"
    for request in requests:
        check_output(request)


@pytest.mark.parametrize("salts", [("", "X"), ("X", ""), ("X", "Y")])
def test_a_different_salt_never_hits_and_the_same_salt_does(salts):
    engine = content_engine()
    cached = []
    for index, salt in enumerate((salts[0], salts[1], salts[0], salts[1])):
        request = ask(f"r{index}", DOCUMENT[:9], cache_salt=salt)
        engine.submit(request, 0.0)
        drain(engine)
        cached.append(request.num_cached_tokens)
    assert cached == [0, 0, 8, 8]


def test_an_adapter_and_a_salt_of_the_same_name_never_match():
    engine = content_engine(num_blocks=40)
    for index, scope in enumerate([{"adapter": "X"}, {"cache_salt": "X"}, {}] * 2):
        request = ask(f"r{index}", DOCUMENT[:9], **scope)
        engine.submit(request, 0.0)
        drain(engine)
        assert request.num_cached_tokens == (0 if index < 3 else 8)
        check_output(request)


def test_requests_in_flight_together_never_reuse_what_is_not_computed_yet():
    engine = content_engine(POLICIES["continuous, small chunks"](), num_blocks=30)
    requests = [ask(f"r{index}", DOCUMENT[:9]) for index in range(3)]
    for request in requests:
        engine.submit(request, 0.0)
    drain(engine)
    for request in requests:
        check_output(request)


@pytest.mark.parametrize("neighbours", [0, 1, 5])
def test_a_seeded_request_does_not_depend_on_its_neighbours(neighbours):
    def draws(seed):
        return ask("a", DOCUMENT[:5], 6, sampling={"temperature": 1.0, "seed": seed})

    engine = content_engine(num_blocks=60)
    request, twin, other = draws(3), draws(3), draws(4)
    twin.id, other.id = "b", "c"
    for each in (request, *(ask(f"n{n}", n + 1, 3) for n in range(neighbours)), twin, other):
        engine.submit(each, 0.0)
    drain(engine)
    assert request.output_token_ids == twin.output_token_ids == expected_output(request)
    assert request.output_token_ids != other.output_token_ids
    assert len(set(request.output_token_ids)) > 1, "the noise advances with the position"


def test_the_fake_executor_notices_wrong_memory():
    """The oracle above is worth nothing unless a wrong table shows."""
    request = ask("a", DOCUMENT[:5], 4)
    engine = content_engine()
    engine.submit(request, 0.0)
    engine.step(0.0)
    engine.executor.blocks[request.block_table[0]][1] = b"overwritten"
    drain(engine)
    with pytest.raises(AssertionError):
        check_output(request)
