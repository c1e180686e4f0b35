"""Admission: whether a request may join the queue, or should come back later.

`AdmissionPolicy` decides and is pure; `Admission` keeps the books that it decides by. Both know
neither torch nor HTTP and run on either clock. Refusing early, with an honest time to return, is
cheaper for everybody than a queue that only grows (Google SRE book, "Handling Overload", 2016).

Tokens here are a request's prompt plus the output it is expected to need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minserve.events import Admitted, Event, EventLog, Finished, Preempted, StepStarted, Submitted
from minserve.request import FinishReason, Request, WorkloadClass
from minserve.scheduling.overload import (
    Ladder,
    LadderState,
    Rung,
    Signals,
    is_critical,
    is_low_priority,
    output_limit,
)
from minserve.scheduling.quota import NO_QUOTA, Account, Accounts, Quota, TokenBucket
from minserve.scheduling.rates import DecayingRatio, Rates
from minserve.scheduling.reservation import OFFLINE, is_offline

INF = float("inf")
LOOK_EVERY_S = 0.05
"""How often the ladder looks at the signals."""
MAX_PROMISE_S = 60.0
"""The longest that others' return can put off one's own: a flood is not to close the service."""
ONLINE = frozenset(WorkloadClass) - OFFLINE


@dataclass(frozen=True, slots=True)
class Admit:
    """Submit it, with at most `max_tokens` output tokens (fewer than asked on a high rung)."""

    max_tokens: int


@dataclass(frozen=True, slots=True)
class Defer:
    """Hold it and ask again at `until_s`: there is no room yet, but soon will be."""

    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Turn it away. `retry_after_s` is None where coming back cannot help.

    `code` is a short name for machines. A job would be taken where `may_become_job`.
    """

    retry_after_s: float | None
    why: str
    code: str
    may_become_job: bool = False


Decision = Admit | Defer | Refuse


@dataclass(frozen=True, slots=True)
class ClassBudget:
    """What one workload class may hold: requests that are unfinished, and tokens that wait.

    While more than `max_kv_pressure` of the KV blocks are in use, nobody of the class joins.
    """

    max_requests: int = 512
    max_queued_tokens: int = 200_000
    max_kv_pressure: float = INF


DEFAULT_BUDGETS = {
    WorkloadClass.INTERACTIVE: ClassBudget(),
    WorkloadClass.STANDARD: ClassBudget(),
    WorkloadClass.BATCH: ClassBudget(1024, max_queued_tokens=1_000_000, max_kv_pressure=0.95),
}


@dataclass(frozen=True, slots=True)
class Load:
    """What the policy may know at `now_s`: sums, rates, and the account of whoever asks."""

    now_s: float
    queued_tokens: Mapping[WorkloadClass, int]
    num_unfinished: Mapping[WorkloadClass, int]
    kv_pressure: float
    expected_output_share: float
    rates: Rates
    rung: Rung
    promised_tokens: Mapping[WorkloadClass, float] = field(default_factory=dict)
    """Tokens of those turned away who have been told to be back by the time this much drains."""
    quota: Quota = NO_QUOTA
    account_unfinished: int = 0
    bucket: TokenBucket | None = None

    def output_tokens(self, request: Request) -> int:
        """Output tokens to expect of a choice: the share of `max_tokens` that is used of late."""
        return max(1, round(request.sampling.max_tokens * self.expected_output_share))

    def tokens(self, request: Request) -> int:
        """Its prompt, and the output to expect of all its choices."""
        return request.num_prompt_tokens + request.sampling.n * self.output_tokens(request)

    def drain_s(self, workload_class: WorkloadClass) -> float:
        """Seconds until a newcomer of the class begins: those ahead, at the measured rate."""
        ahead = ONLINE if workload_class in ONLINE else ONLINE | OFFLINE
        return sum(self.queued_tokens.get(c, 0) for c in ahead) / self.rates.tokens_per_s

    def finish_s(self, request: Request) -> float:
        """When `request` would finish if it joined now: those ahead, its prompt, its answer."""
        return self.now_s + self.drain_s(request.workload_class) + self.service_s(request)

    def service_s(self, request: Request) -> float:
        """Seconds from the first step of `request` to its last, if nothing holds it up."""
        prefill_s = request.num_prompt_tokens / self.rates.prefill_tokens_per_s
        return prefill_s + (self.output_tokens(request) - 1) * self.rates.decode_step_s


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Asks one question after another; the first that is not content decides.

    Up to `max_defer_s` after its arrival a request is held here (`Defer`); for a longer wait its
    client is told when to return. On the highest rung only `shared_on_reserve` of each class's
    budget is open to requests that are not critical. `short_output_tokens` is what the ladder cuts
    answers to.
    """

    budgets: Mapping[WorkloadClass, ClassBudget] = field(
        default_factory=lambda: dict(DEFAULT_BUDGETS)
    )
    max_defer_s: float = 0.5
    short_output_tokens: int = 64
    shared_on_reserve: float = 0.5

    def decide(self, request: Request, load: Load) -> Decision:
        """Admit, defer or refuse `request`. Pure."""
        for question in (self._rung, self._concurrency, self._budget, self._deadline, self._rate):
            if (refusal := question(request, load)) is not None:
                return self._defer(request, load, refusal) or refusal
        return Admit(output_limit(request, load.rung, self.short_output_tokens))

    def _defer(self, request: Request, load: Load, refusal: Refuse) -> Defer | None:
        if refusal.code not in _DEFERRABLE or refusal.retry_after_s is None:
            return None
        until_s = load.now_s + max(refusal.retry_after_s, 0.001)
        has_time = until_s <= request.arrival_s + self.max_defer_s
        return Defer(until_s, refusal.why) if has_time else None

    def _rung(self, request: Request, load: Load) -> Refuse | None:
        if not is_low_priority(request):
            return None
        wait_s = load.drain_s(WorkloadClass.INTERACTIVE) + load.rates.decode_step_s
        if load.rung >= Rung.REJECT_LOW:
            return Refuse(wait_s, "low-priority work is refused for now", "overloaded", True)
        if load.rung >= Rung.MOVE_TO_JOBS and is_offline(request):
            return Refuse(wait_s, "offline work is taken as jobs for now", "send_as_job", True)
        return None

    def _concurrency(self, request: Request, load: Load) -> Refuse | None:
        limit, count = load.quota.max_concurrent, load.account_unfinished
        if limit is None or count < limit:
            return None
        why = f"{count} requests of yours are unfinished, the quota is {limit}"
        # Of n requests like this one, all under way, the next ends after an n-th of its time.
        return Refuse(load.service_s(request) / max(1, count), why, "too_many_requests")

    def _budget(self, request: Request, load: Load) -> Refuse | None:
        kind, tokens = request.workload_class, load.tokens(request)
        budget = self.budgets.get(kind, ClassBudget())
        is_shared = load.rung >= Rung.RESERVE and not is_critical(request)
        share = self.shared_on_reserve if is_shared else 1.0
        queued, rate = load.queued_tokens.get(kind, 0), load.rates.tokens_per_s
        count, limit = load.num_unfinished.get(kind, 0), int(budget.max_requests * share)
        if count and count >= limit:
            wait_s = load.service_s(request) * (count - limit + 1) / count
            wait_s += load.promised_tokens.get(kind, 0.0) / rate
            return Refuse(wait_s, f"{count} {kind} requests are unfinished", "queue_full", True)
        over = queued + tokens - budget.max_queued_tokens * share
        ahead = load.promised_tokens.get(kind, 0.0)
        if queued and over > 0:  # NOTE: an empty queue takes any request, or it could never run
            why = f"{queued} {kind} tokens are waiting"
            return Refuse((min(over, queued) + ahead) / rate, why, "queue_full", True)
        if load.kv_pressure > budget.max_kv_pressure:
            why = f"{load.kv_pressure:.0%} of the KV cache is in use"
            return Refuse((max(queued, tokens) + ahead) / rate, why, "kv_pressure", True)
        return None

    def _deadline(self, request: Request, load: Load) -> Refuse | None:
        if request.deadline_s is None or load.finish_s(request) <= request.deadline_s:
            return None
        needed_s, left_s = load.finish_s(request) - load.now_s, request.deadline_s - load.now_s
        why = f"it would take about {needed_s:.2f} s and has {max(0.0, left_s):.2f} s"
        excess_s = needed_s - left_s
        can_help = left_s > load.service_s(request)  # with an empty queue it would make it
        return Refuse(excess_s if can_help else None, why, "deadline_infeasible", True)

    def _rate(self, request: Request, load: Load) -> Refuse | None:
        if load.bucket is None or not (wait_s := load.bucket.wait_s(load.tokens(request))):
            return None
        why = f"your quota is {load.bucket.tokens_per_s:g} tokens/s"
        return Refuse(wait_s, why, "rate_limited")


_PROMISING = frozenset({"queue_full", "kv_pressure"})
_DEFERRABLE = frozenset({"too_many_requests", "queue_full", "kv_pressure", "rate_limited"})


@dataclass(slots=True)
class _Entry:
    """One admitted request, until its end."""

    request: Request
    account: Account
    num_tokens: int
    num_open: int
    """Its choices that have not ended."""
    num_output_tokens: int = 0
    is_queued: bool = False
    is_submitted: bool = False
    has_run: bool = False


class Admission:
    """The books: who is queued and unfinished, each account, and the ladder's state.

    It listens to the engine's log. Safe from any thread: a request is admitted and entered in one
    go, so that two that arrive together cannot both take the last place. A bucket holds `burst_s`
    seconds' worth of its rate. `on_decision(request, decision, now_s)` hears of every decision.
    """

    def __init__(
        self,
        log: EventLog,
        policy: AdmissionPolicy | None = None,
        *,
        ladder: Ladder | None = None,
        rates: Rates | None = None,
        burst_s: float = 10.0,
    ) -> None:
        self.policy = policy or AdmissionPolicy()
        self.ladder = ladder or Ladder()
        self.rates = rates or Rates()
        self.on_decision: Callable[[Request, Decision, float], None] = lambda *told: None
        self.ladder_state = LadderState()
        self.signals = Signals()
        self._entries: dict[str, _Entry] = {}
        self._queue: dict[str, _Entry] = {}
        self._queued_tokens = dict.fromkeys(WorkloadClass, 0)
        self._num_unfinished = dict.fromkeys(WorkloadClass, 0)
        self._promised = dict.fromkeys(WorkloadClass, 0.0)
        self._promised_s = 0.0
        self._accounts = Accounts(burst_s)
        self._output_share = DecayingRatio(1.0)
        self._kv_pressure = 0.0
        self._looked_s = -INF
        self._lock = threading.Lock()
        log.listen(self.rates.note)
        log.listen(self.note)

    @property
    def rung(self) -> Rung:
        return self.ladder_state.rung

    def ask(
        self, request: Request, now_s: float, quota: Quota = NO_QUOTA, account: str | None = None
    ) -> Decision:
        """Decide on `request`, which counts against `account`: its tenant, unless told otherwise.

        If admitted it is on the books until its end; see `leave`.
        """
        with self._lock:
            name = request.identity.tenant if account is None else account
            held = self._accounts.get(name, quota, now_s)
            self._climb(now_s)
            load = self._load(now_s, quota, held)
            decision = self.policy.decide(request, load)
            if isinstance(decision, Admit):
                self._enter(request, held, load.tokens(request))
            elif isinstance(decision, Refuse) and decision.code in _PROMISING:
                self._promised[request.workload_class] += load.tokens(request)
        self.on_decision(request, decision, now_s)
        return decision

    def leave(self, request_id: str) -> None:
        """Strike off a request if the engine never had it; of others, the log tells the end."""
        with self._lock:
            entry = self._entries.get(request_id)
            if entry and not entry.is_submitted:
                self._leave(entry)

    def look(self, now_s: float) -> Load:
        """The load, with nobody's account. Lets the ladder come down while nobody asks."""
        with self._lock:
            self._climb(now_s)
            return self._load(now_s)

    def note(self, event: Event) -> None:
        """Take in one event of the engine's log."""
        if isinstance(event, StepStarted):
            num_blocks = event.blocks_free + event.blocks_used + event.blocks_cached
            self._kv_pressure = event.blocks_used / num_blocks
        elif isinstance(event, Submitted | Admitted | Preempted | Finished):
            with self._lock:
                if entry := self._entries.get(event.request_id):
                    self._note(entry, event)

    # -- from here on the lock is held

    def _load(self, now_s: float, quota: Quota = NO_QUOTA, account: Account | None = None) -> Load:
        self._let_promises_drain(now_s)
        return Load(
            now_s,
            dict(self._queued_tokens),
            dict(self._num_unfinished),
            self._kv_pressure if self._entries else 0.0,
            self._output_share.value,
            self.rates,
            self.rung,
            dict(self._promised),
            quota,
            account.num_unfinished if account else 0,
            account.bucket if account else None,
        )

    def _let_promises_drain(self, now_s: float) -> None:
        """So that those who were turned away together do not all return together."""
        rate, past_s = self.rates.tokens_per_s, max(0.0, now_s - self._promised_s)
        self._promised_s = max(now_s, self._promised_s)
        for kind, tokens in self._promised.items():
            self._promised[kind] = min(max(0.0, tokens - rate * past_s), rate * MAX_PROMISE_S)

    def _enter(self, request: Request, account: Account, num_tokens: int) -> None:
        entry = _Entry(request, account, num_tokens, request.sampling.n)
        self._entries.update(dict.fromkeys(request.choice_ids, entry))
        self._set_queued(entry, True)
        self._num_unfinished[request.workload_class] += 1
        account.enter(num_tokens)

    def _note(self, entry: _Entry, event: Event) -> None:
        match event:
            case Submitted():
                entry.is_submitted = True
            case Admitted():
                entry.has_run = True
                self._set_queued(entry, False)
            case Preempted():
                self._set_queued(entry, True)
            case Finished():
                entry.num_open -= 1
                entry.num_output_tokens += event.num_output_tokens
                if event.reason in (FinishReason.STOP, FinishReason.LENGTH):
                    asked = entry.request.sampling.max_tokens
                    self._output_share.add(event.num_output_tokens, asked)
                if not entry.num_open:
                    self._leave(entry)

    def _set_queued(self, entry: _Entry, is_queued: bool) -> None:
        if entry.is_queued == is_queued:
            return
        entry.is_queued = is_queued
        if is_queued:
            self._queue[entry.request.id] = entry
        else:
            del self._queue[entry.request.id]
        sign = 1 if is_queued else -1
        self._queued_tokens[entry.request.workload_class] += sign * entry.num_tokens

    def _leave(self, entry: _Entry) -> None:
        request = entry.request
        for choice_id in request.choice_ids:
            del self._entries[choice_id]
        self._set_queued(entry, False)
        self._num_unfinished[request.workload_class] -= 1
        used = request.num_prompt_tokens + entry.num_output_tokens if entry.has_run else 0
        entry.account.leave(entry.num_tokens, used)

    def _climb(self, now_s: float) -> None:
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self.signals = self._signals(now_s)
        self.ladder_state = self.ladder.next(self.ladder_state, self.signals, now_s)

    def _signals(self, now_s: float) -> Signals:
        load = self._load(now_s)
        online = [e.request for e in self._queue.values() if not is_offline(e.request)]
        if not online:
            return Signals()
        due = [(r, r.deadline_s) for r in online if r.deadline_s is not None]
        late = sum(now_s + load.service_s(request) > deadline_s for request, deadline_s in due)
        return Signals(
            drain_s=load.drain_s(WorkloadClass.INTERACTIVE),
            queue_age_s=now_s - min(request.arrival_s for request in online),
            kv_pressure=load.kv_pressure,
            deadline_risk=late / len(due) if due else 0.0,
        )
