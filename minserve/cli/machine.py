"""What a figure was measured on, and whether anybody else was using it at the time."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

QUIET_SHARE = 0.05
"""Above this share of CPU time used by others, a comparison of times is no verdict."""


def describe() -> dict[str, object]:
    """Hardware and versions, as plain values."""
    import minserve

    about: dict[str, object] = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "minserve": minserve.__version__,
    }
    return about


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class CpuUse:
    """How much of the CPU other processes use from now on; unknown (None) outside Linux.

    `children` counts child processes that have ended by then as one's own.
    """

    def __init__(self, children: bool = False) -> None:
        self._children = children
        self._began = self._now()

    def others_share(self) -> float | None:
        """Share of all cores' time, 0 to 1."""
        before, now = self._began, self._now()
        if before is None or now is None:
            return None
        busy_s, own_s, wall_s = (later - sooner for sooner, later in zip(before, now, strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, busy_s - own_s) / (wall_s * cores)) if wall_s > 0 else None

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds that all cores were busy, that this process used, and on the wall."""
        try:
            line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
            ticks_per_s = os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError, IndexError):
            return None
        spent = os.times()
        own_s = spent.user + spent.system
        if self._children:
            own_s += spent.children_user + spent.children_system
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, line[1:])
        return (
            (user + nice + system + irq + softirq) / ticks_per_s,
            own_s,
            time.perf_counter(),
        )
