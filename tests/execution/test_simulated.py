"""The simulated executor: costs add up as the model says, tokens are repeatable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution.executor import Row, StepPlan
from minserve.execution.simulated import CostModel, SimulatedExecutor, repeatable_token
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching, StaticBatching


def row(num_tokens: int, start: int = 0, name: str = "a", position: int = 0) -> Row:
    return Row(name, tuple(range(num_tokens)), start, (0,), True, position, SamplingParams())


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=5),
    prices=st.tuples(*[st.integers(0, 9)] * 4),
)
@small(100)
def test_a_step_costs_a_fixed_part_and_so_much_per_token_row_and_attended_token(sizes, prices):
    per_step, per_token, per_row, per_context = prices
    plan = StepPlan(1, tuple(row(*size) for size in sizes))
    attended = sum(
        position + 1 for num_tokens, start in sizes for position in range(start, start + num_tokens)
    )
    right = per_step + per_token * sum(n for n, _ in sizes) + per_row * len(sizes)
    assert CostModel(*prices).step_s(plan) == right + per_context * attended


def test_a_result_is_ready_when_its_cost_has_passed():
    executor = SimulatedExecutor(cost=CostModel(2.0, 0.5, 0.25, 0.0))
    handle = executor.launch(StepPlan(1, (row(3),)), now_s=10.0)
    assert handle.ready_at_s == 10.0 + 2.0 + 1.5 + 0.25


def test_only_rows_that_sample_give_a_token():
    executor = SimulatedExecutor()
    silent = Row("b", (1, 2), 0, (1,), False, 0, SamplingParams())
    result = executor.collect(executor.launch(StepPlan(1, (silent, row(2))), 0.0))
    assert [len(tokens) for tokens in result.token_ids] == [0, 1] and result.errors == {}


def test_a_token_depends_on_the_request_and_the_position_alone():
    assert repeatable_token(row(3, 0, "a", 4)) == repeatable_token(row(1, 9, "a", 4))
    names = {repeatable_token(row(1, 0, f"r{n}", 0)) for n in range(20)}
    positions = {repeatable_token(row(1, 0, "a", n)) for n in range(20)}
    assert len(names) > 15 and len(positions) > 15
    assert all(0 <= repeatable_token(row(1, 0, f"r{n}"), vocab_size=7) < 7 for n in range(20))


def test_the_token_function_can_be_replaced():
    executor = SimulatedExecutor(token=lambda row: 42, eos_token_ids=frozenset({42}))
    engine = Engine(executor)
    request = Request("a", (1, 2), SamplingParams(max_tokens=9))
    engine.submit(request, 0.0)
    engine.step(0.0)
    assert request.output_token_ids == [42] and request.finish_reason == "stop"


def test_the_same_text_under_every_policy():
    outputs = []
    for policy in (StaticBatching(2), ContinuousBatching(9, 4, chunk_tokens=2)):
        engine = Engine(SimulatedExecutor(num_blocks=8, block_size=2), policy)
        requests = [Request(f"r{n}", tuple(range(n + 2)), SamplingParams(6)) for n in range(3)]
        for request in requests:
            engine.submit(request, 0.0)
        while engine.step(0.0):
            pass
        outputs.append([request.output_token_ids for request in requests])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("wrong", [{"num_blocks": 0}, {"block_size": 0}, {"max_model_len": 0}])
def test_sizes_that_hold_nothing_are_refused(wrong):
    with pytest.raises(ConfigError):
        Engine(SimulatedExecutor(**wrong))
