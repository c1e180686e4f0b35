"""Scenarios: each holds on the simulator, fails where its property is broken, and is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minserve.clock import VirtualClock, WallClock
from minserve.execution.simulated import SimulatedExecutor
from minserve.loadtest.workload import Workload
from minserve.scenarios import SCENARIOS, Bench
from minserve.scenarios.arena import Score, compete, field, pools, pools_verdict, verdict
from minserve.simulator.profile import H100_LLAMA_8B, NANO

NAMES = (
    "cold prefix mixed classes cancel-storm long-prompt eviction two-tenants offline server "
    "single-stream multi-stream interactive"
)
MODEL = Path(__file__).resolve().parents[1] / "data/models/northstar-nano/model.safetensors"


def bench(seed: int = 0, **options) -> Bench:
    def executor(blocks):
        return SimulatedExecutor(blocks or 2048, **options)

    return Bench(executor, VirtualClock, 0.02, seed=seed)


def encode(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_all_scenarios_that_were_promised_are_there():
    assert set(SCENARIOS) == set(NAMES.split())
    assert all(s.question.endswith("?") and s.expected for s in SCENARIOS.values())


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", [0, 1])
def test_scenario_holds_on_the_simulator_and_is_drawn(name, seed):
    from minserve.cli.scenario import picture

    outcome = SCENARIOS[name].run(bench(seed))
    assert outcome.holds, outcome.said
    drawn = picture(outcome, SCENARIOS[name].question)
    assert drawn.png().startswith(b"\x89PNG") and outcome.said in drawn.alt


def test_a_cancel_storm_tells_how_long_the_cancels_took():
    found = SCENARIOS["cancel-storm"].run(bench()).figures["cancel_delays_s"]
    assert len(found) == 16 and 0 < max(found) < 0.02  # within the step in flight


def test_scenarios_fail_where_the_property_is_broken():
    flat = bench()

    def deaf(self, calls, **options):  # a bench whose engine never reuses, nor hears of leaving
        return original(self, calls, **(options | {"prefix_caching": False, "before": _nothing}))

    original = Bench.serve
    Bench.serve = deaf
    try:
        broken = [n for n in ("prefix", "two-tenants", "cancel-storm") if _fails(n, flat)]
    finally:
        Bench.serve = original
    assert broken == ["prefix", "two-tenants", "cancel-storm"]


def _nothing(client) -> None:
    pass


def _fails(name: str, on: Bench) -> bool:
    try:
        return not SCENARIOS[name].run(on).holds
    except (AttributeError, ZeroDivisionError):
        return True


COUNTED = ("cold", "prefix", "cancel-storm", "two-tenants", "eviction")
"""What these show is counted, or far apart; the others' times are another program's to spoil."""


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.is_file(), reason="northstar-nano is not in data/models")
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_runs_on_the_real_engine_and_holds_where_it_is_counted(name):
    from minserve.execution.torch_executor import TorchExecutor

    made = {}

    def executor(blocks):
        if blocks not in made:
            made[blocks] = TorchExecutor("nano", num_blocks=blocks or 1024)
        return made[blocks]

    real = Bench(executor, WallClock, 0.05, 800, max_prompt=1500, is_real=True)
    SCENARIOS["cold"].run(real)  # kernels are compiled on first use
    outcome = SCENARIOS[name].run(real)
    assert outcome.said and (outcome.holds or name not in COUNTED), outcome.said


# -- the arena


def test_arena_ranks_and_loses_nobody():
    traffic = list(Workload("northstar", num_prompts=150, rate_per_s=120.0, seed=31).calls(encode))
    scores = compete(field(), lambda: traffic, NANO)
    assert {score.num_ok for score in scores} == {150}
    met = [score.deadlines_met for score in scores]
    assert met == sorted(met, reverse=True)
    by_name = {score.name: score for score in scores}
    assert by_name["earliest deadline"].deadlines_met >= by_name["first come"].deadlines_met
    assert by_name["prefill first"].itl_p99_s >= by_name["first come"].itl_p99_s
    assert verdict(scores, 150).holds


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("earliest deadline", {"deadlines_met": 0.5}),
        ("virtual token counter", {"service_gap": 0.5}),
        ("prefill first", {"itl_p99_s": 0.01}),
        ("first come", {"num_ok": 9}),
        ("yours", {"num_ok": 9}),
    ],
)
def test_arena_fails_where_a_policy_does_not_what_it_is_for(name, change):
    names = [*(entrant.name for entrant in field()), "yours"]
    scores = [Score(each, 0.8, 1.0, 0.02, 100.0, 0.2, 10) for each in names]
    assert verdict(scores, 10).holds
    broken = [replace(s, **change) if s.name == name else s for s in scores]
    outcome = verdict(broken, 10)
    assert not outcome.holds and (name in outcome.said) == ("num_ok" in change)


def test_pools_apart_smooth_answers_and_delay_first_tokens():
    traffic = Workload("azure", num_prompts=150, rate_per_s=24.0, seed=3)
    found = pools(traffic.calls, H100_LLAMA_8B)
    chunked, apart = found["chunked prefill"], found["pools apart"]
    assert chunked.num_ok == apart.num_ok == 150
    assert chunked.output_tokens == apart.output_tokens
    assert apart["itl.p99"] < 0.7 * chunked["itl.p99"]
    assert apart["ttft.p50"] > chunked["ttft.p50"]
    assert pools_verdict(found).holds
    swapped = dict(zip(found, (apart, chunked), strict=True))
    assert not pools_verdict(swapped).holds, "it fails where pools apart are the worse"
