"""The live picture: what the engine is doing now, as JSON for `minserve top` and the page at `/`.

It shows bounded sums only. Nothing in it says whose they are or what was found in a cache, so that
whoever may look learns nothing about a neighbour beyond how busy the server is. What caches found
is added for operators alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from minserve.cached_service import CachedService
from minserve.engine import Engine
from minserve.events import Event, StepEnded, StepStarted, TokensProduced
from minserve.scheduling.admission import Admission
from minserve.scheduling.overload import Rung

HALF_LIFE_S = 2.0


class Rate:
    """Things per second, where those of `half_life_s` ago count half."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._decay = math.log(2) / half_life_s
        self._sum = 0.0
        self._at_s = 0.0
        self._began_s: float | None = None

    def add(self, count: float, now_s: float) -> None:
        self._began_s = now_s if self._began_s is None else self._began_s
        self._sum = self._faded(now_s) + count
        self._at_s = now_s

    def value(self, now_s: float) -> float:
        """The rate at `now_s`; in the first moments, of the time there has been."""
        if self._began_s is None:
            return 0.0
        seen = 1 - math.exp(-self._decay * max(now_s - self._began_s, 0.25))
        return self._faded(now_s) * self._decay / seen

    def _faded(self, now_s: float) -> float:
        return self._sum * math.exp(-self._decay * max(0.0, now_s - self._at_s))


class Live:
    """Listens to the log and draws the picture. `picture` may be called from any thread."""

    def __init__(self, engine: Engine, model_name: str, admission: Admission | None = None) -> None:
        self._engine = engine
        self._admission = admission
        self._model = model_name
        self._prefill, self._output, self._steps = Rate(), Rate(), Rate()
        self._busy_s = Rate()
        self._step: StepStarted | None = None
        self._rows = 0

    def note(self, event: Event) -> None:
        """Take in one event of the engine's log."""
        if isinstance(event, TokensProduced):
            self._output.add(len(event.token_ids), event.time_s)
        elif isinstance(event, StepStarted):
            self._step, self._rows = event, len(event.rows)
        elif isinstance(event, StepEnded) and self._step is not None:
            computed = sum(count for _, count, _ in self._step.rows)
            self._prefill.add(computed, event.time_s)
            self._steps.add(1, event.time_s)
            self._busy_s.add(event.time_s - self._step.time_s, event.time_s)

    def picture(self, now_s: float) -> dict[str, Any]:
        """What is going on at `now_s`, for JSON."""
        scheduler, pool = self._engine.scheduler, self._engine.pool
        steps_per_s = self._steps.value(now_s)
        busy = self._busy_s.value(now_s)
        return {
            "model": self._model,
            "time_s": round(now_s, 3),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "blocks": {
                "used": pool.num_used,
                "cached": pool.num_cached,
                "free": pool.num_free,
                "total": pool.num_blocks,
                "block_size": pool.block_size,
            },
            "rates": {
                "output_tokens_per_s": round(self._output.value(now_s), 1),
                "computed_tokens_per_s": round(self._prefill.value(now_s), 1),
                "steps_per_s": round(steps_per_s, 1),
                "step_s": round(busy / steps_per_s, 4) if steps_per_s > 0.01 else None,
                "busy": round(min(1.0, busy), 3),
            },
            "rows": self._rows if scheduler.running else 0,
            "load": self._load(now_s),
        }

    def rung(self) -> Rung:
        """Where the overload ladder stands."""
        return self._admission.rung if self._admission else Rung.NORMAL

    def _load(self, now_s: float) -> dict[str, Any]:
        if self._admission is None:
            return {"rung": 0, "label": Rung.NORMAL.label}
        load, signals = self._admission.look(now_s), self._admission.signals
        return {
            "rung": int(load.rung),
            "label": load.rung.label,
            "queued_tokens": {kind.value: count for kind, count in load.queued_tokens.items()},
            "unfinished": {kind.value: count for kind, count in load.num_unfinished.items()},
            "queue_age_s": round(signals.queue_age_s, 3),
            "drain_s": round(signals.drain_s, 3),
            "deadline_risk": round(signals.deadline_risk, 3),
        }


def reuse(
    cached: CachedService | None, attempts: Sequence[tuple[tuple[str, str], int]]
) -> dict[str, Any] | None:
    """Look-ups and hits of each cache, stale hits, and what each model of a cascade came to."""
    if cached is None and not attempts:
        return None
    caches: dict[str, dict[str, int]] = {}
    for (kind, _, what), count in tuple(cached.outcomes.items()) if cached else ():
        told = caches.setdefault(kind, {"asked": 0, "answered": 0})
        told["asked"] += count
        told["answered"] += count if what in ("hit", "shared") else 0
    cascade: dict[str, dict[str, int]] = {}
    for (model, outcome), count in attempts:
        cascade.setdefault(model, {})[outcome] = count
    return {
        "caches": caches,
        "stale_hits": cached.cache.num_stale_hits if cached else 0,
        "cascade": cascade,
    }


def page() -> str:
    """The page at `/`: one file, which needs nothing from anywhere else."""
    return files("minserve.serving").joinpath("live.html").read_text("utf-8")
