"""`minserve bench jobs`: throughput beside other queues, and what survives chaos."""

from __future__ import annotations

import json as json_module
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError

ATTEMPTS = 20
"""The attempt budget of a job in the chaos run."""
LEASE_S = 2.0
MAX_NAP_S = 0.05


def jobs(
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill workers and restart the database meanwhile.")
    ] = False,
    num_jobs: Annotated[int, typer.Option(help="How many; 10,000 for chaos, else 1,000.")] = 0,
    workers: Annotated[int, typer.Option(help="Worker processes in the chaos run.")] = 4,
    concurrency: Annotated[
        int, typer.Option(help="Handlers at a time: of each chaos worker, or of each queue.")
    ] = 4,
    databases: Annotated[
        str, typer.Option(help="sqlite, postgresql, or both; PostgreSQL is started for this.")
    ] = "sqlite,postgresql",
    peers: Annotated[
        Path | None, typer.Option(help="A virtual environment with huey and procrastinate.")
    ] = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Measure durable jobs: every accept and every result reaches the disk (fsync).

    Without --chaos: jobs that do nothing, accepted one at a time and then worked off, beside huey
    (SQLite) and procrastinate (PostgreSQL) where --peers has them; and what a claim costs beside
    ever more finished jobs. With --chaos: naps of up to 50 ms, a SIGKILL to one worker every
    second, PostgreSQL crashed once; then the books are checked. Exit code 1 if they do not balance.

    Examples:

    - `python -m venv peers && peers/bin/pip install huey procrastinate "psycopg[binary]"` and then
    `minserve bench jobs --peers peers`

    - `minserve bench jobs --chaos --databases postgresql`
    """
    names = databases.split(",")
    if not set(names) <= {"sqlite", "postgresql"}:
        raise ConfigError(f"databases {databases!r}", "use sqlite, postgresql, or both")
    if min(workers, concurrency) < 1 or num_jobs < 0:
        raise ConfigError(
            f"{num_jobs} jobs, {workers} workers of {concurrency} handlers", "use 1 or more"
        )
    if peers is not None and not (peers / "bin" / "python").exists():
        raise ConfigError(f"no Python in {peers}", "name a virtual environment; see the examples")
    rows: list[dict[str, Any]] = []
    for name in names:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="minserve-jobs-"))
            server, url = None, f"sqlite:///{folder}/jobs.db"
            if name == "postgresql":
                from minserve.cli.temporary_postgres import TemporaryPostgres

                server = stack.enter_context(TemporaryPostgres())
                url = server.url
            if chaos:
                num_jobs = num_jobs or 10_000
                rows.append(_chaos(name, url, server, num_jobs, workers, concurrency, seed))
            else:
                rows += _throughput(name, url, folder, num_jobs or 1_000, concurrency, peers)
                rows.append(_claims(name, url))
    _table(rows)
    if json:
        print_json({"chaos" if chaos else "throughput": rows})
    if chaos and not all(row["is_balanced"] for row in rows):
        raise typer.Exit(1)


def _kinds(max_attempts: int = 5):
    from dataclasses import replace

    from minserve.jobs.job import Backoff
    from minserve.jobs.kinds import NAP

    return [replace(NAP, max_attempts=max_attempts, backoff=Backoff(0.05, 1.0))]


# -- throughput


def _throughput(
    name: str, url: str, folder: str, num_jobs: int, concurrency: int, peers: Path | None
) -> list[dict[str, Any]]:
    from minserve.cli.bench_jobs_peers import figures
    from minserve.jobs.job import Submission
    from minserve.jobs.store import JobStore
    from minserve.jobs.worker import Worker
    from minserve.request import Identity

    store = JobStore(url, _kinds(), max_open=2 * num_jobs, max_open_per_tenant=2 * num_jobs)
    began_s = time.perf_counter()
    for _ in range(num_jobs):
        store.enqueue(Identity("bench"), Submission("nap", {}))
    enqueued_s = time.perf_counter()
    worker = Worker(store, concurrency=concurrency)
    worker.run(lambda: worker.tally["done"] >= num_jobs)
    rates = figures(num_jobs, began_s, enqueued_s, time.perf_counter())
    store.close()
    rows = [{"queue": f"minserve, {name}", **rates}]
    if peers is not None:
        peer = {"sqlite": "huey", "postgresql": "procrastinate"}[name]
        where = folder if name == "sqlite" else url
        script = str(Path(__file__).with_name("bench_jobs_peers.py"))
        arguments = [peer, where, str(num_jobs), str(concurrency)]
        python = str(peers / "bin" / "python")
        done = subprocess.run([python, script, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(f"{peer} failed: {done.stderr.strip().splitlines()[-1:]}")
        theirs = json_module.loads(done.stdout.splitlines()[-1])
        rows.append({"queue": f"{peer}, {name}", **theirs})
        ratios = {f"{key} ratio": rates[key] / theirs[key] for key in rates}
        rows.append({"queue": f"minserve / {peer}", **ratios})
    return rows


# -- the cost of a claim


def _claims(name: str, url: str) -> dict[str, Any]:
    """Median milliseconds of one claim, beside ever more finished jobs in the same table.

    Its commit is not counted: that is the disk's time.
    """
    from statistics import median

    from minserve.jobs.job import Submission
    from minserve.jobs.store import JobStore
    from minserve.request import Identity

    store = JobStore(url, _kinds())
    row: dict[str, Any] = {"queue": f"milliseconds of a claim, {name}"}
    there = 0
    for num_finished in FINISHED:
        with store.transaction() as tx:
            tx.exec_driver_sql(_FINISHED.format(first=there, last=num_finished))
            tx.exec_driver_sql("ANALYZE jobs")
        there = num_finished
        store.enqueue_many(Identity("bench"), [Submission("nap", {})] * NUM_CLAIMS)
        took_s = []
        for _ in range(NUM_CLAIMS):
            with store.transaction() as tx:
                began_s = time.perf_counter()
                (lease,) = store.claim("bench", tx=tx)
                took_s.append(time.perf_counter() - began_s)
                store.cancel(None, lease.job.id, tx)
        row[f"with {num_finished:,} finished"] = 1000 * median(took_s)
    store.close()
    return row


FINISHED = (0, 10_000, 100_000)
NUM_CLAIMS = 200
_FINISHED = """
    INSERT INTO jobs (id, tenant, subject, kind, state, payload, digest, priority, turn,
        created_at, run_at, attempts, max_attempts, token, completed, total, owner, finished_at)
    WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {last})
    SELECT 'finished' || i, 'bench', '', 'nap', 'done', '{{}}', 'd', 0, 0, i, i, 1, 5, 1, 0, 0,
        'operator', i FROM n WHERE i < {last}
"""


# -- chaos


def work(url: str, concurrency: int) -> None:
    """A worker process of the chaos run; killed, or told to stop."""
    from minserve.jobs.store import JobStore
    from minserve.jobs.worker import Worker

    worker = Worker(
        JobStore(url, _kinds(ATTEMPTS)), concurrency=concurrency, lease_s=LEASE_S, poll_s=0.1
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


def _chaos(
    name: str, url: str, server: Any, num_jobs: int, workers: int, concurrency: int, seed: int
) -> dict[str, Any]:
    from minserve.jobs.job import OPEN, StoreUnavailable, Submission
    from minserve.jobs.store import JobStore
    from minserve.request import Identity

    rng, who = random.Random(seed), Identity("chaos")
    store = JobStore(url, _kinds(ATTEMPTS), max_open=num_jobs, max_open_per_tenant=num_jobs)
    wanted = [
        Submission("nap", {"seconds": rng.uniform(0, MAX_NAP_S)}, f"k{n}") for n in range(num_jobs)
    ]
    for start in range(0, num_jobs, 500):
        store.enqueue_many(who, wanted[start : start + 500])
    program = f"from minserve.cli.bench_jobs import work; work({url!r}, {concurrency})"

    def start_one() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)

    began_s = next_kill_s = time.monotonic()
    processes = [start_one() for _ in range(workers)]
    num_kills, num_restarts = 0, 0
    try:
        while True:
            time.sleep(max(0.0, next_kill_s + 1.0 - time.monotonic()))
            next_kill_s += 1.0
            try:
                num_open = store.counts(open_only=True).num_open
            except StoreUnavailable:
                continue
            if num_open == 0:
                break
            victim = rng.randrange(workers)
            processes[victim].kill()
            processes[victim].wait()
            processes[victim] = start_one()
            num_kills += 1
            if server is not None and not num_restarts and num_open < num_jobs / 2:
                server.restart()
                num_restarts = 1
        took_s = time.monotonic() - began_s
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    counts = store.counts().by_state
    found = store.list(None, limit=num_jobs + 1)
    books = {
        "accepted": num_jobs,
        "done": counts.get("done", 0),
        "dead": counts.get("dead", 0),
        "open": sum(counts.get(state, 0) for state in OPEN),
        "zombie_leases": sum(job.lease_until is not None for job in found),
        **_ledger(store, found),
    }
    store.close()
    is_balanced = (
        books["done"] + books["dead"] == num_jobs == len(found)
        and books["done_without_one_effect"] == books["effects_of_others"] == 0
        and books["open"] == books["zombie_leases"] == 0
    )
    return {
        "queue": f"chaos, {name}",
        "kills": num_kills,
        "database_restarts": num_restarts,
        "attempt_budget": ATTEMPTS,
        "most_attempts": max(job.attempts for job in found),
        "redelivered": sum(job.token > 1 for job in found),
        **books,
        "is_balanced": is_balanced,
        "seconds": took_s,
        "jobs_per_s": num_jobs / took_s,
    }


def _ledger(store: Any, found: list) -> dict[str, int]:
    """How the effects agree with the jobs: one for each that is done, none for any other."""
    from sqlalchemy import func, select

    from minserve.jobs.schema import effects

    with store.reading() as conn:
        rows = conn.execute(select(effects.c.job_id, func.count()).group_by(effects.c.job_id))
        num_effects = dict(rows.tuples().all())
    done = [job.id for job in found if job.state == "done"]
    return {
        "effects": sum(num_effects.values()),
        "done_without_one_effect": sum(num_effects.get(job_id) != 1 for job_id in done),
        "effects_of_others": len(set(num_effects) - set(done)),
    }


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    for row in rows:
        table = Table("", row["queue"], box=SIMPLE_HEAD)
        for name, value in list(row.items())[1:]:
            text = f"{value:,.2f}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), text)
        out().print(table)
