"""Who is let in, who is told when to return, and that the books always balance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ask, content_engine, drain, small

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import RequestTooLarge
from minserve.events import EventLog, StepEnded, StepStarted
from minserve.execution.simulated import SimulatedExecutor
from minserve.request import Identity, WorkloadClass
from minserve.scheduling.admission import (
    Admission,
    AdmissionPolicy,
    Admit,
    ClassBudget,
    Defer,
    Load,
    Refuse,
)
from minserve.scheduling.overload import CRITICAL_ROLE, Ladder, Rung
from minserve.scheduling.quota import PlainQuota, TokenBucket
from minserve.scheduling.rates import Rates
from minserve.service import Ended, Service

BATCH, INTERACTIVE = WorkloadClass.BATCH, WorkloadClass.INTERACTIVE
STANDARD = WorkloadClass.STANDARD
INF = float("inf")
NEVER = Ladder(drain_s=(INF,) * 5, queue_age_s=(INF,) * 5, deadline_risk=(INF,) * 5)


def load(**changes) -> Load:
    """An idle engine of 1,000 tokens/s that prefills 2,000 and decodes one in 20 ms."""
    rates = Rates(1_000.0, 2_000.0, 0.02)
    return replace(Load(100.0, {}, {}, 0.0, 1.0, rates, Rung.NORMAL), **changes)


def decide(request, policy=None, **changes):
    request.arrival_s = request.arrival_s or 100.0
    return (policy or AdmissionPolicy(max_defer_s=0.0)).decide(request, load(**changes))


# -- each question


def test_an_idle_engine_admits():
    assert decide(ask("r", 8, 4)) == Admit(4)


def test_a_full_queue_says_when_it_will_have_room_for_this_request():
    policy = AdmissionPolicy({STANDARD: ClassBudget(max_queued_tokens=5_000)}, max_defer_s=0.0)
    refused = decide(ask("r", 900, 100), policy, queued_tokens={STANDARD: 6_000})
    assert refused.retry_after_s == pytest.approx(2.0)
    assert (refused.code, refused.may_become_job) == ("queue_full", True)
    refused = decide(ask("r", 900, 100), policy, queued_tokens={STANDARD: 4_500})
    assert refused.retry_after_s == pytest.approx(0.5)
    assert decide(ask("r", 900, 100), policy, queued_tokens={STANDARD: 4_000}) == Admit(100)


def test_an_empty_queue_takes_a_request_larger_than_its_budget():
    policy = AdmissionPolicy({STANDARD: ClassBudget(max_queued_tokens=10)})
    assert decide(ask("r", 900, 100), policy) == Admit(100)


def test_one_class_may_be_full_while_another_has_room():
    full = {BATCH: 10**9}
    assert isinstance(decide(ask("b", workload_class=BATCH), queued_tokens=full), Refuse)
    assert isinstance(decide(ask("i", workload_class=INTERACTIVE), queued_tokens=full), Admit)


def test_too_many_unfinished_of_a_class_are_refused_until_one_ends():
    policy = AdmissionPolicy({STANDARD: ClassBudget(max_requests=10)}, max_defer_s=0.0)
    request = ask("r", 200, 51)  # takes 0.1 + 50 * 0.02 = 1.1 s
    refused = decide(request, policy, num_unfinished={STANDARD: 10})
    assert refused.code == "queue_full"
    assert refused.retry_after_s == pytest.approx(0.11)


def test_a_full_cache_keeps_offline_work_out_and_nobody_else():
    for kind, expected in ((BATCH, Refuse), (STANDARD, Admit), (INTERACTIVE, Admit)):
        request = ask("r", 90, 10, workload_class=kind)
        assert isinstance(decide(request, kv_pressure=0.97), expected)
    assert decide(ask("b", 90, 10, workload_class=BATCH), kv_pressure=0.97).code == "kv_pressure"


def test_a_deadline_is_judged_from_measured_rates():
    """0.1 s of prompt, 1 s of answer, and those ahead at 1,000 tokens/s."""
    request = ask("r", 200, 51, deadline_s=102.0)
    assert decide(request) == Admit(51)
    assert decide(request, queued_tokens={STANDARD: 800}) == Admit(51)
    refused = decide(request, queued_tokens={STANDARD: 1_500})
    assert refused.code == "deadline_infeasible"
    assert refused.retry_after_s == pytest.approx(0.6)
    assert "2.60 s and has 2.00 s" in refused.why


def test_coming_back_cannot_help_where_the_deadline_is_too_short_even_for_an_idle_engine():
    refused = decide(ask("r", 200, 51, deadline_s=101.0))
    assert refused.code == "deadline_infeasible" and refused.retry_after_s is None


def test_offline_work_does_not_count_against_the_deadline_of_online_work():
    queued = {BATCH: 100_000}
    online = ask("i", 200, 51, deadline_s=102.0, workload_class=INTERACTIVE)
    offline = ask("b", 200, 51, deadline_s=102.0, workload_class=BATCH)
    assert isinstance(decide(online, queued_tokens=queued), Admit)
    assert isinstance(decide(offline, queued_tokens=queued), Refuse)


def test_answers_that_end_early_make_more_deadlines_feasible():
    request = ask("r", 200, 500, deadline_s=102.0)
    assert isinstance(decide(request), Refuse)
    assert isinstance(decide(request, expected_output_share=0.1), Admit)


def test_a_rate_quota_says_when_its_bucket_is_full_enough():
    bucket = TokenBucket(50.0, 500.0, 20.0, 100.0)
    refused = decide(ask("r", 60, 40), bucket=bucket)
    assert refused.code == "rate_limited"
    assert refused.retry_after_s == pytest.approx(80 / 50)


def test_more_than_the_bucket_holds_waits_until_it_is_full():
    full = TokenBucket(50.0, 500.0, 500.0, 100.0)
    assert isinstance(decide(ask("r", 900, 100), bucket=full), Admit)
    assert TokenBucket(50.0, 500.0, 450.0, 0.0).wait_s(1_000) == pytest.approx(1.0)


def test_a_concurrency_quota_holds():
    quota = PlainQuota(max_concurrent=2)
    assert isinstance(decide(ask("r"), quota=quota, account_unfinished=1), Admit)
    refused = decide(ask("r", 200, 51), quota=quota, account_unfinished=2)
    assert refused.code == "too_many_requests"
    assert refused.retry_after_s == pytest.approx(1.1 / 2)


# -- the ladder


@pytest.mark.parametrize(
    ("rung", "batch", "person"),
    [
        (Rung.NORMAL, 500, 500),
        (Rung.SHORTEN_OUTPUT, 64, 500),
        (Rung.MOVE_TO_JOBS, "send_as_job", 500),
        (Rung.REJECT_LOW, "overloaded", 500),
        (Rung.RESERVE, "overloaded", 500),
    ],
)
def test_what_each_rung_does(rung, batch, person):
    for kind, expected in ((BATCH, batch), (INTERACTIVE, person)):
        decision = decide(ask("r", 8, 500, workload_class=kind), rung=rung)
        got = decision.max_tokens if isinstance(decision, Admit) else decision.code
        assert got == expected


def test_the_highest_rung_keeps_half_of_the_budget_for_the_critical_role():
    busy = {"num_unfinished": {INTERACTIVE: 300}, "rung": Rung.RESERVE}
    person = ask("p", workload_class=INTERACTIVE)
    critical = ask(
        "c", workload_class=INTERACTIVE, identity=Identity("t", "s", frozenset({CRITICAL_ROLE}))
    )
    assert isinstance(decide(person, **busy), Refuse)
    assert isinstance(decide(critical, **busy), Admit)


# -- deferring


def test_a_short_wait_is_spent_here_and_a_long_one_at_the_client():
    policy = AdmissionPolicy(max_defer_s=0.5)
    for level, expected in ((80.0, Defer(100.4, "your quota is 50 tokens/s")), (20.0, None)):
        decision = decide(ask("r", 60, 40), policy, bucket=TokenBucket(50, 500, level, 0))
        assert decision == expected if expected else isinstance(decision, Refuse)


def test_nobody_is_held_longer_than_the_limit_after_arrival():
    request = ask("r", 60, 40, arrival_s=99.7)
    decision = decide(request, AdmissionPolicy(max_defer_s=0.5), bucket=TokenBucket(50, 500, 80, 0))
    assert isinstance(decision, Refuse)


def test_an_infeasible_deadline_is_never_held():
    policy = AdmissionPolicy(max_defer_s=10.0)
    request = ask("r", 200, 51, deadline_s=102.0)
    assert isinstance(decide(request, policy, queued_tokens={STANDARD: 1_500}), Refuse)


# -- the books


def books(admission):
    return (
        admission._queued_tokens,
        admission._num_unfinished,
        {name: account.num_unfinished for name, account in admission._accounts.named.items()},
        admission._entries,
        admission._queue,
    )


def assert_empty(admission):
    queued, unfinished, accounts, entries, queue = books(admission)
    assert not any(queued.values()) and not any(unfinished.values())
    assert not any(accounts.values()) and not entries and not queue


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 8), st.sampled_from(list(WorkloadClass))),
        min_size=1,
        max_size=12,
    ),
    cancelled=st.sets(st.integers(0, 11)),
    num_steps=st.integers(0, 6),
)
@small(100)
def test_the_books_are_empty_once_everybody_has_ended_however(requests, cancelled, num_steps):
    engine = content_engine(num_blocks=14)  # small: some are preempted
    admission = Admission(engine.log)
    for n, (prompt, max_tokens, kind) in enumerate(requests):
        request = ask(f"r{n}", prompt, max_tokens, workload_class=kind)
        assert admission.ask(request, 0.0) == Admit(max_tokens)
        engine.submit(request, 0.0)
    for _ in range(num_steps):
        engine.step(0.0)
    waiting = engine.scheduler.waiting
    assert sum(admission.look(1.0).queued_tokens.values()) == sum(
        admission._entries[request.id].num_tokens for request in waiting
    )
    for n in cancelled:
        engine.cancel(f"r{n}", 1.0)
    drain(engine, 1.0)
    assert_empty(admission)


def test_a_request_that_the_engine_refuses_leaves_the_books():
    engine = content_engine(num_blocks=2)
    admission = Admission(engine.log)
    request = ask("r", 500, 500)
    admission.ask(request, 0.0)
    with pytest.raises(RequestTooLarge):
        engine.submit(request, 0.0)
    admission.leave("r")
    assert_empty(admission)


def test_leaving_does_not_strike_off_what_the_engine_has():
    engine = content_engine()
    admission = Admission(engine.log)
    request = ask("r")
    admission.ask(request, 0.0)
    engine.submit(request, 0.0)
    admission.leave("r")
    assert admission.look(0.0).num_unfinished[STANDARD] == 1
    drain(engine)
    assert_empty(admission)


def test_an_account_pays_for_what_it_used_and_nothing_for_what_never_ran():
    engine = content_engine(num_blocks=64)
    admission = Admission(engine.log, AdmissionPolicy(max_defer_s=0.0), burst_s=10.0)
    quota = PlainQuota(tokens_per_s=20.0)
    used, gone = ask("a", 30, 40, sampling={"stop_token_ids": ()}), ask("b", 30, 40)
    for request in (used, gone):
        assert isinstance(admission.ask(request, 0.0, quota), Admit)
        engine.submit(request, 0.0)
    engine.cancel("b", 0.0)
    drain(engine)
    bucket = admission._accounts.named["default"].bucket
    assert bucket.level == 200 - used.num_prompt_tokens - used.num_output_tokens


def test_a_tenant_over_its_quota_does_not_touch_another():
    admission = Admission(EventLog(), AdmissionPolicy(max_defer_s=0.0))
    quota = PlainQuota(max_concurrent=1)
    a1, a2, b1 = (ask(n, identity=Identity(n[0])) for n in ("a1", "a2", "b1"))
    assert isinstance(admission.ask(a1, 0.0, quota), Admit)
    assert isinstance(admission.ask(a2, 0.0, quota), Refuse)
    assert isinstance(admission.ask(b1, 0.0, quota), Admit)


def test_accounts_that_are_as_new_are_forgotten_and_no_other():
    admission = Admission(EventLog(), AdmissionPolicy({STANDARD: ClassBudget(10**9, 10**9)}))
    quota = PlainQuota(max_concurrent=5, tokens_per_s=100.0)
    admission.ask(ask("open", 10, 5, identity=Identity("open")), 0.0, quota)
    for n in range(20_000):
        now_s = float(n)
        request = ask(f"r{n}", 10, 5, identity=Identity(f"t{n}"))
        assert isinstance(admission.ask(request, now_s, quota), Admit)
        admission.leave(request.id)
        if n % 9 == 0:  # owes something, for ten seconds from now
            admission._accounts.named[f"t{n}"].bucket.level -= 999.0
    assert len(admission._accounts.named) <= 2_000
    assert admission._accounts.named["open"].num_unfinished == 1
    debtor = admission._accounts.named["t19998"]
    assert debtor.bucket.level < 1_000.0


def test_two_that_arrive_together_cannot_both_take_the_last_place():
    from concurrent.futures import ThreadPoolExecutor

    admission = Admission(EventLog(), AdmissionPolicy(max_defer_s=0.0))
    quota = PlainQuota(max_concurrent=5)
    with ThreadPoolExecutor(8) as threads:
        asked = threads.map(lambda n: admission.ask(ask(f"r{n}"), 0.0, quota), range(200))
        assert sum(isinstance(decision, Admit) for decision in asked) == 5


def test_the_ladder_climbs_with_the_queue_and_comes_down_when_nobody_asks():
    log = EventLog()
    admission = Admission(log, rates=Rates(tokens_per_s=100.0))
    for n in range(10):
        admission.ask(ask(f"r{n}", 90, 10), 0.1 * n)
    assert admission.look(1.0).rung == Rung.MOVE_TO_JOBS  # 1,000 tokens waiting: 10 s
    for n in range(10):
        admission.leave(f"r{n}")
    assert [admission.look(float(t)).rung for t in (2, 4, 6, 8)] == [3, 2, 1, 0]


def test_an_offline_backlog_is_no_overload():
    admission = Admission(EventLog(), rates=Rates(tokens_per_s=100.0))
    for n in range(50):
        admission.ask(ask(f"b{n}", 900, 100, workload_class=BATCH), 0.0)
    assert admission.look(500.0).rung is Rung.NORMAL


# -- on the virtual clock, with the whole service


class NoText:
    """A detokenizer that says nothing."""

    matched_stop = None

    def append(self, token_ids):
        return ""

    def finish(self):
        return ""


def test_retry_after_is_when_a_place_is_free():
    """The client that returns when told gets in, though all were turned away together."""
    engine = Engine(SimulatedExecutor(400))
    loop = EventLoop(VirtualClock())
    policy = AdmissionPolicy({STANDARD: ClassBudget(max_queued_tokens=4_000)}, max_defer_s=0.0)
    admission = Admission(engine.log, policy, ladder=NEVER)
    service = Service(LocalClient(engine, loop), lambda stop: NoText(), admission)
    tries, ended = {}, []

    def send(n, time_s):
        name = f"r{n}.{len(tries.setdefault(n, []))}"
        tries[n].append(time_s)

        def hear(output):
            if isinstance(output, Refuse):
                again_s = loop.clock.now_s() + output.retry_after_s
                loop.at(again_s, lambda: send(n, again_s))
            elif isinstance(output, Ended):
                ended.append(n)

        request = ask(name, 400, 40, arrival_s=time_s)
        service.submit(request, hear)

    for n in range(300):
        loop.at(0.005 * n, lambda n=n: send(n, 0.005 * n))
    loop.run()
    assert sorted(ended) == list(range(300))
    assert_empty(admission)
    assert max(map(len, tries.values())) > 1, "some were to be refused"
    assert sum(map(len, tries.values())) / len(tries) < 3


def test_a_refused_or_deferred_request_leaves_no_trace_in_the_engine():
    engine = Engine(SimulatedExecutor(400))
    loop = EventLoop(VirtualClock())
    admission = Admission(engine.log, ladder=NEVER)
    service = Service(LocalClient(engine, loop), lambda stop: NoText(), admission)
    quota, heard = PlainQuota(tokens_per_s=100.0), []
    for n in range(5):
        service.submit(ask(f"r{n}", 400, 40), heard.append, quota)
    loop.run()
    submitted = {e.request_id for e in engine.log.events if e.kind == "submitted"}
    refused = [output for output in heard if isinstance(output, Refuse)]
    assert len(submitted) == 2 and len(refused) == 3
    assert [e for e in engine.log.events if isinstance(e, StepStarted)]
    assert [e for e in engine.log.events if isinstance(e, StepEnded)]
