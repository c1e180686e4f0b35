"""Document reports as durable jobs: the same answers, and people wait less. No model is needed."""

from __future__ import annotations

import pytest

from minserve.cli import choices, replay_reports, replay_rows
from minserve.clock import VirtualClock
from minserve.events import Admitted, Finished
from minserve.execution.simulated import SimulatedExecutor
from minserve.jobs.job import State
from minserve.jobs.store import JobStore
from minserve.northstar.deferred import KIND, DeferringClient
from minserve.northstar.traffic import make_traffic
from minserve.request import Identity


def encode(text: str) -> list[int]:
    return [sum(word.encode()) for word in text.split()]


@pytest.fixture(scope="module")
def traffic():
    return make_traffic("timing", 120, encode, rate_per_s=40.0)


@pytest.fixture
def store(tmp_path):
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", [KIND])
    yield store
    store.close()


def serve(arrivals, wrap=lambda client: client, blocks=1024):
    executor, policy = SimulatedExecutor(blocks, 16), choices.make_policy("continuous", 8)
    return replay_rows.serve(arrivals, executor, VirtualClock(), policy, prefix=True, wrap=wrap)


@pytest.mark.parametrize("at_once", [1, 3])
def test_reports_are_jobs_done_once_and_never_more_at_once_in_the_engine(traffic, store, at_once):
    replay = serve(traffic, lambda client: DeferringClient(client, store, client.loop, at_once))
    assert replay.tokens() == serve(traffic).tokens()
    reports = [arrival for arrival in traffic if arrival.kind == "report"]
    assert len(reports) > at_once
    found = store.list(None, limit=1000)
    assert {job.key for job in found} == {arrival.id for arrival in reports}
    assert all(job.state is State.DONE and job.attempts == 1 for job in found)
    assert all(store.ledger(None, job.id) == {"report": job.key} for job in found)
    running, most = set(), 0
    for event in replay.events:
        if getattr(event, "request_id", "").startswith("report"):
            if isinstance(event, Admitted):
                running.add(event.request_id)
            if isinstance(event, Finished):
                running.discard(event.request_id)
            most = max(most, len(running))
    assert most == at_once


def test_interactive_requests_wait_less_when_reports_are_jobs(traffic):
    report = replay_reports.measure(traffic, lambda _, arrivals, wrap: serve(arrivals, wrap), 1)
    queued, jobs = report["ways"].values()
    num_reports = queued["reports"]["requests"]
    assert report["jobs"] == {"done": num_reports} and report["tokens_identical"]
    assert jobs["interactive"]["ttft_p95_s"] < queued["interactive"]["ttft_p95_s"]
    assert jobs["reports"]["e2e_p95_s"] > queued["reports"]["e2e_p95_s"], "its wait is in its time"
    assert queued["interactive"]["ok"] + num_reports == len(traffic)


def test_report_that_the_engine_refuses_ends_among_the_dead(traffic, store):
    serve(traffic, lambda client: DeferringClient(client, store, client.loop), blocks=40)
    dead = store.list(None, state=State.DEAD)
    assert dead and all(job.reason for job in dead)
    assert store.counts().num_open == 0, "the next one is taken up all the same"


def test_job_belongs_to_who_asked_for_the_report(traffic, store):
    serve(traffic, lambda client: DeferringClient(client, store, client.loop))
    owners = {arrival.id: arrival.identity for arrival in traffic}
    assert all(job.identity == owners[job.key] for job in store.list(None, limit=1000))
    assert store.list(Identity("nobody")) == []
