"""Policies against each other on traffic that none of them has seen, and one question of hardware:
prefill and decode together in chunks, or apart in pools of their own?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from minserve.client import Listener, LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, EventLog, Finished, TokensProduced
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.loadtest.datasets import Call
from minserve.loadtest.generator import send_in_process
from minserve.loadtest.measures import Measures, Tally
from minserve.request import Request
from minserve.scenarios.lab import Outcome
from minserve.scheduling.batching import BatchingPolicy, ContinuousBatching, Decision, Snapshot
from minserve.scheduling.ordering import (
    EarliestDeadline,
    FirstComeFirstServed,
    Ordering,
    VirtualTokenCounter,
)
from minserve.simulator.fleet import Fleet
from minserve.simulator.profile import Profile
from minserve.simulator.routers import least_loaded


class PrefillFirst(ContinuousBatching):
    """Prompts before answers: chunks take the budget first, decodes what is left.

    New requests see their first token sooner; answers that run stall while prompts come.
    """

    def decide(self, snapshot: Snapshot) -> Decision:
        run, budget = [], self.token_budget
        num_blocks = snapshot.num_available_blocks
        num_slots = self.max_running - len(snapshot.running)
        for request in (*snapshot.running, *snapshot.waiting[: max(0, num_slots)]):
            is_running = request in snapshot.running
            if budget <= 0 or (is_running and not request.is_prefill):
                continue
            needed = snapshot.num_new_blocks(request)
            if not is_running and needed > num_blocks:
                break
            count = min(snapshot.num_to_compute(request), self.chunk_tokens, budget)
            run.append((request, count))
            budget -= count
            num_blocks -= needed
        decodes = [request for request in snapshot.running if not request.is_prefill]
        run += [(request, 1) for request in decodes[: max(0, budget)]]
        return Decision(run, victims=snapshot.running[::-1])


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way to schedule: a batching policy and an ordering, made afresh for each run."""

    name: str
    policy: Callable[[], BatchingPolicy]
    ordering: Callable[[], Ordering] = FirstComeFirstServed


def field(token_budget: int = 256, max_running: int = 16) -> tuple[Entrant, ...]:
    """The four that a learner's policy meets."""

    def continuous() -> BatchingPolicy:
        return ContinuousBatching(token_budget, max_running)

    return (
        Entrant("first come", continuous),
        Entrant("earliest deadline", continuous, EarliestDeadline),
        Entrant("prefill first", lambda: PrefillFirst(token_budget, max_running)),
        Entrant("virtual token counter", continuous, VirtualTokenCounter),
    )


@dataclass(frozen=True, slots=True)
class Score:
    """How one entrant did. `service_gap` is the most that a tenant with work waiting lagged behind
    another, as a share of all tokens served: lower is fairer.
    """

    name: str
    deadlines_met: float
    ttft_p95_s: float
    itl_p99_s: float
    tokens_per_s: float
    service_gap: float
    num_ok: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def compete(
    entrants: Iterable[Entrant], calls: Callable[[], Iterable[Call]], profile: Profile
) -> list[Score]:
    """Serve the same calls under each entrant; the most deadlines met come first."""
    scores = [_score(entrant, list(calls()), profile) for entrant in entrants]
    return sorted(scores, key=lambda score: -score.deadlines_met)


def _score(entrant: Entrant, calls: list[Call], profile: Profile) -> Score:
    engine = Engine(
        profile.executor(), entrant.policy(), ordering=entrant.ordering(), log=EventLog(keep=False)
    )
    loop, tally = EventLoop(VirtualClock()), Tally()
    served = _Served({call.id: call.sample.identity.tenant for call in calls})
    engine.log.listen(served.note)
    send_in_process(calls, LocalClient(engine, loop), loop, tally.add)
    m = tally.measures()
    return Score(
        entrant.name,
        m.deadline_attainment or 0.0,
        m["ttft.p95"] or 0.0,
        m["itl.p99"] or 0.0,
        m.output_tokens_per_s or 0.0,
        served.gap / max(1, served.total),
        m.num_ok,
    )


class _Served:
    """Counts output tokens of each tenant while others have work waiting too."""

    def __init__(self, tenant_of: dict[str, str]) -> None:
        self.tenant_of = tenant_of
        self.total = 0
        self.gap = 0
        self._tokens: dict[str, int] = {}
        self._active: dict[str, int] = {}

    def note(self, event: Event) -> None:
        tenant = self.tenant_of.get(getattr(event, "request_id", ""))
        if tenant is None:
            return
        if event.kind == "submitted":
            if not self._active.get(tenant):  # it starts level with whoever has had least
                busy = [self._tokens[t] for t, n in self._active.items() if n]
                floor = min(busy, default=0)
                self._tokens[tenant] = max(self._tokens.get(tenant, 0), floor)
            self._active[tenant] = self._active.get(tenant, 0) + 1
        elif isinstance(event, TokensProduced):
            self._tokens[tenant] += len(event.token_ids)
            self.total += len(event.token_ids)
            busy = [self._tokens[t] for t, n in self._active.items() if n]
            self.gap = max(self.gap, max(busy) - min(busy))
        elif isinstance(event, Finished):
            self._active[tenant] -= 1


QUESTION = "Far more comes than can be served. Whose answers does each policy keep in time?"
EXPECTED = (
    "Earliest deadline first keeps the most; counting tokens per tenant is the fairest; prompts "
    "first makes answers stall; and no policy loses a request."
)


def verdict(scores: Iterable[Score], num_requests: int) -> Outcome:
    """Whether the four do what they are for. Entrants besides them must only lose nothing."""
    of = {score.name: score for score in scores}
    plain, deadline, prompts, tokens = (of[entrant.name] for entrant in field())
    lost = [name for name, score in of.items() if score.num_ok < num_requests]
    holds = (
        deadline.deadlines_met >= plain.deadlines_met
        and tokens.service_gap <= plain.service_gap
        and prompts.itl_p99_s >= plain.itl_p99_s
        and not lost
    )
    said = (
        f"in time were {deadline.deadlines_met:.1%} by deadline and {plain.deadlines_met:.1%} as "
        f"they came; one tenant lagged behind by {plain.service_gap:.1%} of all tokens, and by "
        f"{tokens.service_gap:.1%} where they are counted"
    )
    bars = {
        name: {score.name: getattr(score, field) for score in of.values()}
        for name, field in (("in time", "deadlines_met"), ("service gap", "service_gap"))
    }
    said += f"; lost requests: {', '.join(lost)}" if lost else ""
    return Outcome(holds, said, bars, "share")


# -- pools apart


@dataclass(frozen=True, slots=True)
class ArrivedKV(CostModel):
    """A decode pool's costs: a prompt's keys and values come over the wire and cost no step."""

    def seconds(self, rows: Iterable[tuple[int, int]]) -> float:
        decodes = [row for row in rows if row[0] == 1]
        return CostModel.seconds(self, decodes) if decodes else 1e-6


class Disaggregated:
    """`EngineClient` over a prefill and a decode pool (DistServe, Zhong et al., 2024; Splitwise).

    A request is prefilled in one pool, which makes its first token; then its keys and values move,
    in `transfer_s(num_tokens)`, and the other pool makes the rest.
    """

    def __init__(
        self,
        loop: EventLoop,
        prefill: Callable[[], Engine],
        decode: Callable[[], Engine],
        num_prefill: int,
        num_decode: int,
        transfer_s: Callable[[int], float],
    ) -> None:
        self.loop, self.transfer_s = loop, transfer_s
        self.prefill = Fleet(loop, prefill, num_prefill, least_loaded)
        self.decode = Fleet(loop, decode, num_decode, least_loaded)

    def send(self, request: Request, listener: Listener = lambda event: None) -> None:
        whole = request.sampling
        first = Request(
            request.id,
            request.prompt_token_ids,
            replace(whole, max_tokens=1),
            arrival_s=request.arrival_s,
        )

        def hear(event: Event) -> None:
            is_end = isinstance(event, Finished)
            if not is_end or event.reason != "length" or whole.max_tokens == 1:
                listener(event)
                return
            tokens = (*request.prompt_token_ids, *first.output_token_ids)
            arrives_s = event.time_s + self.transfer_s(len(tokens))
            rest = replace(whole, max_tokens=whole.max_tokens - 1)
            self.decode.send(Request(request.id, tokens, rest, arrival_s=arrives_s), later)

        def later(event: Event) -> None:
            if isinstance(event, TokensProduced | Finished):
                listener(event)

        self.prefill.send(first, hear)

    def cancel(self, request_id: str) -> None:
        self.prefill.cancel(request_id)
        self.decode.cancel(request_id)


def pools(
    calls: Callable[[], Iterable[Call]],
    profile: Profile,
    *,
    num_engines: int = 4,
    num_prefill: int = 1,
    token_budget: int = 2048,
    max_running: int = 128,
    kv_bytes_per_token: float = 131_072,
    link_bytes_per_s: float = 50e9,
) -> dict[str, Measures]:
    """The same engines, once all alike with chunked prefill, once parted into two pools."""

    def engine(cost: CostModel, budget: int) -> Callable[[], Engine]:
        def make() -> Engine:
            executor = SimulatedExecutor(
                profile.num_blocks, profile.block_size, cost=cost,
                max_model_len=profile.max_model_len, token=lambda row: 19,
            )  # fmt: skip
            return Engine(
                executor, ContinuousBatching(budget, max_running), log=EventLog(keep=False)
            )

        return make

    def serve(make_client: Callable[[EventLoop], Any]) -> Measures:
        loop, tally = EventLoop(VirtualClock()), Tally()
        send_in_process(calls(), make_client(loop), loop, tally.add)
        return tally.measures()

    cost = profile.cost
    arrived = ArrivedKV(**{name: getattr(cost, name) for name in CostModel.__dataclass_fields__})
    alike = engine(cost, token_budget)
    return {
        "chunked prefill": serve(lambda loop: Fleet(loop, alike, num_engines)),
        "pools apart": serve(
            lambda loop: Disaggregated(
                loop,
                engine(cost, 4 * token_budget),
                engine(arrived, 1_000_000),
                num_prefill,
                num_engines - num_prefill,
                lambda num_tokens: num_tokens * kv_bytes_per_token / link_bytes_per_s,
            )
        ),
    }


POOLS_QUESTION = "Four engines: does prefill belong in a pool of its own?"
POOLS_EXPECTED = (
    "Apart, no prompt stops an answer, so gaps between tokens shrink; but fewer engines compute "
    "prompts, so first tokens take longer."
)


def pools_verdict(found: dict[str, Measures]) -> Outcome:
    """Whether the trade is what it is expected to be: see `pools`."""
    chunked, apart = found.values()
    gaps, firsts = (apart[at] / chunked[at] for at in ("itl.p99", "ttft.p50"))
    bars = {
        name: {case: m[at] for case, m in found.items()}
        for name, at in (("TTFT p50", "ttft.p50"), ("TTFT p99", "ttft.p99"), ("ITL p99", "itl.p99"))
    }
    return Outcome(
        gaps < 0.7 and firsts > 1 and chunked.num_ok == apart.num_ok,
        f"apart, the p99 gap between tokens is {gaps:.0%} of the chunked one, and first tokens "
        f"take {firsts:.1f} x as long",
        bars,
    )
