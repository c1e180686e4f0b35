"""The asynchronous part of `minserve replay`: document reports in the queue, and as jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from minserve.client import EngineClient, LocalClient
from minserve.metrics import Summary, seconds, summarise
from minserve.northstar.replay import Replay
from minserve.northstar.traffic import Arrival
from minserve.request import WorkloadClass

Serve = Callable[[str, Sequence[Arrival], Callable[[LocalClient], EngineClient]], Replay]
"""Replays traffic on a fresh engine, through the client that it is given to make."""
WAYS = ("in the engine's queue", "as durable jobs")


def measure(arrivals: Sequence[Arrival], serve: Serve, at_once: int) -> dict[str, Any]:
    """The same traffic twice: reports sent like all else, and as jobs, `at_once` in the engine.

    Jobs lie in a SQLite store on this disk, each accept and each result flushed to it within the
    run. A report's times are from its arrival to its last token, its wait as a job included.
    """
    from minserve.jobs.store import JobStore
    from minserve.northstar.deferred import KIND, DeferringClient

    queued = serve(f"reports {WAYS[0]}", arrivals, lambda client: client)
    with tempfile.TemporaryDirectory() as folder:
        store = JobStore(f"sqlite:///{folder}/jobs.db", [KIND], max_open=10 * len(arrivals))

        def wrap(client: LocalClient) -> EngineClient:
            return DeferringClient(client, store, client.loop, at_once)

        deferred = serve(f"reports {WAYS[1]}", arrivals, wrap)
        states = {str(state): count for state, count in store.counts().by_state.items()}
        store.close()
    ways = dict(zip(WAYS, map(_figures, (queued, deferred)), strict=True))
    same = queued.tokens() == deferred.tokens()
    return {"ways": ways, "at_once": at_once, "jobs": states, "tokens_identical": same}


def _figures(replay: Replay) -> dict[str, Any]:
    parts: dict[bool, list] = {False: [], True: []}
    for request in replay.requests:
        parts[request.workload_class is WorkloadClass.BATCH].append(request)
    online, reports = (summarise(parts[is_report], replay.events) for is_report in (False, True))
    return {
        "interactive": _some(online) | {"ttft_p95_s": online.ttft_p95_s},
        "reports": _some(reports),
        "duration_s": replay.summarise().duration_s,
    }


def _some(summary: Summary) -> dict[str, Any]:
    return {
        "requests": summary.num_requests,
        "ok": summary.num_ok,
        "e2e_p95_s": summary.e2e_p95_s,
        "deadline_attainment": summary.deadline_attainment,
    }


ROWS = (
    ("interactive: p95 TTFT", lambda w: seconds(w["interactive"]["ttft_p95_s"])),
    ("interactive: deadline met", lambda w: _share(w["interactive"])),
    ("reports: p95 to the last token", lambda w: seconds(w["reports"]["e2e_p95_s"])),
    ("reports: deadline met", lambda w: _share(w["reports"])),
    ("all done after", lambda w: seconds(w["duration_s"])),
)


def _share(part: dict[str, Any]) -> str:
    met = part["deadline_attainment"]
    return "-" if met is None else f"{met:.0%} of {part['requests']}"


def table(report: dict[str, Any]):
    """A column for each way."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Document reports, at most {report['at_once']} at once as jobs"
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.add_column("")
    for way in report["ways"]:
        made.add_column(way, justify="right")
    for name, shown in ROWS:
        made.add_row(name, *(shown(way) for way in report["ways"].values()))
    return made
