"""`minserve jobs`: submit durable jobs, watch them, and look after the dead letters."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError, DataNotFound

Store = Annotated[
    str,
    typer.Option(
        envvar="MINSERVE_JOBS", help="sqlite:///path/jobs.db or postgresql://user@host/db"
    ),
]
JobId = Annotated[str, typer.Argument(help="The job, as `submit` and `list` show it.")]
DEFAULT_STORE = "sqlite:///jobs.db"

jobs = typer.Typer(
    name="jobs",
    no_args_is_help=True,
    help="Durable jobs: accepted once, delivered at least once, effective once. These commands "
    "open the store itself, as its operator; over HTTP an API key reaches its own jobs only.",
)


def open_store(url: str, **more: Any):
    """The store with all kinds that minserve knows."""
    from minserve.jobs.kinds import KINDS
    from minserve.jobs.store import JobStore

    return JobStore(url, KINDS, **more)


def existing_store(url: str):
    """As `open_store`, for a command that is to find something there: makes no file of its own."""
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        hint = "say with --store or MINSERVE_JOBS where it is; `minserve jobs submit` makes one"
        raise DataNotFound(f"there is no job store at {path}", hint)
    return open_store(url)


def as_json(job: Any) -> dict[str, Any]:
    """A job as plain values."""
    fields = asdict(job)
    identity = fields.pop("identity")
    return {"tenant": identity["tenant"], "subject": identity["subject"], **fields}


@jobs.command()
def submit(
    kind: Annotated[str, typer.Argument(help="northstar_report, chat_completion or nap")],
    payload: Annotated[str, typer.Argument(help="JSON")] = "{}",
    store: Store = DEFAULT_STORE,
    tenant: Annotated[str, typer.Option(help="Whose job it is.")] = "default",
    subject: Annotated[str, typer.Option(help="Whose job it is.")] = "",
    key: Annotated[str | None, typer.Option(help="Idempotency key: same key, same job.")] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    deadline: Annotated[float | None, typer.Option(help="Seconds until it is of no use.")] = None,
    json: Json = False,
) -> None:
    """Submit a job; once its id is printed it survives a crash.

    Examples:

    - `minserve jobs submit nap '{"seconds": 20, "parts": 20}'`

    - `minserve jobs submit northstar_report '{"questions": ["report-001"]}'
    --tenant kestrel --key monday`
    """
    from minserve.jobs.job import Submission
    from minserve.request import Identity

    try:
        content = json_module.loads(payload)
    except ValueError as error:
        raise ConfigError(f"the payload is not JSON: {error}", "quote it for the shell") from None
    wanted = Submission(kind, content, key, priority, deadline_s=deadline)
    job = open_store(store).enqueue(Identity(tenant, subject), wanted)
    print_json(as_json(job)) if json else print(job.id)


@jobs.command("list")
def list_jobs(
    store: Store = DEFAULT_STORE,
    state: Annotated[str | None, typer.Option(help="queued, running, done, dead, ...")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 20,
    json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from minserve.jobs.job import State

    if state is not None and state not in list(State):
        raise ConfigError(f"state {state!r}", f"use one of {', '.join(State)}")
    opened = existing_store(store)
    found = opened.list(None, state=State(state) if state else None, limit=limit)
    if json:
        return print_json({"jobs": [as_json(job) for job in found]})
    _table(found)
    print(", ".join(f"{n} {state}" for state, n in opened.counts().by_state.items()) or "no jobs")


@jobs.command()
def show(job_id: JobId, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Show a job, its failed attempts and its ledger."""
    opened = existing_store(store)
    job = opened.get(None, job_id)
    ledger, failed = opened.ledger(None, job_id), opened.failures(None, job_id)
    if json:
        more = {"ledger": ledger, "failures": [asdict(attempt) for attempt in failed]}
        return print_json(as_json(job) | more)
    for name, value in as_json(job).items():
        if value not in (None, ""):
            print(f"{name:13}{value}")
    for attempt in failed:
        print(f"{'failure':13}token {attempt.token}: {attempt.reason}")
    for key, value in ledger.items():
        print(f"{'effect':13}{key}: {value}")


@jobs.command()
def cancel(job_id: JobId, store: Store = DEFAULT_STORE) -> None:
    """End a job; says which terminal state won."""
    print(existing_store(store).cancel(None, job_id).state)


@jobs.command()
def dead(store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """List the dead letters, with their owner and the reason."""
    from minserve.jobs.job import State

    found = existing_store(store).list(None, state=State.DEAD, limit=1000)
    print_json({"jobs": [as_json(job) for job in found]}) if json else _table(found)


@jobs.command()
def redrive(
    job_ids: Annotated[list[str] | None, typer.Argument(help="Which; or --all.")] = None,
    store: Store = DEFAULT_STORE,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
) -> None:
    """Queue dead letters again, each with a fresh retry budget."""
    from minserve.jobs.job import State

    opened = existing_store(store)
    if everything:
        job_ids = [job.id for job in opened.list(None, state=State.DEAD, limit=100_000)]
    for job_id in job_ids or ():
        print(f"{job_id} is {opened.redrive(None, job_id).state}")


@jobs.command()
def watch(
    job_id: JobId,
    store: Store = DEFAULT_STORE,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 0.2,
) -> None:
    """Follow a job to its end, with a progress bar."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    opened = existing_store(store)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        bar = bars.add_task("queued", total=None)
        while True:
            job = opened.get(None, job_id)
            what = f"{job.state}, attempt {job.attempts} of {job.max_attempts}"
            bars.update(bar, description=what, completed=job.completed, total=job.total or None)
            if job.state.is_terminal:
                break
            time.sleep(every)
    print(job.state, job.reason or "")


def _table(found: list) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in ("id", "kind", "tenant", "state", "attempts", "progress", "owner", "reason"):
        table.add_column(heading, no_wrap=heading in ("id", "state"))
    for job in found:
        progress = f"{job.completed}/{job.total}" if job.total else ""
        attempts = f"{job.attempts}/{job.max_attempts}"
        table.add_row(
            job.id, job.kind, job.identity.tenant, job.state.value, attempts, progress, job.owner,
            job.reason or "",
        )  # fmt: skip
    out().print(table)
