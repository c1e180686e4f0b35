"""What the options `--policy` and `--ordering` name."""

from __future__ import annotations

from collections.abc import Sequence

from minserve.errors import ConfigError
from minserve.scheduling.batching import (
    BatchingPolicy,
    ContinuousBatching,
    DynamicBatching,
    StaticBatching,
)
from minserve.scheduling.expected import ShortestExpected
from minserve.scheduling.ordering import (
    EarliestDeadline,
    FirstComeFirstServed,
    Ordering,
    PriorityWithAgeing,
    VirtualTokenCounter,
)

POLICIES = ("static", "dynamic", "continuous")
STATIC_SIZES = (4, 8, 16, 32, 64)
ORDERINGS: dict[str, type[Ordering]] = {
    "fifo": FirstComeFirstServed,
    "deadline": EarliestDeadline,
    "priority": PriorityWithAgeing,
    "fair": VirtualTokenCounter,
    "shortest": ShortestExpected,
}


def choose(what: str, given: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated option. Raises `ConfigError` for an unknown one."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{what} {name!r} is unknown", f"use {', '.join(known)}")
    if not names:
        raise ConfigError(f"no {what} is given", f"use {', '.join(known)}")
    return names


def sizes_up_to(max_running: int, given: int | None = None) -> list[int]:
    """Batch sizes to try for static batching, the largest last. Raises `ConfigError`."""
    if max_running < 1:
        raise ConfigError(f"max_running is {max_running}", "use at least 1")
    if given is None:
        return [*(size for size in STATIC_SIZES if size < max_running), max_running]
    if not 1 <= given <= max_running:
        raise ConfigError(f"batch size {given}", f"use 1 to {max_running}, or raise --max-running")
    return [given]


def make_policy(name: str, max_running: int, token_budget: int = 512) -> BatchingPolicy:
    """A batching policy by name, with at most `max_running` requests in a step."""
    if name == "continuous":
        return ContinuousBatching(token_budget=token_budget, max_running=max_running)
    return (StaticBatching if name == "static" else DynamicBatching)(max_running)
