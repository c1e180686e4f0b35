"""`minserve demo`: things worth seeing once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json

demo = typer.Typer(name="demo", no_args_is_help=True, help="Things worth seeing once.")


@demo.callback()
def _group() -> None: ...


STAGES = (
    "never",
    "before it is claimed",
    "after the claim",
    "in the handler",
    "before the commit",
    "after the commit, before the answer",
)
"""The points of a job's life at which its worker dies."""
LEASE_S = 10.0


@demo.command()
def redelivery(
    picture: Annotated[Path | None, typer.Option(help="Also draw it, as PNG or SVG.")] = None,
    json: Json = False,
) -> None:
    """One job, its worker killed at each point of its life, and what its ledger says.

    Each life runs on a real SQLite store whose clock only the demo moves: nothing waits.
    """
    lives = [life(stage) for stage in STAGES]
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("the worker dies", "what happened", "attempts", "state", "effects in the ledger")
    table.box = SIMPLE_HEAD
    for told in lives:
        what = ", ".join(f"{time_s:g} s {name}" for time_s, name in told["events"])
        effects = ", ".join(f"{k} (attempt {v})" for k, v in told["ledger"].items())
        table.add_row(told["stage"], what, str(told["attempts"]), told["state"], effects)
    out().print(table)
    print("However it dies: done, and each effect once. After a commit nothing is delivered again.")
    if picture is not None:
        from minserve.learn.plots import redelivery as draw

        draw(lives).save(picture)
    if json:
        print_json({"lives": lives})


def life(stage: str, wrap: Callable[[Any], Any] = lambda store: store) -> dict:
    """One job whose first worker dies at `stage`; a second worker does what is left to do.

    `wrap(store)` may put something in front of the store, such as a learner's leases.
    """
    from minserve.jobs.job import Backoff, Kind, LostLease, Submission
    from minserve.jobs.store import JobStore
    from minserve.request import Identity

    now, events, who = [0.0], [], Identity("demo")

    def note(name: str, passed_s: float = 0.0) -> None:
        events.append((round(now[0], 1), name))
        now[0] += passed_s

    with tempfile.TemporaryDirectory() as folder:
        kind = Kind("report", "none:none", backoff=Backoff(4.0))
        store = wrap(
            JobStore(f"sqlite:///{folder}/jobs.db", [kind], clock=lambda: now[0], draw=lambda: 0.5)
        )
        job = store.enqueue(who, Submission("report", {}, "monday"))
        note("accepted", 1.0)
        first = [] if stage == STAGES[1] else store.claim("first", lease_s=LEASE_S)
        for lease in first:
            note("claimed", 1.0)
            if stage == "in the handler":  # it has got as far as a checkpoint
                store.effect(lease, "draft", lease.token)
                note("checkpoint", 1.0)
            elif stage == "before the commit":
                try:
                    with store.transaction() as tx:
                        store.complete(lease, "ok", {"mail": lease.token}, tx)
                        raise InterruptedError
                except InterruptedError:
                    pass
            elif stage in ("never", STAGES[5]):
                store.complete(lease, "ok", {"mail": lease.token})
                note("committed", 1.0)
        if stage != "never":
            note("killed", 1.0)
        for _ in range(15):
            for lease in store.claim("second", lease_s=LEASE_S):
                note("claimed", 2.0)
                if stage == "in the handler":  # the first attempt's draft stands
                    store.effect(lease, "draft", lease.token)
                store.complete(lease, "ok", {"mail": lease.token})
                note("committed", 1.0)
                for zombie in first:  # the first worker was only asleep, and comes back
                    try:
                        store.complete(zombie, "late", {"mail": zombie.token})
                    except LostLease:
                        note("zombie refused")
            now[0] += 1.0
        found, ledger = store.get(who, job.id), store.ledger(who, job.id)
        store.close()
    return {
        "stage": stage,
        "events": events,
        "attempts": found.attempts,
        "state": found.state.value,
        "ledger": ledger,
    }
