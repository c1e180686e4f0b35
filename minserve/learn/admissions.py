"""What lesson 6's parts `admission` and `overload_ladder` start from, and how an engine runs them.

Both decide by what the engine knows already: `Load` and `Signals` are the real ones, so a part runs
on the virtual clock and in the server without a change. See `parts_of_load` for installing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from minserve.errors import ConfigError
from minserve.request import Request, WorkloadClass
from minserve.scheduling.admission import (
    DEFAULT_BUDGETS,
    INF,
    AdmissionPolicy,
    Admit,
    ClassBudget,
    Load,
    Refuse,
)
from minserve.scheduling.overload import Ladder, LadderState, Rung, Signals

Budgets = Mapping[WorkloadClass, ClassBudget]


class AdmissionAnswers(Protocol):
    """The part `admission`, to be derived from `AdmissionBase`: three questions to a request.

    Each answers None (no objection) or `Refuse(retry_after_s, why, code)`, and changes nothing.

    `budget`: would more than `max_queued_tokens` of its class wait? An empty queue takes anything.
    It may return when what is over has drained: at most all that waits, and behind it those who
    have been turned away before (`load.promised_tokens`).
    `pressure`: is more of the KV cache in use than `max_kv_pressure` of its class? It may return
    when what waits, or as much as it needs itself, has drained, and behind those turned away.
    `deadline`: would it finish too late, behind those who wait (`load.drain_s`), at its own pace
    (`load.service_s`)? It may return when the excess has drained; never, so None, where it would
    be late in an empty queue too.
    """

    def budget(self, request: Request, load: Load) -> Refuse | None: ...

    def pressure(self, request: Request, load: Load) -> Refuse | None: ...

    def deadline(self, request: Request, load: Load) -> Refuse | None: ...


class AdmissionBase:
    """Asks the three questions: the first that objects decides. `self.budgets` is by class."""

    if TYPE_CHECKING:  # whoever derives from it answers them

        def budget(self, request: Request, load: Load) -> Refuse | None: ...

        def pressure(self, request: Request, load: Load) -> Refuse | None: ...

        def deadline(self, request: Request, load: Load) -> Refuse | None: ...

    def __init__(self, budgets: Budgets = DEFAULT_BUDGETS) -> None:
        self.budgets = budgets

    def decide(self, request: Request, load: Load) -> Admit | Refuse:
        """Admit or refuse `request`, as `minserve.scheduling.admission` wants it. Pure."""
        for question in (self.budget, self.pressure, self.deadline):
            if (refusal := question(request, load)) is not None:
                return refusal
        return Admit(request.sampling.max_tokens)


class AdmissionByTokens(AdmissionBase):
    """The reference; `minserve.scheduling.admission` asks the same, and of quotas besides."""

    def budget(self, request: Request, load: Load) -> Refuse | None:
        kind = request.workload_class
        queued, limit = load.queued_tokens[kind], self.budgets[kind].max_queued_tokens
        over = queued + load.tokens(request) - limit
        if not queued or over <= 0:
            return None
        ahead = load.promised_tokens.get(kind, 0.0)
        wait_s = (min(over, queued) + ahead) / load.rates.tokens_per_s
        return Refuse(wait_s, f"{queued} {kind} tokens are waiting", "queue_full", True)

    def pressure(self, request: Request, load: Load) -> Refuse | None:
        kind = request.workload_class
        if load.kv_pressure <= self.budgets[kind].max_kv_pressure:
            return None
        needed = max(load.queued_tokens[kind], load.tokens(request))
        wait_s = (needed + load.promised_tokens.get(kind, 0.0)) / load.rates.tokens_per_s
        return Refuse(wait_s, f"{load.kv_pressure:.0%} of the KV cache is in use", "kv_pressure")

    def deadline(self, request: Request, load: Load) -> Refuse | None:
        if request.deadline_s is None:
            return None
        alone_s = load.now_s + load.service_s(request)
        excess_s = alone_s + load.drain_s(request.workload_class) - request.deadline_s
        if excess_s <= 0:
            return None
        can_help = alone_s < request.deadline_s
        why = f"it would be {excess_s:.2f} s late"
        return Refuse(excess_s if can_help else None, why, "deadline_infeasible", True)


def _counts_alone() -> dict[WorkloadClass, ClassBudget]:
    """The engine's budgets without tokens and KV pressure, which the part decides."""
    return {
        kind: replace(budget, max_queued_tokens=10**15, max_kv_pressure=INF)
        for kind, budget in DEFAULT_BUDGETS.items()
    }


@dataclass(frozen=True, slots=True)
class AdmissionPart(AdmissionPolicy):
    """The engine's admission policy, in which a learner's `part` answers those three questions.

    All else stays the engine's and is asked as before: the ladder, quotas, rates, and how many
    requests of a class may be unfinished. So no part can let in whom its key does not.
    """

    budgets: Budgets = field(default_factory=_counts_alone)
    part: Any = field(default_factory=AdmissionByTokens)

    def _budget(self, request: Request, load: Load) -> Refuse | None:
        for question in (self.part.budget, self.part.pressure):
            if (refusal := _checked(question(request, load))) is not None:
                return refusal
        return AdmissionPolicy._budget(self, request, load)

    def _deadline(self, request: Request, load: Load) -> Refuse | None:
        return _checked(self.part.deadline(request, load))


def _checked(answer: Any) -> Refuse | None:
    if answer is None or isinstance(answer, Refuse):
        return answer
    raise ConfigError(f"the part `admission` answers {answer!r:.80}", "return None or a Refuse")


# -- overload_ladder

_ENGINES = Ladder()


class LadderBase:
    """`self.levels`: of each signal the five levels at which rungs 1 to 5 are called for.

    A level is released at `self.release` of it; `self.hold_s` seconds of calm come before a step
    down.
    """

    release = _ENGINES.release
    hold_s = _ENGINES.hold_s
    levels: Mapping[str, tuple[float, ...]] = {
        "drain_s": _ENGINES.drain_s,
        "queue_age_s": _ENGINES.queue_age_s,
        "kv_pressure": _ENGINES.kv_pressure,
        "deadline_risk": _ENGINES.deadline_risk,
    }


class LadderAnswers(Protocol):
    """The part `overload_ladder`, to be derived from `LadderBase`.

    `called_for` gives the highest rung (0 to 5) whose level some signal has reached, with every
    level multiplied by `scale`. `next` climbs at once to what is called for, and comes down one
    rung at a time, each after `hold_s` of signals below `release` of the rung's level. Both pure.
    """

    def called_for(self, signals: Signals, scale: float = 1.0) -> int: ...

    def next(self, state: LadderState, signals: Signals, now_s: float) -> LadderState: ...


class OverloadLadder(LadderBase):
    """The reference, in a learner's terms; the engine's own is `minserve.scheduling.overload`."""

    def called_for(self, signals: Signals, scale: float = 1.0) -> int:
        return max(
            sum(getattr(signals, name) >= scale * level for level in levels)
            for name, levels in self.levels.items()
        )

    def next(self, state: LadderState, signals: Signals, now_s: float) -> LadderState:
        called = self.called_for(signals)
        if called > state.rung:
            return LadderState(Rung(called))
        if self.called_for(signals, self.release) >= state.rung:
            return LadderState(state.rung)
        if state.calm_since_s is None:
            return LadderState(state.rung, now_s)
        if now_s - state.calm_since_s < self.hold_s:
            return state
        return LadderState(Rung(state.rung - 1), now_s)


@dataclass(frozen=True, slots=True)
class LadderPart(Ladder):
    """The engine's ladder, climbed as a learner's `part` says. Raises `ConfigError` for no rung."""

    part: Any = field(default_factory=OverloadLadder)

    def next(self, state: LadderState, signals: Signals, now_s: float) -> LadderState:
        answer = self.part.next(state, signals, now_s)
        try:
            return LadderState(Rung(answer.rung), answer.calm_since_s)
        except (AttributeError, ValueError):
            raise ConfigError(
                f"the part `overload_ladder` answers {answer!r:.80}",
                "return LadderState(rung, calm_since_s) with a rung from 0 to 5",
            ) from None
