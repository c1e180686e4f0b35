"""The experiments show what lesson 6 says they show, and could have shown otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minserve.learn.admissions import AdmissionByTokens, OverloadLadder
from minserve.learn.experiments import lesson6 as lab
from minserve.learn.experiments import lesson6_jobs as jobs
from minserve.learn.experiments import lesson6_overload as door
from minserve.learn.experiments import lesson6_routing as many
from minserve.learn.experiments.common import quantile, words
from minserve.learn.leases import JobLease
from minserve.learn.parts_of_load import open_loop
from minserve.scheduling.admission import DEFAULT_BUDGETS

SHORT_QUEUE = {kind: replace(b, max_queued_tokens=2000) for kind, b in DEFAULT_BUDGETS.items()}


def test_fixed_short_requests_promise_a_rate_that_real_lengths_cannot_keep():
    short, real = (lab.load(traffic, 15, count=200) for traffic in (lab.SHORT, lab.REAL))
    assert short["ttft.p95"] < lab.LIMIT_S < 2 * lab.LIMIT_S < real["ttft.p95"]


def test_mean_lengths_have_the_work_of_real_ones_and_not_their_tail():
    mean, real = (lab.load(traffic, 6) for traffic in (lab.means(), lab.REAL))
    assert mean.output_tokens_per_s == pytest.approx(real.output_tokens_per_s, rel=0.05)
    assert real["ttft.p50"] <= mean["ttft.p50"] and real["ttft.p95"] > 1.5 * mean["ttft.p95"]


def test_closed_loop_omits_what_an_open_one_shows():
    closed = [sent.latency_s for sent in lab.closed_loop(6000, lab.stalled())]
    sent = open_loop(20, 6000, lab.stalled())
    assert quantile(closed, 0.99) == pytest.approx(0.03)
    assert quantile([s.uncorrected_s for s in sent], 0.99) == pytest.approx(0.03)
    assert quantile([s.latency_s for s in sent], 0.99) == pytest.approx(1.8, abs=0.01)


def test_real_engine_answers_every_request_of_a_loop():
    from minserve.execution.simulated import SimulatedExecutor

    asked = [words(f"r{n}", 30, 4) for n in range(5)]
    sent = open_loop(50, 5, lab.one_connection(SimulatedExecutor(64, 16), asked))
    assert len(sent) == 5 and all(s.latency_s >= s.uncorrected_s > 0 for s in sent)


def test_mean_of_the_minutes_percentiles_is_not_the_percentile():
    seen = lab.busy_minutes()
    minutes = [quantile(some, 0.99) for some in lab.by_minute(seen)]
    everybody = quantile([ttft_s for _, ttft_s in seen], 0.99)
    assert everybody > 1.3 * sum(minutes) / len(minutes)


def test_few_samples_bound_no_p99_and_scatter_more():
    values = [n / 1000 for n in range(1000)]
    few, enough = lab.how_sure(values, 0.99, 50), lab.how_sure(values, 0.99, 3000)
    assert few[2] == "none from above" and enough[2].startswith("rank")
    low, high = (
        [float(v) for v in row[1].split(" to ")][1] - float(row[1].split(" to ")[0])
        for row in (few, enough)
    )
    assert low > high


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_formula_and_a_hundred_thousand_people_agree(load):
    for service_s in ([0.1], lab.work_s()):
        right = lab.formula_s(10 * load, service_s)
        assert lab.queue_waits(10 * load, service_s) == pytest.approx(right, rel=0.08)


def test_the_hockey_stick_is_flat_and_then_a_wall():
    rows = lab.swept().rows()
    assert rows[1]["ttft_p50_s"] < 2 * rows[0]["ttft_p50_s"]
    assert rows[-1]["ttft_p50_s"] > 20 * rows[0]["ttft_p50_s"] and not rows[-1]["is_steady"]


def test_a_door_serves_more_people_and_tells_the_others_soon():
    noon = door.crowd(16, seconds=30)
    nobody = door.serve(noon)
    mine = door.serve(noon, AdmissionByTokens, budgets=SHORT_QUEUE)

    def in_time(day):
        return sum(person.is_in_time for person in day.people)

    assert in_time(mine) > 1.5 * in_time(nobody)
    told = [p.first_told_s - p.arrival_s for p in mine.people if p.first_told_s is not None]
    assert quantile(told, 0.95) < 1.0
    as_told, hammering = (
        door.serve(noon, AdmissionByTokens, budgets=SHORT_QUEUE, returns=returns)
        for returns in (door.as_told, door.after_a_second)
    )
    asks = [sum(p.num_asks for p in day.people) for day in (as_told, hammering)]
    assert in_time(as_told) >= in_time(hammering) and asks[0] < asks[1]


def test_who_has_left_is_not_written_for_if_the_engine_hears_of_it():
    noon = door.crowd(16, seconds=20)
    hears, deaf = (door.serve(noon, cancels=cancels) for cancels in (True, False))
    assert hears.num_computed_tokens < deaf.num_computed_tokens
    assert sum(p.is_in_time for p in hears.people) >= sum(p.is_in_time for p in deaf.people)


def test_a_ladder_with_fitting_levels_serves_the_urgent_and_comes_down_again():
    swell = door.wave()
    fitting = door.with_levels(OverloadLadder, 0.15)
    pinned, climbed = (
        door.serve(swell, AdmissionByTokens, ladder=ladder) for ladder in (door.Pinned, fitting)
    )

    def urgent(day):
        return sum(p.is_in_time for p in day.people if p.priority == 0)

    assert urgent(climbed) > 1.5 * urgent(pinned)
    assert max(rung for _, rung in climbed.rungs) == 4 and (0 in [r for _, r in climbed.rungs[1:]])
    assert {rung for _, rung in pinned.rungs} == {0}


def test_people_first_serves_people_at_once_and_offline_work_later():
    night = door.night_shift()
    queue, first = (door.first_tokens(door.serve(night, **o)) for o in ({}, door.ONLINE_FIRST))
    assert first[0] < queue[0] / 10 and first[1] > queue[1]


# -- jobs


def test_job_is_done_once_wherever_its_worker_dies_under_a_part():
    for told in jobs.lives(JobLease):
        assert told["state"] == "done" and list(told["ledger"]).count("mail") == 1


def test_a_mail_is_sent_twice_unless_somebody_recognises_it():
    plain = jobs.crash_after_the_effect(JobLease, jobs.MailServer())
    keyed = jobs.crash_after_the_effect(JobLease, jobs.MailServer(honours_keys=True))
    outbox = jobs.crash_after_the_effect(JobLease, jobs.MailServer(), in_ledger=True)
    assert (plain, keyed, outbox) == ((2, 2, "done"), (2, 1, "done"), (2, 1, "done"))


def test_poison_ends_among_the_dead_and_can_be_redriven():
    rows = jobs.poison(JobLease)
    assert [row[1].split(",")[0] for row in rows[:4]] == [
        *(f"attempt {n} kills its worker" for n in (1, 2, 3)),
        "dead",
    ]
    assert rows[-1][1] == "redriven by hand: queued"
    assert "Retry-After" in jobs.full(JobLease)


# -- more than one engine


def test_hedging_cuts_a_chance_tail_and_buys_nothing_under_overload():
    quiet, hedged = (many.hedged(4, share) for share in (0.0, 1.0))
    assert float(hedged[1]) < float(quiet[1]) / 3 and int(quiet[2]) == 0
    busy, wasted = (many.hedged(80, share) for share in (0.0, 1.0))
    assert float(wasted[1]) > 0.95 * float(busy[1]) and int(wasted[2]) > 100


def test_utilisation_cannot_tell_a_comfortable_load_from_one_that_drowns():
    comfortable, drowning = (many.signals_at(rate) for rate in (6, 24))
    assert comfortable[1] == drowning[1] == "100%"
    assert comfortable[2] == "0" and int(drowning[2].replace(",", "")) > 10_000


def test_warm_capacity_keeps_the_promise_that_loading_breaks():
    late = many.scaling(True, many.on_backlog())
    warm = many.scaling(True, many.kept_warm(2), start=2)
    assert float(late[0].rstrip("%")) < 90 < 99 < float(warm[0].rstrip("%"))
    steady = [
        float(many.scaling(False, rule)[3]) for rule in (many.on_backlog(), many.on_utilisation())
    ]
    assert steady[1] > 2 * steady[0]


def test_the_cheap_route_is_believed_where_it_is_wrong():
    from minserve.execution.torch_executor import TorchExecutor

    nano = TorchExecutor("nano", num_blocks=512, fast=False)
    both, whole = many.cascade(nano, per_slice=6), many.cascade(nano, ("whole",), per_slice=6)
    assert both.num_tokens < whole.num_tokens / 2
    assert both.by_slice["account"] == (6, 6, 6)
    assert both.by_slice["chat"][2] < whole.by_slice["chat"][2] == 6
    assert both.by_slice["chat"][1] == 6  # nothing escalated


def test_the_door_of_a_real_engine_keeps_its_quota_whatever_the_part_says():
    from minserve.execution.simulated import SimulatedExecutor

    class LetsAllIn(AdmissionByTokens):
        budget = pressure = deadline = lambda self, request, load: None

    asked = [words(f"r{n}", 100, 20) for n in range(4)]
    rows = door.knock(SimulatedExecutor(256, 16), asked, LetsAllIn, 200, max_concurrent=2)
    assert [row[3].split(":")[0] for row in rows] == ["comes in"] * 2 + ["too_many_requests"] * 2
    asked = [words(f"s{n}", 100, 20) for n in range(4)]
    rows = door.knock(SimulatedExecutor(256, 16), asked, AdmissionByTokens, 240)
    assert [row[3].split(":")[0] for row in rows] == ["comes in"] * 2 + ["queue_full"] * 2
