"""Orderings: whose turn it is, that nobody starves, and that ties keep the order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, content_engine, drain, small

from minserve.request import Identity, Status
from minserve.scheduling.batching import ContinuousBatching, StaticBatching
from minserve.scheduling.expected import ShortestExpected
from minserve.scheduling.ordering import (
    EarliestDeadline,
    FirstComeFirstServed,
    PriorityWithAgeing,
    VirtualTokenCounter,
)


def admissions(engine) -> list[str]:
    return [event.request_id for event in engine.log.events if event.kind == "admitted"]


def served_order(ordering, requests) -> list[str]:
    """In which order requests that all wait are admitted, one at a time."""
    engine = content_engine(StaticBatching(1), ordering=ordering, num_blocks=64)
    for request in requests:
        engine.submit(request, 100.0)
    drain(engine, 100.0)
    return admissions(engine)


arrivals = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(arrivals=arrivals)
@small(50)
def test_first_come_first_served_with_ties_in_the_order_of_submission(arrivals):
    requests = [ask(f"r{n}", arrival_s=float(time_s)) for n, time_s in enumerate(arrivals)]
    right = [r.id for r in sorted(requests, key=lambda r: r.arrival_s)]
    assert served_order(FirstComeFirstServed(), requests) == right


@given(deadlines=st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=8))
@small(50)
def test_the_earliest_deadline_goes_first_and_none_counts_as_the_default(deadlines):
    requests = [
        ask(f"r{n}", deadline_s=due and float(due), arrival_s=1.0)
        for n, due in enumerate(deadlines)
    ]
    due_s = {r.id: 1.0 + 3.0 if r.deadline_s is None else r.deadline_s for r in requests}
    right = sorted(due_s, key=due_s.get)
    assert served_order(EarliestDeadline(default_s=3.0), requests) == right


@pytest.mark.parametrize(("waited_s", "first"), [(9.0, "urgent"), (11.0, "old")])
def test_waiting_raises_a_priority_by_one_level_per_ageing_time(waited_s, first):
    old = ask("old", priority=0, arrival_s=0.0)
    urgent = ask("urgent", priority=1, arrival_s=waited_s)
    order = served_order(PriorityWithAgeing(ageing_s=10.0), [urgent, old])
    assert order[0] == first


@pytest.mark.parametrize(
    ("ordering", "urgent"),
    [
        (FirstComeFirstServed, {}),
        (EarliestDeadline, {}),
        (PriorityWithAgeing, {"priority": 9}),
        (VirtualTokenCounter, {"identity": Identity("other")}),
        (lambda: ShortestExpected(lambda r: 100 if r.id == "humble" else 1), {}),
    ],
)
def test_an_endless_stream_of_urgent_requests_starves_nobody(ordering, urgent):
    engine = content_engine(StaticBatching(1), ordering=ordering())
    humble = ask("humble", max_tokens=1)
    engine.submit(humble, 0.0)
    for tick in range(400):
        now_s = float(tick)
        is_hurried = ordering is EarliestDeadline
        more = {"deadline_s": now_s + 5.0} if is_hurried else {}
        engine.submit(ask(f"u{tick}", max_tokens=1, arrival_s=now_s, **urgent, **more), now_s)
        engine.step(now_s)
        if humble.status is Status.FINISHED:
            return
    raise AssertionError("the humble request never ran")


@pytest.mark.parametrize(
    "ordering", [FirstComeFirstServed, EarliestDeadline, PriorityWithAgeing, ShortestExpected]
)
def test_a_fixed_order_of_two_waiting_requests_never_changes(ordering):
    """What `is_fixed` promises: the queue is sorted once, on entry."""
    requests = [
        ask(f"r{n}", arrival_s=float(n), priority=n % 3, deadline_s=n % 2 * 9.0 or None)
        for n in range(6)
    ]

    def order(now_s):
        return [r.id for r in sorted(requests, key=lambda r: ordering().key(r, now_s))]

    assert ordering.is_fixed
    assert len({tuple(order(now_s)) for now_s in (0.0, 5.0, 50.0, 1e6)}) == 1


@pytest.mark.parametrize("is_tied", [True, False], ids=["one arrival time", "apart"])
def test_a_preempted_request_keeps_its_place_in_the_queue(is_tied):
    engine = content_engine(ContinuousBatching(64, 3), num_blocks=6, block_size=2)
    requests = [ask(f"r{n}", 4, 8, arrival_s=0.0 if is_tied else n / 10) for n in range(5)]
    for request in requests:
        engine.submit(request, 1.0)
    for tick in range(200):
        engine.step(1.0 + tick)
        waiting = [request.id for request in engine.scheduler.waiting]
        assert waiting == sorted(waiting)
    assert any(request.num_preemptions for request in requests)
    assert all(request.status is Status.FINISHED for request in requests)


# -- the virtual token counter


@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), min_size=2, max_size=2),
    max_running=st.integers(1, 4),
)
@small(40)
def test_two_backlogged_tenants_get_equal_service_within_the_bound(sizes, max_running):
    """Theorem of the paper: counters differ by at most 2 max(prompt, tokens in a batch)."""
    policy = ContinuousBatching(token_budget=64, max_running=max_running)
    ordering = VirtualTokenCounter()
    engine = content_engine(policy, num_blocks=400, ordering=ordering)
    tenants = dict(zip("ab", sizes, strict=True))
    for n in range(30):
        for tenant, (prompt, max_tokens) in tenants.items():
            engine.submit(ask(f"{tenant}{n}", prompt, max_tokens, identity=Identity(tenant)), 0.0)
    longest_prompt = max(prompt for prompt, _ in sizes)
    largest_batch = max_running * max(p + m for p, m in sizes)
    bound = 2 * max(longest_prompt, ordering.output_weight * largest_batch)
    gaps = []
    while {r.identity.tenant for r in engine.scheduler.waiting} == {"a", "b"}:
        engine.step(0.0)
        gaps.append(abs(ordering.counters["a"] - ordering.counters["b"]))
    assert max(gaps) <= bound


def test_the_tenant_served_less_goes_first_even_with_a_much_longer_backlog_against_it():
    engine = content_engine(StaticBatching(1), ordering=VirtualTokenCounter())
    for n in range(6):
        engine.submit(ask(f"a{n}", identity=Identity("a")), 0.0)
    engine.step(0.0)
    engine.submit(ask("b0", identity=Identity("b")), 1.0)
    drain(engine, 1.0)
    assert admissions(engine)[:2] == ["a0", "b0"]


def test_being_away_saves_up_no_credit():
    ordering = VirtualTokenCounter()
    engine = content_engine(StaticBatching(1), ordering=ordering)
    engine.submit(ask("b-early", identity=Identity("b"), max_tokens=1), 0.0)
    drain(engine)
    for n in range(10):
        engine.submit(ask(f"a{n}", identity=Identity("a")), 0.0)
    for _ in range(20):
        engine.step(0.0)
    for n in range(4):
        engine.submit(ask(f"b{n}", identity=Identity("b")), 50.0)
    drain(engine, 50.0)
    order = [name[0] for name in admissions(engine)[1:]]
    came = order.index("b")
    assert order[came : came + 8] in (list("babababa"), list("baababab"), list("bababab") + ["a"])


def test_an_output_token_weighs_as_the_weight_says():
    ordering = VirtualTokenCounter(output_weight=3.0)
    engine = content_engine(ordering=ordering)
    engine.submit(ask("a", 7, 4, identity=Identity("t")), 0.0)
    drain(engine)
    assert ordering.counters == {"t": 7 + 3.0 * 4}


def test_who_is_away_is_forgotten_unless_it_was_served_more_than_the_least_of_those_here():
    ordering = VirtualTokenCounter(output_weight=1.0)
    stays = ask("stays", identity=Identity("stays"))
    ordering.arrived(stays, [])
    for n in range(2_000):
        guest = ask(f"r{n}", identity=Identity(f"t{n}"))
        ordering.arrived(guest, [stays])
        ordering.served(guest, n % 7, 0)
        ordering.served(stays, 0, 1)
    assert len(ordering.counters) < 20
    assert ordering.counters["t1999"] == 1_999.0 + 1_999 % 7
    ordering.arrived(guest, [stays])
    assert ordering.counters["t1999"] == 2_003.0


def test_when_nobody_is_there_all_are_level():
    ordering = VirtualTokenCounter()
    engine = content_engine(ordering=ordering)
    for n in range(50):
        engine.submit(ask(f"r{n}", identity=Identity(f"t{n}")), float(n))
        drain(engine, float(n))
    assert len(ordering.counters) == 1
    engine.submit(ask("again", identity=Identity("t0")), 99.0)
    assert ordering.counters == {"t0": 0.0}


def test_who_is_expected_to_need_least_goes_first_prompts_count_a_little():
    requests = [
        ask("long", max_tokens=40),
        ask("read", prompt=60, max_tokens=4),  # 4 + 60 / 20 is more than 5 + 8 / 20
        ask("short", max_tokens=5),
    ]
    assert served_order(ShortestExpected(), requests) == ["short", "read", "long"]
    guessed = {"long": 1, "read": 20, "short": 9}
    ordering = ShortestExpected(lambda request: guessed[request.id], prompt_weight=0)
    again = [ask(r.id, r.num_prompt_tokens, r.sampling.max_tokens) for r in requests]
    assert served_order(ordering, again) == ["long", "short", "read"]


@pytest.mark.parametrize(("later_s", "first"), [(0.3, "short"), (0.5, "long")])
def test_a_long_request_gives_way_only_to_those_who_come_soon_after(later_s, first):
    requests = [ask("long", 1, 22), ask("short", 1, 2, arrival_s=later_s)]
    assert served_order(ShortestExpected(token_s=0.02), requests)[0] == first


def test_shortest_first_makes_the_mean_wait_shorter():
    def mean_wait_s(ordering):
        requests = [ask(f"r{n}", 8, 40 if n % 4 == 0 else 2) for n in range(16)]
        engine = content_engine(StaticBatching(1), ordering=ordering, num_blocks=64)
        for request in requests:
            engine.submit(request, 0.0)
        step = 0
        while engine.step(float(step)):
            step += 1
        return sum(request.timeline.queue_delay_s for request in requests) / len(requests)

    assert mean_wait_s(ShortestExpected()) < mean_wait_s(FirstComeFirstServed()) / 2
