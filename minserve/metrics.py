"""Every figure, once: what happened to each request, and what that amounts to.

Definitions. t0 is the intended send time, so that a late client counts against nobody else's clock:

    dispatch delay   submitted - t0; the sender's own lateness, shown apart
    queue delay      first admitted - t0
    TTFT             first token - t0
    ITL              gaps between tokens, pooled over requests: N tokens give N - 1 gaps
    TPOT             (last token - first token) / (N - 1) of one request; none for N < 2
    e2e              last token - t0
    attainment       met their deadline / (ok + errors + rejected + unfinished) that have one
    cancel delay     cancelled until the step in flight ended, which gives the blocks back
    per hour         of one machine that runs for as long as the run took

Latencies and tokens per second count only requests that finished well; errors, rejections and
cancellations are counted apart and never speed up a figure. Percentiles come from raw samples;
`summarise` of two runs together is the only way to join them, for percentiles cannot be averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from minserve.energy import UNKNOWN, Energy
from minserve.errors import ConfigError
from minserve.events import (
    Admitted,
    Event,
    Finished,
    Preempted,
    RequestEvent,
    StepEnded,
    StepStarted,
    Submitted,
    TokensProduced,
)
from minserve.request import FinishReason, Request


@dataclass(slots=True)
class Outcome:
    """What the events say of one request. Times in seconds on the engine's clock."""

    request_id: str
    arrival_s: float
    deadline_s: float | None
    num_prompt_tokens: int
    submitted_s: float | None = None
    admitted_s: float | None = None
    finished_s: float | None = None
    reason: str = "unfinished"
    token_ids: list[int] = field(default_factory=list)
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens that came at that time)."""
    num_asked_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    """Tokens that had to be computed again after a preemption."""

    @property
    def is_ok(self) -> bool:
        """The model ended it: by a stop rule, or at `max_tokens`."""
        return self.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ttft_s(self) -> float | None:
        return self.chunks[0][0] - self.arrival_s if self.chunks else None

    @property
    def e2e_s(self) -> float | None:
        return self.chunks[-1][0] - self.arrival_s if self.chunks else None

    @property
    def queue_delay_s(self) -> float | None:
        return None if self.admitted_s is None else self.admitted_s - self.arrival_s

    @property
    def dispatch_delay_s(self) -> float | None:
        return None if self.submitted_s is None else self.submitted_s - self.arrival_s

    @property
    def itl_s(self) -> list[float]:
        """A chunk of k tokens is k gaps of a k-th each; the first chunk's own gaps are 0."""
        gaps, before = [], None
        for time_s, count in self.chunks:
            if before is None:
                gaps += [0.0] * (count - 1)
            else:
                gaps += [(time_s - before) / count] * count
            before = time_s
        return gaps

    @property
    def tpot_s(self) -> float | None:
        if self.num_output_tokens < 2:
            return None
        return (self.chunks[-1][0] - self.chunks[0][0]) / (self.num_output_tokens - 1)

    @property
    def met_deadline(self) -> bool:
        """It finished well, and by its deadline if it had one."""
        if not self.is_ok or self.finished_s is None:
            return False
        return self.deadline_s is None or self.finished_s <= self.deadline_s


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Seconds, tokens and counts; None where there is no sample."""

    num_requests: int
    num_ok: int
    num_errors: int
    num_rejected: int
    num_cancelled: int
    num_unfinished: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float
    tokens_per_s: float | None
    requests_per_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    queue_delay_p50_s: float | None
    queue_delay_p95_s: float | None
    dispatch_delay_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    e2e_p50_s: float | None
    e2e_p95_s: float | None
    cancel_delay_p95_s: float | None
    num_deadline_misses: int
    deadline_attainment: float | None
    prefix_tokens_reused: int
    prefix_hit_rate: float
    evicted_blocks: int | None
    kv_blocks_peak: int
    kv_tokens_peak_by_class: dict[str, int]
    """Tokens in context of those in one step, at most, by workload class."""
    num_steps: int
    mean_rows_per_step: float | None
    step_p95_s: float | None
    preemptions: int
    recomputed_tokens: int
    requests_per_hour: float | None
    qualified_per_hour: float | None
    num_qualified: int | None
    price_per_hour: float
    cost_per_qualified_task: float | None
    energy_source: str
    energy_j: float | None
    energy_per_qualified_task_j: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def percentile(samples: Iterable[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of raw samples lie, linear between neighbours.

    None without samples. Raises `ConfigError` for a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"percentile {share}", "give a share from 0 to 1, such as 0.95")
    ordered = sorted(samples)
    if not ordered:
        return None
    position = share * (len(ordered) - 1)
    low = int(position)
    part = position - low
    return ordered[low] + (ordered[low + 1] - ordered[low]) * part if part else ordered[low]


def band(num_tokens: int) -> str:
    """A length, roughly: one of five labels."""
    for limit in (64, 256, 1024, 4096):
        if num_tokens <= limit:
            return f"<={limit}"
    return ">4096"


def seconds(value: float | None) -> str:
    """Seconds, or milliseconds below one, to three figures, for people."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def outcomes(requests: Iterable[Request], events: Iterable[Event]) -> list[Outcome]:
    """One outcome for each request, in their order, from events that come in order of time.

    A request that ends with an error and was never submitted counts as rejected. Events of other
    requests are ignored.
    """
    by_id = {
        request.id: Outcome(
            request.id, request.arrival_s, request.deadline_s, len(request.prompt_token_ids)
        )
        for request in requests
    }
    for event in events:
        if isinstance(event, RequestEvent) and event.request_id in by_id:
            note(by_id[event.request_id], event)
    return list(by_id.values())


def note(outcome: Outcome, event: Event) -> None:
    """Take one event about its request into `outcome`."""
    match event:
        case Submitted():
            outcome.submitted_s = event.time_s
        case Admitted():
            if outcome.admitted_s is None:
                outcome.admitted_s = event.time_s
            held = outcome.num_prompt_tokens + outcome.num_output_tokens
            outcome.num_asked_tokens += held
            if outcome.num_preemptions:
                outcome.num_recomputed_tokens += max(0, held - event.num_cached_tokens)
            outcome.num_cached_tokens += event.num_cached_tokens
        case TokensProduced():
            outcome.chunks.append((event.time_s, len(event.token_ids)))
            outcome.token_ids += event.token_ids
        case Preempted():
            outcome.num_preemptions += 1
        case Finished():
            outcome.finished_s = event.time_s
            is_refusal = event.reason == FinishReason.ERROR.value and outcome.submitted_s is None
            outcome.reason = "rejected" if is_refusal else event.reason


def summarise(
    requests: Sequence[Request],
    events: Sequence[Event],
    *,
    qualified: Collection[str] | None = None,
    price_per_hour: float = 0.0,
    energy: Energy = UNKNOWN,
    evicted_blocks: int | None = None,
) -> Summary:
    """The figures of one run, or of several together if their clocks do not matter.

    Args:
        requests: What was asked; arrival, deadline and prompt length are read.
        events: What happened, in order: requests' events, and the engine's steps where known.
        qualified: Ids of the requests whose answers were checked and found right; None if nobody
            checked. One that did not finish well is never qualified.
        price_per_hour: Stated price of the machine; a cost is this times the run's duration.
        energy: What the machine took for the run, and how that is known.
        evicted_blocks: Of the prefix cache, in the run; None if there is none, or nobody looked.
    """
    everyone = outcomes(requests, events)
    good = [outcome for outcome in everyone if outcome.is_ok]
    due = [o for o in everyone if o.deadline_s is not None and o.reason != "cancelled"]
    ends_s = [o.finished_s for o in everyone if o.finished_s is not None]
    begins_s = [o.arrival_s for o in everyone]
    duration_s = max(ends_s) - min(begins_s) if ends_s else 0.0
    output_tokens = sum(o.num_output_tokens for o in good)
    starts = {e.step: e for e in events if isinstance(e, StepStarted)}
    steps_s = [
        event.time_s - starts[event.step].time_s
        for event in events
        if isinstance(event, StepEnded) and event.step in starts
    ]
    num_asked = sum(o.num_asked_tokens for o in everyone)
    num_reused = sum(o.num_cached_tokens for o in everyone)
    num_qualified = None if qualified is None else sum(o.request_id in qualified for o in good)
    num_met = sum(o.met_deadline for o in due)

    def count(reason: str) -> int:
        return sum(o.reason == reason for o in everyone)

    def at(share: float, figure: Callable[[Outcome], float | None]) -> float | None:
        return percentile((x for o in good if (x := figure(o)) is not None), share)

    def per_hour(count: int | None) -> float | None:
        return 3600 * count / duration_s if duration_s and count is not None else None

    gaps = [gap for o in good for gap in o.itl_s]
    return Summary(
        num_requests=len(everyone),
        num_ok=len(good),
        num_errors=count("error"),
        num_rejected=count("rejected"),
        num_cancelled=count("cancelled"),
        num_unfinished=count("unfinished"),
        prompt_tokens=sum(o.num_prompt_tokens for o in good),
        output_tokens=output_tokens,
        duration_s=duration_s,
        tokens_per_s=output_tokens / duration_s if duration_s else None,
        requests_per_s=len(good) / duration_s if duration_s else None,
        ttft_p50_s=at(0.5, lambda o: o.ttft_s),
        ttft_p95_s=at(0.95, lambda o: o.ttft_s),
        queue_delay_p50_s=at(0.5, lambda o: o.queue_delay_s),
        queue_delay_p95_s=at(0.95, lambda o: o.queue_delay_s),
        dispatch_delay_p95_s=at(0.95, lambda o: o.dispatch_delay_s),
        itl_p50_s=percentile(gaps, 0.5),
        itl_p95_s=percentile(gaps, 0.95),
        tpot_p50_s=at(0.5, lambda o: o.tpot_s),
        tpot_p95_s=at(0.95, lambda o: o.tpot_s),
        e2e_p50_s=at(0.5, lambda o: o.e2e_s),
        e2e_p95_s=at(0.95, lambda o: o.e2e_s),
        cancel_delay_p95_s=percentile(
            cancel_delays_s(events, {o.request_id for o in everyone}), 0.95
        ),
        num_deadline_misses=len(due) - num_met,
        deadline_attainment=num_met / len(due) if due else None,
        prefix_tokens_reused=num_reused,
        prefix_hit_rate=num_reused / num_asked if num_asked else 0.0,
        evicted_blocks=evicted_blocks,
        kv_tokens_peak_by_class=_kv_tokens_by_class(requests, starts.values()),
        kv_blocks_peak=max((e.blocks_used for e in starts.values()), default=0),
        num_steps=len(starts),
        mean_rows_per_step=(
            sum(len(e.rows) for e in starts.values()) / len(starts) if starts else None
        ),
        step_p95_s=percentile(steps_s, 0.95),
        preemptions=sum(o.num_preemptions for o in everyone),
        recomputed_tokens=sum(o.num_recomputed_tokens for o in everyone),
        requests_per_hour=per_hour(len(good)),
        qualified_per_hour=per_hour(num_qualified),
        num_qualified=num_qualified,
        price_per_hour=price_per_hour,
        cost_per_qualified_task=(
            price_per_hour * duration_s / 3600 / num_qualified if num_qualified else None
        ),
        energy_source=energy.source,
        energy_j=energy.joules,
        energy_per_qualified_task_j=energy.per(num_qualified),
    )


def cancel_delays_s(events: Iterable[Event], request_ids: Collection[str]) -> list[float]:
    """Seconds from each cancellation among `request_ids` until nothing computes for it any more:
    0, or the rest of the step in flight.
    """
    delays: list[float] = []
    waiting: list[float] = []
    is_in_flight = False
    for event in events:
        match event:
            case StepStarted():
                is_in_flight = True
            case StepEnded():
                delays += [event.time_s - at_s for at_s in waiting]
                waiting, is_in_flight = [], False
            case Finished(reason=FinishReason.CANCELLED.value, request_id=id) if id in request_ids:
                if is_in_flight:
                    waiting.append(event.time_s)
                else:
                    delays.append(0.0)
    return delays


def _kv_tokens_by_class(
    requests: Iterable[Request], steps: Iterable[StepStarted]
) -> dict[str, int]:
    kinds = {request.id: request.workload_class.value for request in requests}
    most: dict[str, int] = {}
    for step in steps:
        held: dict[str, int] = {}
        for request_id, _, num_context in step.rows:
            if kind := kinds.get(request_id.partition("#")[0]):
                held[kind] = held.get(kind, 0) + num_context
        for kind, tokens in held.items():
            most[kind] = max(most.get(kind, 0), tokens)
    return most
