"""Offline work takes what online leaves: neither hurts the other, on a virtual clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, check_drained, check_output, content_engine, drain, small

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Admitted, StepEnded, StepStarted
from minserve.execution.simulated import SimulatedExecutor
from minserve.metrics import summarise
from minserve.request import Identity, Request, SamplingParams, WorkloadClass
from minserve.scheduling.ordering import Ordering, VirtualTokenCounter
from minserve.scheduling.queue import Queue
from minserve.scheduling.rates import Rates
from minserve.scheduling.reservation import OnlineFirst, ReservedBatching

NUM_BLOCKS, RESERVED = 600, 150
STEP_CAP_S = 0.015
END_S = 30.0


def interactive(num: int = 120, seed: int = 0) -> list[Request]:
    """A person asks every 0.2 s on average: 32 to 96 tokens in, 8 to 24 out."""
    rng, time_s, requests = random.Random(seed), 0.5, []
    for n in range(num):
        time_s += rng.expovariate(5.0)
        prompt = tuple(rng.randrange(50_000) for _ in range(rng.randint(32, 96)))
        sampling = SamplingParams(max_tokens=rng.randint(8, 24), ignore_eos=True)
        kind = WorkloadClass.INTERACTIVE
        requests.append(Request(f"i{n}", prompt, sampling, workload_class=kind, arrival_s=time_s))
    return requests


def batch(num: int = 800, seed: int = 1) -> list[Request]:
    """More than 30 s of reports, all sent at once: 100 to 600 tokens in, 20 to 200 out."""
    rng, requests = random.Random(seed), []
    for n in range(num):
        prompt = tuple(rng.randrange(50_000) for _ in range(rng.randint(100, 600)))
        sampling = SamplingParams(max_tokens=rng.randint(20, 200), ignore_eos=True)
        requests.append(Request(f"b{n}", prompt, sampling, workload_class=WorkloadClass.BATCH))
    return requests


def serve(requests, ordering: Ordering | None = None, end_s: float = END_S) -> Engine:
    """Serve `requests` until `end_s` of virtual time; the engine with its log."""
    rates = Rates()
    policy = ReservedBatching(256, 32, reserved_blocks=RESERVED, step_cap_s=STEP_CAP_S, rates=rates)
    ordering = ordering or OnlineFirst(Ordering())
    engine = Engine(SimulatedExecutor(NUM_BLOCKS), policy, ordering=ordering)
    engine.log.listen(rates.note)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    for request in requests:
        client.send(request)
    client.loop.run(lambda: client.loop.clock.now_s() > end_s)
    return engine


def steps_s(engine) -> list[float]:
    starts = {e.step: e.time_s for e in engine.log.events if isinstance(e, StepStarted)}
    return [e.time_s - starts[e.step] for e in engine.log.events if isinstance(e, StepEnded)]


def num_computed(engine) -> int:
    return sum(n for e in engine.log.events if isinstance(e, StepStarted) for _, n, _ in e.rows)


def test_interactive_p95_ttft_stays_within_unloaded_plus_two_step_caps_while_offline_saturates():
    alone, mixed = interactive(), interactive()
    unloaded = summarise(alone, serve(alone).log.events)
    engine = serve([*batch(), *mixed])
    loaded = summarise(mixed, engine.log.events)
    assert loaded.num_ok == unloaded.num_ok == len(mixed)
    assert loaded.ttft_p95_s <= unloaded.ttft_p95_s + 2 * STEP_CAP_S
    assert sorted(steps_s(engine))[int(0.99 * len(steps_s(engine)))] <= 1.1 * STEP_CAP_S
    assert engine.scheduler.waiting, "offline work was to be waiting all the time"


def test_without_the_reserve_the_same_offline_work_does_hurt():
    """What the rule is worth: first come, first served makes people wait behind the reports."""
    mixed = interactive()
    engine = serve([*batch(), *mixed], Ordering())
    waits = [r.timeline.queue_delay_s for r in mixed if r.timeline.queue_delay_s is not None]
    assert len(waits) < len(mixed) or max(waits) > 10 * STEP_CAP_S
    assert engine.scheduler.waiting


def test_offline_gets_all_that_is_left():
    """Work-conserving: no idle gap, and the two together do as much as offline alone."""
    alone, together = serve(batch()), serve([*batch(), *interactive()])
    assert num_computed(together) >= 0.95 * num_computed(alone)
    busy_s = sum(steps_s(together))
    assert busy_s >= 0.999 * END_S


def test_offline_goes_on_while_online_work_alone_could_fill_every_step():
    rng = random.Random(2)
    crowd = [
        Request(
            f"i{n}",
            tuple(rng.randrange(50_000) for _ in range(200)),
            SamplingParams(max_tokens=20, ignore_eos=True),
            workload_class=WorkloadClass.INTERACTIVE,
        )
        for n in range(3000)
    ]
    reports = batch(20)
    serve([*crowd, *reports])
    assert any(not r.timeline.finished_s for r in crowd), "online was to be backlogged throughout"
    assert all(r.timeline.finished_s for r in reports)


@given(
    kinds=st.lists(st.sampled_from(list(WorkloadClass)), min_size=1, max_size=10),
    max_running=st.integers(1, 4),
    reserved=st.integers(0, 12),
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=10, max_size=10),
)
@small(150)
def test_everybody_ends_with_the_right_tokens_whatever_is_reserved(
    kinds, max_running, reserved, sizes
):
    policy = ReservedBatching(
        max_running + 8, max_running, block_size=4, reserved_blocks=reserved, step_cap_s=1.0
    )
    engine = content_engine(policy, num_blocks=12, ordering=OnlineFirst(VirtualTokenCounter()))
    requests = [
        ask(f"r{n}", *size, workload_class=kind, identity=Identity("ab"[n % 2]))
        for n, (kind, size) in enumerate(zip(kinds, sizes, strict=False))
    ]
    for request in requests:
        engine.submit(request, 0.0)
    drain(engine)
    check_drained(engine)
    for request in requests:
        check_output(request)


def test_offline_is_never_admitted_into_the_reserve_but_online_is():
    policy = ReservedBatching(64, 8, block_size=4, reserved_blocks=6)
    engine = content_engine(policy, num_blocks=16, ordering=OnlineFirst(Ordering()))
    for n in range(5):  # each may come to hold 4 blocks
        engine.submit(ask(f"b{n}", 8, 8, workload_class=WorkloadClass.BATCH), 0.0)
    engine.step(0.0)
    engine.step(0.0)
    assert [r.id for r in engine.scheduler.running] == ["b0", "b1"]
    engine.submit(ask("i", 20, 3, workload_class=WorkloadClass.INTERACTIVE), 1.0)
    engine.step(1.0)
    assert "i" in [r.id for r in engine.scheduler.running]


def test_a_single_offline_request_larger_than_the_rest_still_runs():
    policy = ReservedBatching(64, 8, block_size=4, reserved_blocks=12)
    engine = content_engine(policy, num_blocks=16, ordering=OnlineFirst(Ordering()))
    large = ask("b", 40, 8, workload_class=WorkloadClass.BATCH)
    engine.submit(large, 0.0)
    drain(engine)
    assert large.num_output_tokens == 8


def test_an_offline_decode_without_a_row_pauses_and_keeps_its_blocks():
    policy = ReservedBatching(64, 2, block_size=4)
    engine = content_engine(policy, num_blocks=64, ordering=OnlineFirst(Ordering()))
    reports = [ask(f"b{n}", 4, 30, workload_class=WorkloadClass.BATCH) for n in range(2)]
    for report in reports:
        engine.submit(report, 0.0)
    for _ in range(4):
        engine.step(0.0)
    engine.submit(ask("i", 4, 6, workload_class=WorkloadClass.INTERACTIVE), 1.0)
    before = [report.num_output_tokens for report in reports]
    for _ in range(5):
        engine.step(1.0)
    assert [r.num_output_tokens - n for r, n in zip(reports, before, strict=True)][0] >= 4
    assert not any(report.num_preemptions for report in reports)
    drain(engine, 2.0)
    for report in reports:
        check_output(report)


def test_two_backlogged_tenants_get_equal_service_though_one_sends_ten_times_more():
    rng = random.Random(3)

    def requests(tenant, num):
        return [
            Request(
                f"{tenant}{n}",
                tuple(rng.randrange(50_000) for _ in range(rng.randint(100, 900))),
                SamplingParams(max_tokens=rng.randint(20, 150), ignore_eos=True),
                Identity(tenant),
            )
            for n in range(num)
        ]

    loud, quiet = requests("loud", 1500), requests("quiet", 150)
    engine = serve([*loud, *quiet], OnlineFirst(VirtualTokenCounter()), end_s=4.0)
    waiting = {request.identity.tenant for request in engine.scheduler.waiting}
    assert waiting == {"loud", "quiet"}, "both were to be backlogged to the end"
    served = [sum(r.num_computed_tokens for r in side) for side in (loud, quiet)]
    assert min(served) > 10_000
    assert max(served) <= 1.1 * min(served)


@pytest.mark.parametrize("num_online", [3, 200])
def test_a_policy_is_shown_both_kinds_however_many_of_one_wait(num_online):
    ordering = OnlineFirst(Ordering())
    online = [ask(f"i{n}") for n in range(num_online)]
    offline = [ask(f"b{n}", workload_class=WorkloadClass.BATCH) for n in range(200)]
    shown = ordering.shown(Queue(ordering, [*online, *offline]), 64)
    assert shown == [*online[:64], *offline[:64]]


def test_rates_are_those_of_the_executor():
    """From steps alone: 4 ms for 4 decodes, and 50 us more for each prefill token."""
    rates = Rates()
    for step in range(200):
        num_prefill = 100 if step % 3 == 0 else 0
        rows = [(f"d{n}", 1, 50) for n in range(4)] + [("p", num_prefill, 100)] * bool(num_prefill)
        rates.note(StepStarted(float(step), step, tuple(rows), 0, 1, 1, 1))
        rates.note(StepEnded(step + 0.004 + 5e-5 * num_prefill, step))
    assert rates.decode_step_s == pytest.approx(0.004, rel=0.01)
    assert rates.prefill_tokens_per_s == pytest.approx(20_000, rel=0.01)
    assert rates.tokens_within(0.014, 4) == pytest.approx(200, abs=3)


def test_tokens_found_in_the_prefix_cache_count_as_got_through():
    rates = Rates()
    rates.note(Admitted(0.0, "r", 64))
    rates.note(StepStarted(0.0, 1, (("r", 36, 100),), 0, 1, 1, 1))
    rates.note(StepEnded(0.1, 1))
    assert rates.tokens_per_s == pytest.approx(1000, rel=0.01)


def test_the_fit_tells_decodes_from_prefill_though_no_step_has_one_alone():
    """Saturated: every step has both. 2 ms, 0.5 ms a decode and 0.1 ms a prefill token."""
    rates, rng = Rates(), random.Random(0)
    for step in range(300):
        num_decodes, num_prefill = rng.randint(8, 32), rng.randint(2, 60)
        rows = (*((f"d{n}", 1, 50) for n in range(num_decodes)), ("p", num_prefill, 100))
        took_s = 0.002 + 5e-4 * num_decodes + 1e-4 * num_prefill
        rates.note(StepStarted(float(step), step, rows, 0, 1, 1, 1))
        rates.note(StepEnded(step + took_s, step))
    assert rates.prefill_tokens_per_s == pytest.approx(10_000, rel=0.05)
    assert rates.tokens_within(0.022, 20) == pytest.approx(100, abs=6)
