"""`minserve jobs`, `minserve worker` and `minserve bench jobs`, as a user runs them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from minserve.cli.jobs import open_store
from minserve.jobs.job import State


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(url):
    store = open_store(url)
    yield store
    store.close()


def test_looking_for_jobs_where_there_is_no_store_makes_none(minserve, url, tmp_path):
    for command in ("list", "dead", "redrive --all"):
        minserve(f"jobs {command}", "--store", url).refused("no job store at")
    assert not list(tmp_path.glob("jobs.db*"))


def test_job_is_submitted_once_under_its_key_listed_and_shown(minserve, url, store):
    options = (*("--store", url, "--tenant", "acme", "--subject", "ann"), "--key", "monday")
    options += ("--priority", "3", "--deadline", "600")
    first = minserve("jobs submit nap", '{"seconds": 1}', *options).ok().out.strip()
    again = minserve("jobs submit nap", '{"seconds": 1}', *options, "--json").ok().json
    assert again["id"] == first and (again["tenant"], again["subject"]) == ("acme", "ann")
    assert again["priority"] == 3 and again["deadline_at"] == again["created_at"] + 600
    minserve("jobs submit nap", '{"seconds": 2}', *options).refused("monday")
    assert minserve("jobs list", "--store", url, "--json").ok().json["jobs"][0]["id"] == first
    assert first in minserve("jobs list --state queued", "--store", url).ok().out
    assert first not in minserve("jobs list --state done", "--store", url).ok().out
    (lease,) = store.claim("w")
    store.effect(lease, "mail", 1)
    store.fail(lease, "no such model", is_permanent=True)
    shown = minserve("jobs show", first, "--store", url, "--json").ok().json
    assert (shown["state"], shown["ledger"]) == ("dead", {"mail": 1})
    assert shown["failures"][0]["reason"] == "no such model"
    text = minserve("jobs show", first, "--store", url).ok().out
    assert "no such model" in text and "mail: 1" in text


def test_dead_letters_are_listed_with_their_owner_and_redriven(minserve, url, store):
    ids = [minserve("jobs submit nap", "--store", url).ok().out.strip() for _ in range(3)]
    for lease in store.claim("w", 3):
        store.fail(lease, "out of luck", is_permanent=True)
    dead = minserve("jobs dead", "--store", url, "--json").ok().json["jobs"]
    assert {job["id"] for job in dead} == set(ids)
    assert {job["reason"] for job in dead} == {"out of luck"}
    assert "operator" in minserve("jobs dead", "--store", url).ok().out
    said = minserve("jobs redrive", ids[0], "--store", url).ok().out
    assert said == f"{ids[0]} is queued\n"
    minserve("jobs redrive", ids[0], "--store", url).refused("not dead")
    assert len(minserve("jobs redrive --all", "--store", url).ok().out.splitlines()) == 2
    assert store.counts().by_state == {"queued": 3}
    assert minserve("jobs cancel", ids[0], "--store", url).ok().out == "cancelled\n"
    watched = minserve("jobs watch", ids[0], "--store", url).ok()
    assert watched.out.startswith("cancelled")


@pytest.mark.parametrize(
    "command, words",
    [
        (("jobs submit nap", "{not json"), "JSON"),
        (("jobs submit nonsense",), "nonsense"),
        (("jobs submit nap", '{"seconds": -1}'), "payload: seconds: Input should be"),
        (("jobs list --state odd",), "odd"),
        (("jobs list --limit -1",), "--limit"),
        (("jobs show none-such",), "none-such"),
        (("worker --kinds odd --model none",), "odd"),
        (("worker --concurrency 0 --model none",), "concurrency"),
        (("worker --lease 0 --model none",), "lease"),
        (("worker --metrics-port 70000 --model none",), "--metrics-port"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(minserve, url, store, command, words):
    minserve(*command, "--store", url).refused(words)


def test_store_that_cannot_be_is_refused(minserve):
    minserve("jobs list --store mysql://x/y").refused("mysql")
    minserve("jobs list --store postgresql://x:port/y").refused("postgresql://x:port/y")
    minserve("bench jobs --databases oracle").refused("oracle")
    minserve("bench jobs --peers /none/such").refused("/none/such")
    minserve("bench jobs --chaos --workers 0").refused("0")


def test_worker_does_its_kinds_shows_its_figures_and_drains(minserve, url, store):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    order = ("jobs submit nap", '{"seconds": 0.05, "parts": 2}', "--store", url)
    job_id = minserve(*order).ok().out.strip()
    other = minserve(
        "jobs submit northstar_report", '{"questions": ["report-001"]}', "--store", url
    )
    command = f"worker --kinds nap --model none --concurrency 2 --drain 5 --metrics-port {port}"
    worker = subprocess.Popen(
        [sys.executable, "-m", "minserve", *command.split(), "--store", url],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert minserve("jobs watch", job_id, "--store", url).ok().out.startswith("done")
        assert store.get(None, other.out.strip()).state is State.QUEUED, "not of its kinds"
        figures, end_s = "", time.monotonic() + 60
        while 'minserve_jobs_total{outcome="done"} 1.0' not in figures:
            assert time.monotonic() < end_s, figures
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                figures = page.read().decode()
        assert 'minserve_jobs_open{state="queued"} 1.0' in figures
        assert re.search(r"minserve_jobs_oldest_seconds \d", figures) and "acme" not in figures
    finally:
        worker.send_signal(signal.SIGTERM)
        said = worker.communicate(timeout=60)[1]
    assert worker.returncode == 0 and "'done': 1" in said


@pytest.mark.slow
def test_throughput_and_the_cost_of_a_claim_are_printed(minserve):
    rows = minserve("bench jobs --num-jobs 50 --databases sqlite --json").ok().json["throughput"]
    ours, claims = rows
    assert ours["queue"] == "minserve, sqlite" and ours["worked_per_s"] > 0
    assert {"with 0 finished", "with 100,000 finished"} < set(claims)


@pytest.mark.slow
def test_books_balance_after_chaos(minserve):
    command = "bench jobs --chaos --num-jobs 400 --workers 2 --databases sqlite --seed 1 --json"
    (row,) = minserve(command).ok().json["chaos"]
    assert row["is_balanced"] and row["done"] + row["dead"] == row["accepted"] == 400
    assert row["kills"] >= 1 and row["zombie_leases"] == 0
