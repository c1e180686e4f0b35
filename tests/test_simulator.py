"""The simulator: replicas side by side, routing, scaling, and what it must not change."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace

import pytest

from minserve.clock import EventLoop, VirtualClock
from minserve.errors import ConfigError
from minserve.execution.simulated import CostModel
from minserve.loadtest import arrivals, datasets
from minserve.loadtest.capacity import (
    BACKLOG,
    OnBacklog,
    OnForecast,
    OnUtilisation,
    Signals,
    fewest_replicas,
)
from minserve.loadtest.generator import send_in_process
from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.pictures import scaling
from minserve.loadtest.sweep import capacity, mg1_wait_s, sweep, with_enough
from minserve.loadtest.workload import Workload
from minserve.request import Request
from minserve.scheduling.batching import ContinuousBatching
from minserve.simulator.fleet import Setup
from minserve.simulator.profile import H100_LLAMA_8B, NANO, Profile
from minserve.simulator.routers import by_prefix, least_loaded
from minserve.simulator.runs import autoscaled, compare_scaling, run

SLOW = Profile("slow", CostModel(0.01, 1e-4, 1e-3, 0.0), 1024, load_s=5.0)
SETUP = Setup(SLOW, lambda: ContinuousBatching(256, 8))
TRAFFIC = Workload(input_len=40, output_len=8, num_prompts=120, rate_per_s=20.0)
GOALS = Objectives(ttft_s=0.5)


def test_one_replica_is_the_engine_and_two_serve_side_by_side():
    one = run(SETUP, TRAFFIC.calls()).measures()
    two = run(replace(SETUP, num_replicas=2), TRAFFIC.calls()).measures()
    assert one.num_ok == two.num_ok == 120
    assert two["e2e.p95"] < one["e2e.p95"]
    again = run(replace(SETUP, num_replicas=2), TRAFFIC.calls()).measures()
    assert again == two, "the same on every machine"


def test_histograms_report_what_exact_samples_do():
    exact = run(SETUP, TRAFFIC.calls()).measures()
    rough = run(SETUP, TRAFFIC.calls(), exact=False).measures()
    for name in ("ttft.p50", "e2e.p99"):
        assert rough[name] == pytest.approx(exact[name], rel=0.03)


def test_least_loaded_and_prefix_routers_choose():
    same = [Request(f"r{n}", tuple(range(100)), cache_salt="a") for n in range(2)]
    assert least_loaded(same[0], [3, 1, 1]) == 1
    assert by_prefix(same[0], [0, 0, 0]) == by_prefix(same[1], [1, 0, 0])
    home = by_prefix(same[0], [0, 0, 0])
    loads = [1, 1, 1]
    loads[home] = 50
    assert by_prefix(same[0], loads) != home, "not where everybody waits already"


def test_prefix_routing_reuses_more_than_least_loaded():
    traffic = Workload(
        "shared-prefix", num_prompts=150, rate_per_s=30.0, num_prefixes=12, prefix_len=160,
        input_len=16, output_len=4,
    )  # fmt: skip
    small = replace(SLOW, num_blocks=80)
    hits = {}
    for router in ("least-loaded", "prefix", "cached-prefix"):
        setup = replace(SETUP, profile=small, num_replicas=3, router=router)
        m = run(setup, traffic.calls()).measures()
        hits[router] = m.cached_tokens / m.prompt_tokens
    assert hits["prefix"] > hits["least-loaded"] + 0.1
    assert hits["cached-prefix"] > hits["least-loaded"] + 0.1


def test_cached_prefix_router_forgets_a_replica_that_leaves_and_goes_without_a_cache():
    loop = EventLoop(VirtualClock())
    fleet = replace(SETUP, num_replicas=2, router="cached-prefix").fleet(loop)
    prompt = tuple(range(64))
    for number in range(2):  # the second finds its prefix, and stays alone
        fleet.send(Request(f"r{number}", prompt, arrival_s=float(number)))
    loop.run()
    known = [fleet.route.prefixes.num_known_blocks(replica) for replica in fleet.replicas]
    assert sorted(known) == [0, 4]
    assert [replica.num_tokens for replica in fleet.replicas] == [0, 0]
    gone = list(fleet.replicas)
    fleet.scale_to(1)
    (left,) = fleet.replicas
    gone.remove(left)
    assert fleet.route.prefixes.num_known_blocks(gone[0]) == 0
    uncached = replace(SETUP, num_replicas=2, router="cached-prefix", prefix_caching=False)
    assert run(uncached, TRAFFIC.calls()).measures().num_ok == 120


def test_unknown_router_and_no_replica_are_refused():
    for wrong in ({"router": "magic"}, {"num_replicas": 0}):
        with pytest.raises(ConfigError):
            run(replace(SETUP, **wrong), TRAFFIC.calls())


def test_admission_turns_away_what_cannot_be_met_and_those_served_wait_less():
    rush = replace(TRAFFIC, dataset="northstar", rate_per_s=400.0, num_prompts=400)

    def encode(text):
        return [len(word) for word in text.split()]

    open_door = run(SETUP, rush.calls(encode)).measures()
    gated = run(replace(SETUP, has_admission=True), rush.calls(encode)).measures()
    assert gated.outcomes.get("rejected", 0) > 0
    assert gated.num_requests == open_door.num_requests == 400
    assert gated["ttft.p95"] < open_door["ttft.p95"]


# -- scaling


def test_new_replica_serves_only_after_its_model_has_loaded_and_is_paid_for_from_the_start():
    loop = EventLoop(VirtualClock())
    fleet = SETUP.fleet(loop)
    sizes = []
    loop.at(1.0, lambda: fleet.scale_to(3))
    for time_s in (0.5, 5.9, 6.1):
        loop.at(time_s, lambda: sizes.append((len(fleet.replicas), fleet.num_loading)))
    loop.run()
    assert sizes == [(1, 0), (1, 2), (3, 0)]
    assert fleet.replica_s == pytest.approx(1.0 + 5.1 * 3, abs=1e-6)


def test_leaving_replica_finishes_what_it_has():
    loop, tally = EventLoop(VirtualClock()), Tally()
    fleet = replace(SETUP, num_replicas=2).fleet(loop)
    loop.at(0.5, lambda: fleet.scale_to(1))
    send_in_process(TRAFFIC.calls(), fleet, loop, tally.add)
    assert tally.measures().num_ok == 120
    assert len(fleet.replicas) == 1 and not fleet.leaving


def signals(**fields) -> Signals:
    usual = {
        "now_s": 0.0, "num_replicas": 2, "num_loading": 0, "queued_tokens": 0,
        "oldest_wait_s": 0.0, "num_running": 40, "kv_pressure": 0.3, "utilisation": 1.0,
    }  # fmt: skip
    return Signals(**(usual | fields))


def test_backlog_asks_for_what_drains_the_queue_in_time_and_for_no_more_while_loading():
    rule = OnBacklog(tokens_per_s=1_000, drain_s=2.0, max_running=64)
    assert rule(signals()) == 2
    assert rule(signals(queued_tokens=9_000)) == 5
    assert rule(signals(queued_tokens=9_000, num_loading=3)) == 5
    assert rule(signals(oldest_wait_s=3.0)) == 3
    assert rule(signals(kv_pressure=0.9)) == 3


def test_backlog_takes_what_loads_for_the_queue_that_grows_meanwhile():
    rule = OnBacklog(tokens_per_s=1_000, drain_s=2.0, max_running=64, load_s=60.0)
    overloaded_s = 40  # two serve, and one more was missing for so long
    queue = 1_000 * overloaded_s
    assert rule(signals(queued_tokens=queue)) == 3
    assert rule(signals(queued_tokens=queue, num_loading=1)) == 3, "it will work that off"
    assert rule(signals(queued_tokens=3 * queue, num_loading=1)) == 4, "and this it will not"
    at_once = OnBacklog(tokens_per_s=1_000, drain_s=2.0, max_running=64)
    assert at_once(signals(queued_tokens=queue)) == 20, "without loading, all of it in time"


def test_backlog_lets_go_only_after_some_calm():
    rule = OnBacklog(1_000, 2.0, max_running=64, calm=3)
    idle = signals(num_running=2, kv_pressure=0.02)
    assert [rule(idle) for _ in range(3)] == [2, 2, 1]
    assert rule(signals(num_replicas=1, num_running=0, kv_pressure=0.0)) == 1


def test_utilisation_cannot_tell_a_busy_engine_from_a_drowning_one():
    rule = OnUtilisation()
    assert rule(signals()) == rule(signals(queued_tokens=10**6, oldest_wait_s=60.0)) == 3
    assert rule(signals(utilisation=0.1)) == 1


def test_scaling_on_backlog_keeps_the_objectives_with_fewer_replica_hours_than_a_fixed_fleet():
    times = arrivals.waves(2.0, 60.0, 120.0, random.Random(4))
    samples = datasets.random_tokens(random.Random(5), 40, 8)
    calls = list(datasets.calls(times, samples, 6_000))
    rule = OnBacklog(2_500.0, 0.25, max_running=8)
    scaled = autoscaled("backlog", SETUP, calls, rule, GOALS, every_s=2.0)
    fixed = autoscaled(
        "fixed", replace(SETUP, num_replicas=scaled.most_replicas), calls,
        lambda signals: scaled.most_replicas, GOALS, every_s=2.0,
    )  # fmt: skip
    assert scaled.most_replicas > 1
    assert scaled.attainment > 0.8 and fixed.attainment >= scaled.attainment
    assert scaled.replica_hours < 0.9 * fixed.replica_hours


def test_backlog_can_be_told_to_look_at_one_signal():
    late = signals(queued_tokens=9_000, oldest_wait_s=3.0, kv_pressure=0.9)
    asks = {
        signal: OnBacklog(1_000, 2.0, max_running=64, looks_at=(signal,))(late)
        for signal in BACKLOG
    }
    assert asks == {"queued tokens": 5, "queue age": 3, "KV pressure": 3}
    assert OnBacklog(1_000, 2.0, max_running=64, looks_at=())(late) == 2


def test_forecast_asks_before_the_peak_and_never_for_less_than_its_rule():
    def rate(time_s):
        return 50.0 if time_s >= 100.0 else 10.0

    rule = OnForecast(lambda signals: 2, rate, per_replica_per_s=10.0, ahead_s=20.0)
    assert rule(signals(now_s=70.0)) == 2
    assert rule(signals(now_s=81.0)) == 5, "a replica that is asked for now serves in 20 s"


def test_utilisation_pays_for_idle_replicas_and_a_forecast_is_there_before_the_peak():
    long_answers = replace(TRAFFIC, output_len=30, num_prompts=60)
    quick = replace(SETUP, profile=replace(SLOW, load_s=1.0))
    made = compare_scaling(
        quick, long_answers, Objectives(ttft_s=1.0), 24.0,
        wave_s=40.0, every_s=2.0, most=12, max_running=8,
    )  # fmt: skip
    found = {each.name: each for each in made}
    assert list(found)[:-1] == ["utilisation", *BACKLOG, "all three", "and a forecast"]
    fixed, utilisation, both = made[-1], found["utilisation"], found["and a forecast"]
    assert max(each.replica_hours for each in made) == fixed.replica_hours
    assert utilisation.replica_hours > 2 * found["all three"].replica_hours
    assert found["KV pressure"].most_replicas == 1, "it is no sign where the batch is what is full"
    assert 0.9 < found["all three"].attainment < 0.99 < both.attainment
    assert both.replica_hours < 0.5 * utilisation.replica_hours
    drawn = scaling(made)
    assert drawn.png().startswith(b"\x89PNG") and "all three" in drawn.alt


# -- sweep and capacity


def serve(rate_per_s: float) -> Tally:
    return run(SETUP, TRAFFIC.at_rate(rate_per_s, 300).calls(), GOALS)


def test_sweep_stops_at_the_first_rate_whose_queue_grows():
    found = sweep(serve, [5.0, 400.0, 800.0, 20.0])
    assert [cell.rate_per_s for cell in found.cells] == [5.0, 20.0, 400.0]
    assert [cell.is_steady for cell in found.cells] == [True, True, False]
    assert found.best_per_s == 20.0


def test_capacity_brackets_the_highest_rate_that_meets_the_objectives():
    found = capacity(serve, 4.0, precision=0.1)
    best = found.best_per_s
    assert 10.0 < best < 200.0
    missed = [cell.rate_per_s for cell in found.cells if not cell.is_met]
    assert min(missed) <= best / 0.9 + 1e-9
    assert all(cell.is_met for cell in found.cells if cell.rate_per_s <= best)


def test_capacity_of_objectives_that_nobody_meets_is_none():
    def hopeless(rate_per_s):
        return run(SETUP, TRAFFIC.at_rate(rate_per_s, 300).calls(), Objectives(ttft_s=1e-4))

    assert capacity(hopeless, 4.0, max_cells=6).best_per_s is None


def test_fewest_replicas_is_enough_and_one_fewer_is_not():
    def on(count):
        setup = replace(SETUP, num_replicas=count)
        return lambda rate: run(setup, TRAFFIC.at_rate(rate, 500).calls(), GOALS)

    plan = fewest_replicas(on, 150.0, most=16)
    tried = dict(plan.cells)
    assert tried[plan.num_replicas].is_met and plan.num_replicas > 1
    assert not tried[plan.num_replicas - 1].is_met
    assert fewest_replicas(on, 10_000.0, most=2).num_replicas is None


@pytest.mark.parametrize("num_prompts", [50, 300])
def test_few_prompts_ask_for_no_more_replicas_than_many(num_prompts):
    long_answers = Workload(input_len=40, output_len=30)  # 0.6 s each: 50 are sent within 1.7 s

    def on(count):
        fleet = replace(SETUP, num_replicas=count)

        def at(rate_per_s, num_sent):
            return run(fleet, long_answers.at_rate(rate_per_s, num_sent).calls(), GOALS)

        return with_enough(at, num_prompts)

    plan = fewest_replicas(on, 30.0, most=16)
    cell = dict(plan.cells)[plan.num_replicas]
    assert cell.is_met and cell.tally.measures().num_requests > 50
    assert 3 <= plan.num_replicas <= 4, "8 rows in about 22 ms a step: 2.5 replicas at least"


def test_pollaczek_khinchine_agrees_with_a_simulated_single_server():
    rng, now_s, free_s, waits = random.Random(8), 0.0, 0.0, []
    service = [0.5 if rng.random() < 0.2 else 0.05 for _ in range(60_000)]
    for service_s in service:
        now_s += rng.expovariate(4.0)
        waits.append(max(0.0, free_s - now_s))
        free_s = max(now_s, free_s) + service_s
    import numpy as np

    predicted = mg1_wait_s(4.0, np.array(service))
    assert sum(waits) / len(waits) == pytest.approx(predicted, rel=0.1)
    assert mg1_wait_s(100.0, np.array(service)) == float("inf")


# -- size


def test_memory_does_not_grow_with_the_number_of_requests():
    traffic = Workload(input_len=40, output_len=2, num_prompts=4_000, rate_per_s=20.0)
    held: list[int] = []

    def calls():
        for number, call in enumerate(traffic.calls()):
            if number in (2_000, 3_999):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            yield call

    tracemalloc.start()
    try:
        tally = run(SETUP, calls(), exact=False)
    finally:
        tracemalloc.stop()
    assert tally.measures().num_ok == 4_000
    # Histograms still fill up a little; an id kept for each request would be 130,000 bytes.
    assert held[1] < held[0] + 60_000, f"{held} bytes at 2,000 and at 4,000 requests"


def test_profiles_say_where_their_figures_come_from():
    assert "not measured" in NANO.source and "not measured" in H100_LLAMA_8B.source
    # 8 B parameters of 2 bytes at half of 3.35 TB/s, and 2 ms besides.
    assert H100_LLAMA_8B.cost.per_step_s == pytest.approx(2e-3 + 16.06e9 / 1.675e12, rel=1e-3)
    assert H100_LLAMA_8B.load_s == pytest.approx(8.03, rel=1e-3)
