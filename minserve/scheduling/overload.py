"""The overload ladder: what a busy service gives up, in order, before it fails everybody.

    NORMAL           everything is served
    DROP_ENRICHMENT  optional extras are left out
    SHORTEN_OUTPUT   low-priority answers get fewer tokens
    MOVE_TO_JOBS     offline work is answered later, as a job, if the client can wait for one
    REJECT_LOW       low-priority work is refused and told when to return
    RESERVE          what is left is kept for critical journeys first

A rung says what may be left out and never touches validation or authorisation. Idea: graceful
degradation and load shedding (Google SRE book, "Handling Overload", 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from minserve.errors import ConfigError
from minserve.request import Request
from minserve.scheduling.reservation import is_offline

CRITICAL_ROLE = "critical"
"""The role, in the server's records of a key, whose requests are the critical journeys."""

INF = float("inf")


class Rung(IntEnum):
    """How much is given up; each rung includes those below it."""

    NORMAL = 0
    DROP_ENRICHMENT = 1
    SHORTEN_OUTPUT = 2
    MOVE_TO_JOBS = 3
    REJECT_LOW = 4
    RESERVE = 5

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Signals:
    """How loaded the service is. Offline work that waits is a backlog, not an overload: left out.

    `drain_s` is how long the waiting tokens take to serve at the measured rate, `queue_age_s` how
    long the oldest has waited, `kv_pressure` the share of KV blocks in use while somebody waits,
    `deadline_risk` the share of those waiting for a deadline who would miss it.
    """

    drain_s: float = 0.0
    queue_age_s: float = 0.0
    kv_pressure: float = 0.0
    deadline_risk: float = 0.0


@dataclass(frozen=True, slots=True)
class LadderState:
    """Where the ladder stands, and since when it could have come down (None: it could not)."""

    rung: Rung = Rung.NORMAL
    calm_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ladder:
    """From which level of a signal on each rung is called for; the highest call counts.

    It climbs at once. It comes down one rung at a time, after `hold_s` in which every signal
    stayed below `release` of the rung's level, so that it does not flutter.
    """

    drain_s: tuple[float, ...] = (2, 4, 8, 16, 32)
    queue_age_s: tuple[float, ...] = (1, 2, 5, 10, 20)
    kv_pressure: tuple[float, ...] = (0.9, 0.95, 0.98, INF, INF)  # memory alone refuses nobody
    deadline_risk: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75)
    release: float = 0.8
    hold_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("drain_s", "queue_age_s", "kv_pressure", "deadline_risk"):
            levels = getattr(self, name)
            if len(levels) != Rung.RESERVE or list(levels) != sorted(levels) or levels[0] <= 0:
                raise ConfigError(
                    f"{name} levels are {levels}", "give five positive levels, none falling"
                )

    def called_for(self, signals: Signals, scale: float = 1.0) -> Rung:
        """The rung that `signals` call for, with every level multiplied by `scale`."""
        return Rung(
            max(
                sum(value >= scale * level for level in levels)
                for value, levels in (
                    (signals.drain_s, self.drain_s),
                    (signals.queue_age_s, self.queue_age_s),
                    (signals.kv_pressure, self.kv_pressure),
                    (signals.deadline_risk, self.deadline_risk),
                )
            )
        )

    def next(self, state: LadderState, signals: Signals, now_s: float) -> LadderState:
        """The state at `now_s`. Pure: time and signals come in, nothing is kept."""
        if (called := self.called_for(signals)) > state.rung:
            return LadderState(called)
        if self.called_for(signals, self.release) >= state.rung:
            return LadderState(state.rung)
        if state.calm_since_s is None:
            return LadderState(state.rung, now_s)
        if now_s - state.calm_since_s < self.hold_s:
            return state
        return LadderState(Rung(state.rung - 1), now_s)


def is_critical(request: Request) -> bool:
    """Its key has the role for critical journeys; a request body cannot claim it."""
    return CRITICAL_ROLE in request.identity.roles


def is_low_priority(request: Request) -> bool:
    """Offline work, or a request that calls itself less urgent than usual."""
    is_low = is_offline(request) or request.priority < 0
    return is_low and not is_critical(request)


def may_enrich(rung: Rung) -> bool:
    """Optional extras (more evidence, suggestions, a second opinion) are still affordable."""
    return rung < Rung.DROP_ENRICHMENT


def output_limit(request: Request, rung: Rung, num_tokens: int) -> int:
    """`max_tokens` as it stands, or for low-priority work on a high rung at most `num_tokens`."""
    asked = request.sampling.max_tokens
    is_cut = rung >= Rung.SHORTEN_OUTPUT and is_low_priority(request)
    return min(asked, num_tokens) if is_cut else asked
