"""Workers with real child processes. Handlers are in `jobs_handlers`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from minserve.errors import ConfigError
from minserve.jobs.handler import Context, Inbox, Stopped
from minserve.jobs.job import Backoff, Job, Kind, State, StoreUnavailable, Submission
from minserve.jobs.store import JobStore
from minserve.jobs.worker import Worker
from tests.jobs.conftest import ANN, number_only

HANDLERS = (
    *("echo", "slow", "hold", "sleep_in_c", "tooled", "patient", "deaf"),
    *("die", "die_first", "busy", "wrong", "poison"),
)
KINDS = [Kind(n, f"jobs_handlers:{n}", max_attempts=3, backoff=Backoff(0.01)) for n in HANDLERS]
KINDS.append(
    Kind("kill_worker", "jobs_handlers:kill_worker", max_attempts=2, backoff=Backoff(0.01))
)
KINDS.append(Kind("sum", "jobs_handlers:echo", check_result=number_only, backoff=Backoff(0.01)))
HERE = str(Path(__file__).parent)
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def handlers_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def jobs(url):
    """Each test runs on both databases."""
    store = JobStore(url, KINDS)
    yield store
    store.close()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "attempts.log"


def attempts_in(log) -> list[str]:
    return log.read_text().split() if log.exists() else []


def work(store, *, until=None, **more) -> Worker:
    """Run a worker until no job is open, or until `until()`."""
    worker = Worker(store, **({"concurrency": 1, "poll_s": 0.05} | more))
    end_s = time.monotonic() + LIMIT_S

    def is_done():
        assert time.monotonic() < end_s, "the jobs are not done in time"
        return until() if until else store.counts(open_only=True).num_open == 0

    worker.run(is_done)
    return worker


def put(store, kind, payload=None, **more):
    return store.enqueue(ANN, Submission(kind, payload, **more))


def test_jobs_are_done_and_their_effects_recorded(jobs):
    ids = [put(jobs, "echo", n).id for n in range(5)]
    worker = work(jobs, concurrency=2)
    assert [jobs.get(ANN, i).result for i in ids] == [0, 1, 2, 3, 4]
    assert [jobs.ledger(ANN, i) for i in ids] == [{"seen": 1}] * 5
    assert worker.tally["done"] == worker.tally["claimed"] == 5


def test_handler_that_holds_the_interpreter_for_three_leases_runs_once(jobs, log):
    job = put(jobs, "sleep_in_c", {"seconds": 3, "log": str(log)})
    rival = JobStore(jobs.engine.url.render_as_string(hide_password=False), KINDS)
    stolen = []

    def nobody_can_steal_it():
        if attempts_in(log):
            stolen.extend(rival.claim("rival"))
        return jobs.get(ANN, job.id).state is State.DONE

    work(jobs, lease_s=1.0, until=nobody_can_steal_it)
    assert stolen == [] and attempts_in(log) == ["1"]
    assert jobs.get(ANN, job.id).result == 1
    rival.close()


def test_handler_killed_on_every_attempt_ends_among_the_dead(jobs, log):
    job = put(jobs, "die", {"log": str(log)})
    after = put(jobs, "echo", "next")
    work(jobs)
    dead = jobs.get(ANN, job.id)
    assert (dead.state, dead.attempts) == (State.DEAD, 3) and "signal 9" in dead.reason
    assert attempts_in(log) == ["1", "2", "3"]
    assert jobs.get(ANN, after.id).state is State.DONE, "the others do not suffer"


def test_effect_before_a_crash_counts_once_after_redelivery(jobs):
    job = put(jobs, "die_first")
    work(jobs)
    found = jobs.get(ANN, job.id)
    assert (found.state, found.attempts, found.result) == (State.DONE, 2, 1)
    assert jobs.ledger(ANN, job.id) == {"step": 1, "end": 2}


def test_failures_are_retried_as_they_ask_and_named(jobs):
    busy, wrong, poison = put(jobs, "busy", 0.2), put(jobs, "wrong"), put(jobs, "poison")
    began_s = time.monotonic()
    work(jobs)
    assert time.monotonic() - began_s >= 0.4, "Retry-After is honoured, twice"
    assert jobs.get(ANN, busy.id).result == "ok"
    reason = jobs.get(ANN, wrong.id).reason
    assert reason.startswith("ZeroDivisionError: by nought (jobs_handlers.py:")
    assert len(jobs.failures(ANN, wrong.id)) == 3
    assert (jobs.get(ANN, poison.id).state, jobs.get(ANN, poison.id).attempts) == (State.DEAD, 1)


def test_result_that_breaks_the_contract_fails_the_attempt(jobs):
    job = put(jobs, "sum", "not a sum")
    work(jobs)
    dead = jobs.get(ANN, job.id)
    assert dead.state is State.DEAD and "contract" in dead.reason and dead.result is None


@pytest.mark.parametrize("kind", ["patient", "deaf"])
def test_cancelled_handler_is_stopped_within_the_bound(jobs, log, kind):
    job = put(jobs, kind, {"log": str(log)})
    after = put(jobs, "echo", 1)
    cancelled_s = []

    def cancel_once_it_runs():
        if attempts_in(log) and not cancelled_s:
            assert jobs.cancel(ANN, job.id).state is State.CANCELLED
            cancelled_s.append(time.monotonic())
        return jobs.get(ANN, after.id).state is State.DONE

    worker = work(jobs, lease_s=0.6, grace_s=0.5, until=cancel_once_it_runs)
    assert worker.tally["told_to_stop"] == 1
    assert worker.tally["killed"] == (kind == "deaf")
    assert jobs.get(ANN, job.id).state is State.CANCELLED and attempts_in(log) == ["1"]


def test_progress_is_written_while_the_handler_runs(jobs, log):
    job = put(jobs, "patient", {"log": str(log)})
    work(jobs, lease_s=0.3, until=lambda: jobs.get(ANN, job.id).completed > 0)
    found = jobs.get(ANN, job.id)
    assert found.total == 200
    assert (found.state, found.attempts) == (State.QUEUED, 0), "given back, and not counted"


def test_draining_worker_lets_running_handlers_finish_and_claims_no_more(jobs, log):
    first = put(jobs, "slow", {"seconds": 2.0, "log": str(log)})
    second = put(jobs, "slow", {"seconds": 2.0, "log": str(log)})
    worker = Worker(jobs, concurrency=1)
    assert worker.drain_s > 2
    told = []

    def drain_once_it_runs():
        if attempts_in(log) and not told:
            told.append(worker.stop())

    worker.run(drain_once_it_runs)
    assert jobs.get(ANN, first.id).result == "finished"
    assert jobs.get(ANN, second.id).state is State.QUEUED


def test_setup_makes_the_tools_of_each_child_and_its_failure_is_told(jobs):
    job = put(jobs, "tooled", 4)
    work(jobs, setup="jobs_handlers:make_tools", settings={"factor": 3})
    assert jobs.get(ANN, job.id).result == 12
    put(jobs, "tooled", 5)
    with pytest.raises(ConfigError, match="no model here"):
        work(jobs, setup="jobs_handlers:make_tools", settings={"is_broken": True})


@pytest.mark.parametrize("bad", [{"concurrency": 0}, {"lease_s": 0}, {"kinds": ["nonsense"]}])
def test_worker_without_meaning_is_refused(jobs, bad):
    with pytest.raises(ConfigError):
        Worker(jobs, **bad)


WORKER = """
    import sys
    sys.path.insert(0, {here!r})
    from tests.jobs.test_worker import KINDS, JobStore, Worker
    Worker(JobStore({url!r}, KINDS), concurrency=1, **{more!r}).run()
"""


def test_killed_worker_is_recovered_with_default_settings_and_leaves_no_child(jobs, log):
    job = put(jobs, "slow", {"seconds": 2, "log": str(log)})
    url = jobs.engine.url.render_as_string(hide_password=False)
    program = textwrap.dedent(WORKER.format(here=HERE, url=url, more={"lease_s": 2.0}))
    process = subprocess.Popen([sys.executable, "-c", program])
    end_s = time.monotonic() + LIMIT_S
    while not attempts_in(log):
        assert time.monotonic() < end_s and process.poll() is None
        time.sleep(0.02)
    children = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    work(jobs, lease_s=2.0)
    found = jobs.get(ANN, job.id)
    assert (found.state, found.attempts, found.token) == (State.DONE, 2, 2)
    assert children and not any(os.path.exists(f"/proc/{child}") for child in children)


def test_job_that_kills_its_process_costs_those_behind_it_nothing(jobs, log):
    before = [put(jobs, "echo", n).id for n in range(8)]
    bad = put(jobs, "die", {"log": str(log)}).id
    behind = [put(jobs, "echo", n).id for n in range(8)]
    worker = work(jobs, ahead_s=60.0)
    assert (jobs.get(ANN, bad).state, attempts_in(log)) == (State.DEAD, ["1", "2", "3"])
    for job_id in before + behind:
        job = jobs.get(ANN, job_id)
        assert (job.state, job.attempts, jobs.failures(ANN, job_id)) == (State.DONE, 1, [])
    assert worker.tally["unstarted"] > 0, "some were in that process, and went back"


def test_job_that_kills_its_worker_does_not_send_its_neighbours_to_the_dead(jobs, log):
    around = [put(jobs, "echo", n).id for n in range(6)]
    bad = put(jobs, "kill_worker", {"log": str(log)}).id
    around += [put(jobs, "echo", n).id for n in range(6)]
    url = jobs.engine.url.render_as_string(hide_password=False)
    program = textwrap.dedent(
        WORKER.format(here=HERE, url=url, more={"lease_s": 0.6, "ahead_s": 60.0})
    )
    end_s = time.monotonic() + LIMIT_S
    while jobs.get(ANN, bad).state is not State.DEAD:
        assert time.monotonic() < end_s
        deaths = len(attempts_in(log))
        process = subprocess.Popen([sys.executable, "-c", program])
        while process.poll() is None and time.monotonic() < end_s:
            if jobs.counts(open_only=True).num_open == 0:
                process.kill()
            time.sleep(0.05)
        assert len(attempts_in(log)) <= deaths + 1
    work(jobs, lease_s=0.6)
    # Once more than its budget where it had been claimed ahead, which did not count.
    assert len(attempts_in(log)) in (2, 3) and jobs.get(ANN, bad).attempts == 2
    for job_id in around:
        job = jobs.get(ANN, job_id)
        assert (job.state, jobs.ledger(ANN, job_id)) == (State.DONE, {"seen": job.token})
        assert job.attempts <= 2, "never started, never counted"


def test_jobs_behind_a_long_one_go_to_whoever_is_free(jobs, log, tmp_path):
    for n in range(4):
        put(jobs, "echo", n)
    until = tmp_path / "until"
    long = put(jobs, "hold", {"until": str(until), "log": str(log)}).id
    behind = [put(jobs, "echo", n).id for n in range(20)]

    def all_the_others_are_done():
        if jobs.counts(open_only=True).num_open == 1 and attempts_in(log):
            until.touch()
        return jobs.get(ANN, long).state is State.DONE

    work(jobs, concurrency=2, lease_s=1.0, ahead_s=60.0, until=all_the_others_are_done)
    assert {jobs.get(ANN, job_id).attempts for job_id in [long, *behind]} == {1}


def test_child_forgets_what_was_called_back_and_hears_of_its_own_job_only():
    ours, theirs = multiprocessing.Pipe()
    inbox = Inbox(theirs)
    one, two, three = (Job(name, ANN, "echo", State.RUNNING, None) for name in "123")
    ours.send(("run", [one, two]))
    assert inbox.next_job() == one
    context = Context(one, None, inbox)
    ours.send(("stop", "another"))
    context.check()
    ours.send(("recall",))
    ours.send(("run", [three]))
    context.check()
    assert inbox.next_job() == three, "two was called back before it began"
    ours.send(("stop", "3"))
    with pytest.raises(Stopped):
        Context(three, None, inbox).progress(1, 2)
    assert ours.recv() == ("progress", "3", 1, 2)


def children_of(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []


@pytest.mark.slow
def test_worker_outlives_a_restart_of_its_database(postgres, log):
    from tests.jobs.conftest import fresh_schema

    store = JobStore(fresh_schema(postgres), KINDS)
    ids = [put(store, "slow", {"seconds": 0.3, "log": str(log)}).id for _ in range(6)]
    restarted = []

    def restart_in_mid_job():
        if len(attempts_in(log)) >= 2 and not restarted:
            restarted.append(postgres.restart())
        try:
            return bool(restarted) and store.counts(open_only=True).num_open == 0
        except StoreUnavailable:  # once, for a connection that the restart has cut
            return False

    work(store, lease_s=3.0, until=restart_in_mid_job)
    assert all(store.get(ANN, i).state is State.DONE for i in ids)
    store.close()
