"""How much energy a run took, from the machine's own counters, and how it is known.

RAPL counts what the CPU's packages take (Linux: powercap; readable by root alone on many machines),
NVML what NVIDIA's GPUs take. Neither counts memory, fans or the rest of the machine. What is not
counted is not measured; it may be estimated from a stated power, and is then called an estimate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NOT_MEASURED = "not measured"
POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Energy:
    """`joules` (None: unknown) and how they are known, such as `RAPL`, `RAPL, NVML` or
    `estimated from a stated 65 W`."""

    joules: float | None = None
    source: str = NOT_MEASURED

    def per(self, count: int | None) -> float | None:
        """Joules for each of `count`; None if either is unknown or there is none."""
        return self.joules / count if self.joules is not None and count else None

    def __str__(self) -> str:
        return self.source if self.joules is None else f"{self.joules:,.0f} J, {self.source}"


UNKNOWN = Energy()


class Rapl:
    """The counters of all CPU packages under `folder`. Raises `OSError` if none is readable."""

    name = "RAPL"

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._packages = sorted(folder.glob("intel-rapl:[0-9]")) + sorted(
            folder.glob("intel-rapl:[0-9][0-9]")
        )
        if not self._packages:
            raise OSError("no RAPL package")
        # NOTE: a counter begins again at 0 once it has reached this.
        self._ranges = [_micro(each / "max_energy_range_uj") for each in self._packages]
        self._last = [_micro(each / "energy_uj") for each in self._packages]
        self._joules = 0.0

    def joules(self) -> float:
        """Taken since this was made; ask more often than the counter wraps (about a minute at
        full load, of old CPUs; hours of new ones)."""
        for index, package in enumerate(self._packages):
            now = _micro(package / "energy_uj")
            self._joules += (now - self._last[index]) % (self._ranges[index] + 1) / 1e6
            self._last[index] = now
        return self._joules


class Nvml:
    """The energy counters of all NVIDIA GPUs (Volta and later).

    `load` finds the library that comes with the driver. Raises `OSError` where there is none, or
    no GPU that counts.
    """

    name = "NVML"

    def __init__(self, load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> None:
        self._library = library = load("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        _check(library.nvmlInit_v2())
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self._devices = [ctypes.c_void_p() for _ in range(count.value)]
        for index, device in enumerate(self._devices):
            _check(library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)))
        if not self._devices:
            raise OSError("no GPU")
        self._began = self._total()

    def joules(self) -> float:
        """Taken since this was made."""
        return self._total() - self._began

    def _total(self) -> float:
        millijoules, found = 0, ctypes.c_ulonglong()
        for device in self._devices:
            reading = self._library.nvmlDeviceGetTotalEnergyConsumption
            _check(reading(device, ctypes.byref(found)))
            millijoules += found.value
        return millijoules / 1000


class EnergyMeter:
    """Counts from now on, with whatever of `counters` this machine lets us read."""

    def __init__(self, counters: tuple[Callable[[], Rapl | Nvml], ...] = (Rapl, Nvml)) -> None:
        self._counters = []
        for make in counters:
            try:
                self._counters.append(make())
            except (OSError, ValueError, AttributeError):  # none here, locked, or too old
                continue

    def joules(self) -> dict[str, float]:
        """So far, by counter; a counter that stops answering is left out from then on."""
        found = {}
        for counter in list(self._counters):
            try:
                found[counter.name] = counter.joules()
            except (OSError, ValueError):
                self._counters.remove(counter)
        return found

    def read(self, duration_s: float = 0.0, stated_watts: float | None = None) -> Energy:
        """What was counted; else an estimate, if a power is stated; else not measured."""
        if found := self.joules():
            return Energy(sum(found.values()), ", ".join(found))
        if stated_watts is not None:
            return Energy(stated_watts * duration_s, f"estimated from a stated {stated_watts:g} W")
        return UNKNOWN


def _micro(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _check(status: int) -> None:
    if status:
        raise OSError(f"NVML answers {status}")
