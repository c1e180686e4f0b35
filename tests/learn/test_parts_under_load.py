"""Lesson 6's parts in the real thing: admission and ladder in an engine, leases in a job store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.jobs.job import Backoff, Kind, LostLease, Progress, State, Submission
from minserve.jobs.store import JobStore
from minserve.jobs.worker import Worker
from minserve.learn.admissions import AdmissionByTokens, OverloadLadder
from minserve.learn.experiments.common import words
from minserve.learn.leases import JobLease
from minserve.learn.parts_of_load import (
    install_admission,
    install_job_lease,
    install_overload_ladder,
)
from minserve.output import Detokenizer
from minserve.request import Identity, WorkloadClass
from minserve.scheduling.admission import DEFAULT_BUDGETS, Admission, Refuse
from minserve.scheduling.overload import LadderState, Rung
from minserve.scheduling.quota import PlainQuota
from minserve.service import Ended, Service

WHO = Identity("t")
TIGHT = {kind: replace(budget, max_queued_tokens=900) for kind, budget in DEFAULT_BUDGETS.items()}


def serve(install, quota=None, count=12):
    """What became of requests that come all at once: refusal codes and 'served'."""
    engine = Engine(SimulatedExecutor(64, 16, cost=CostModel(0.02)), prefix_caching=False)
    loop = EventLoop(VirtualClock())
    admission = Admission(engine.log)
    install(admission)
    service = Service(
        LocalClient(engine, loop), lambda stop: Detokenizer(lambda ids: "x" * len(ids)), admission
    )
    heard = {}
    for number in range(count):
        request = words(f"r{number}", 150, 50)
        listen = heard.setdefault(request.id, []).append
        service.submit(request, listen, *([quota] if quota else []))
    loop.run()
    engine.check_integrity()
    return [
        output.code if isinstance(output, Refuse) else "served"
        for outputs in heard.values()
        for output in outputs
        if isinstance(output, Refuse | Ended)
    ]


def test_part_admission_decides_in_a_service_and_by_its_own_budgets():
    asked = []

    class Watched(AdmissionByTokens):
        def budget(self, request, load):
            asked.append(request.id)
            return super().budget(request, load)

    found = serve(lambda admission: install_admission(admission, Watched, TIGHT), count=40)
    assert found.count("queue_full") > 10 and found.count("served") > 4
    assert found.count("queue_full") + found.count("served") == len(set(asked)) == 40
    everybody = serve(lambda admission: install_admission(admission, Watched), count=40)
    assert everybody.count("served") == 40


def test_part_admission_weakens_no_quota():
    class LetsAllIn(AdmissionByTokens):
        budget = pressure = deadline = lambda self, request, load: None

    found = serve(
        lambda admission: install_admission(admission, LetsAllIn), PlainQuota(max_concurrent=2)
    )
    assert found.count("too_many_requests") == 10 and found.count("served") == 2


def test_part_admission_that_answers_neither_none_nor_refuse_is_named():
    class Confused(AdmissionByTokens):
        def budget(self, request, load):
            return True

    with pytest.raises(ConfigError, match="the part `admission` answers True"):
        serve(lambda admission: install_admission(admission, Confused))


def test_part_ladder_climbs_in_an_engine_and_low_priority_gives_way():
    class Nervous(OverloadLadder):
        def next(self, state, signals, now_s):
            return LadderState(4)  # a plain number will do

    admission = Admission(Engine(SimulatedExecutor(64, 16)).log)
    install_overload_ladder(admission, Nervous)
    request = words("low", 10, 10)
    request.workload_class = WorkloadClass.BATCH
    assert admission.ask(request, 1.0).code == "overloaded" and admission.rung is Rung.REJECT_LOW
    install_overload_ladder(admission, type("Lost", (OverloadLadder,), {"next": lambda *a: 9}))
    with pytest.raises(ConfigError, match="overload_ladder"):
        admission.look(2.0)


# -- job_lease


class Logged(JobLease):
    """Writes down what it is asked."""

    calls: list[str] = []

    def claim(self, now_s):
        self.calls.append("claim")
        return super().claim(now_s)

    def renew(self, *told):
        self.calls.append("renew")
        return super().renew(*told)

    def complete(self, *told):
        self.calls.append("complete")
        return super().complete(*told)

    def fail(self, *told):
        self.calls.append("fail")
        return super().fail(*told)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def make(tmp_path, now):
    def made(part, **more):
        kind = Kind("echo", "jobs_handlers:echo", max_attempts=2, backoff=Backoff(1.0))
        options = {"clock": lambda: now[0], "draw": lambda: 0.5} | more
        store = JobStore(f"sqlite:///{tmp_path}/jobs.db", [kind], **options)
        return install_job_lease(store, part)

    Logged.calls.clear()
    return made


def test_part_decides_the_whole_life_of_a_job_and_a_zombie_is_refused(make, now):
    store = make(Logged)
    job = store.enqueue(WHO, Submission("echo", 1))
    [old] = store.claim("first", lease_s=10)
    assert store.claim("second") == []
    assert store.renew([Progress(job.id, old.token)], 10) == {job.id}
    now[0] = 30.0
    store.sweep()  # the lease ran out: it waits for its second attempt
    now[0] = 40.0
    [new] = store.claim("second", lease_s=10)
    with pytest.raises(LostLease):
        store.complete(old, "late")
    assert store.renew([Progress(job.id, old.token)], 10) == set()
    store.complete(new, "in time", {"mail": 1})
    store.complete(new, "in time", {"mail": 1})  # its acknowledgement was lost: it is done
    assert store.get(WHO, job.id).result == "in time"
    assert Logged.calls.count("claim") == 2 and Logged.calls.count("complete") == 2


def test_part_ends_the_budget_of_attempts(make, now):
    class Impatient(JobLease):
        def fail(self, job_id, token):
            self.max_attempts = 1
            return super().fail(job_id, token)

    store = make(Impatient)
    store.enqueue(WHO, Submission("echo", 1))
    [lease] = store.claim("first")
    assert store.fail(lease, "broken") is State.DEAD


def test_store_stays_the_backstop_of_a_part_without_a_fence(make, now):
    class NoFence(JobLease):
        def _held(self, job_id, token):
            return self.jobs[job_id]

    store = make(NoFence)
    store.enqueue(WHO, Submission("echo", 1))
    [old] = store.claim("first", lease_s=10)
    now[0] = 30.0
    store.sweep()
    now[0] = 40.0
    store.claim("second", lease_s=10)
    with pytest.raises(LostLease):
        store.complete(old, "late")


def test_claim_that_the_part_refuses_is_given_back_and_does_not_count(make):
    store = make(type("Never", (JobLease,), {"claim": lambda self, now_s: None}))
    job = store.enqueue(WHO, Submission("echo", 1))
    assert store.claim("first") == []
    found = store.get(WHO, job.id)
    assert (found.state, found.attempts) == (State.QUEUED, 0)


def test_real_worker_goes_through_the_part(make, monkeypatch):
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parents[1] / "jobs"))
    store = make(Logged, clock=None)
    jobs = [store.enqueue(WHO, Submission("echo", number)) for number in range(3)]
    Worker(store, concurrency=1).run(lambda: not store.counts().num_open)
    assert [store.get(WHO, job.id).result for job in jobs] == [0, 1, 2]
    assert Logged.calls.count("claim") == Logged.calls.count("complete") == 3
