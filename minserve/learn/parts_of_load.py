"""The parts that measure and that bear load, and how each is installed into the real thing.

`request_measures` is what `minserve.loadtest.measures` does for one request; `open_loop` is the
smallest load generator that a stalled server cannot deceive. Both run outside the engine.

The others run inside a server, on either clock. One call installs each, before any work comes in:

    install_admission(service.admission, part)         # part: a class derived from AdmissionBase
    install_overload_ladder(service.admission, part)   # part: a class derived from LadderBase
    store = install_job_lease(store, part)             # part: a class derived from LeaseBase

where `part` is `get("admission")`, `get("overload_ladder")`, `get("job_lease")`. The first two
change the `Admission` in place (`server.service.admission` of `minserve serve`); the third returns
the store that the HTTP application (`create_app(server, store)`) and every `Worker` then use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from minserve.jobs.store import JobStore
    from minserve.request import WorkloadClass
    from minserve.scheduling.admission import Admission, ClassBudget


@dataclass(frozen=True, slots=True)
class RequestMeasures:
    """The latencies of one request, in seconds; None where there is nothing to measure."""

    ttft_s: float | None
    itl_s: list[float]
    tpot_s: float | None
    e2e_s: float | None


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of an open loop: when it was meant to go, and its two latencies, in seconds."""

    intended_s: float
    latency_s: float
    uncorrected_s: float


def request_measures(intended_s: float, chunks: Sequence[tuple[float, int]]) -> RequestMeasures:
    """Measure one streamed answer.

    `chunks` are (time it came, tokens it bore), in order; a role, an empty delta or the usage at
    the end bears 0 tokens. Latencies count from `intended_s`. A chunk of k tokens stands for k
    gaps of a k-th each, and those beside the first token are 0: N tokens have N - 1 gaps.
    """
    times = [(time_s, count) for time_s, count in chunks if count > 0]
    if not times:
        return RequestMeasures(None, [], None, None)
    first_s, last_s = times[0][0], times[-1][0]
    gaps = [0.0] * (times[0][1] - 1)
    for (before_s, _), (time_s, count) in zip(times, times[1:], strict=False):
        gaps += [(time_s - before_s) / count] * count
    tpot_s = (last_s - first_s) / len(gaps) if gaps else None
    return RequestMeasures(first_s - intended_s, gaps, tpot_s, last_s - intended_s)


def open_loop(rate_per_s: float, num_requests: int, serve: Callable[[float], float]) -> list[Sent]:
    """Send `num_requests` over one connection, request i meant for i / `rate_per_s` seconds.

    `serve(now_s)` sends one at `now_s` and returns when its answer was complete. The connection is
    free again then: a request goes at its intended time, or as soon after that as it can.
    """
    sent, free_s = [], 0.0
    for number in range(num_requests):
        intended_s = number / rate_per_s
        now_s = max(intended_s, free_s)
        free_s = serve(now_s)
        sent.append(Sent(intended_s, free_s - intended_s, free_s - now_s))
    return sent


def install_admission(
    admission: Admission,
    part: Callable[..., Any],
    budgets: Mapping[WorkloadClass, ClassBudget] | None = None,
) -> None:
    """Have `admission` decide budgets, KV pressure and deadlines by `part(budgets)`.

    Quotas, rates, request counts and the ladder stay the engine's. See `admissions.AdmissionPart`.
    """
    from minserve.learn.admissions import AdmissionPart

    admission.policy = AdmissionPart(part=part() if budgets is None else part(budgets))


def install_overload_ladder(admission: Admission, part: Callable[[], Any]) -> None:
    """Have `admission` climb its ladder as `part()` says; what a rung gives up is the engine's."""
    from minserve.learn.admissions import LadderPart

    admission.ladder = LadderPart(part=part())


def install_job_lease(store: JobStore, part: Callable[..., Any]) -> JobStore:
    """`store`, whose claims, renewals, completions and failures `part` decides; use it instead.

    The database remembers, and stays the backstop. See `leased_store.LeasedStore`.
    """
    from minserve.learn.leased_store import LeasedStore

    return cast("JobStore", LeasedStore(store, part))  # in all else it is one
