"""Offline throughput beside other engines: everything is sent at once, the total time counts.

Engines take turns on each workload, so that a busy neighbour hits all of them alike, and the
median of their times is compared. While one runs the others wait in their processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from minserve.benchmarks.runner import PEERS, Runner
from minserve.benchmarks.workloads import Workload

OURS = "minserve"


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine on one workload."""

    engine: str
    workload: Workload
    times_s: tuple[float, ...]
    results: tuple[dict[str, Any], ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second, of the median run."""
        return self.workload.num_output_tokens / self.median_s

    @property
    def peak_rss_bytes(self) -> int:
        return max(result["peak_rss_bytes"] for result in self.results)

    def agreement(self, other: Measured) -> float:
        """Share of requests that got the very same tokens as `other`'s.

        Less than 1 is no fault: different kernels round differently, and one near tie in the
        logits changes all that follows.
        """
        pairs = zip(self.results[0]["outputs"], other.results[0]["outputs"], strict=True)
        same = [ours == theirs for ours, theirs in pairs]
        return sum(same) / len(same)


def measure(
    settings: dict[str, Any],
    workloads: Sequence[Workload],
    peers: dict[str, str],
    repeats: int,
    on_progress: Callable[[str], None] = lambda what: None,
) -> tuple[list[Measured], dict[str, dict[str, Any]], dict[str, Any]]:
    """Run every engine on every workload `repeats` times, taking turns.

    `peers` maps a peer's name to its Python. Returns the measurements, what each engine said of
    itself after loading, and the roofline of this machine, measured before and after (the better
    of the two counts). Raises `MinserveError` if an engine fails or yields too few tokens.
    """
    with ExitStack() as stack:
        on_progress("roofline: loading")
        roof = stack.enter_context(Runner("roofline", "run_roofline.py", settings))
        engines = {}
        for name, script in {OURS: "run_minserve.py", **PEERS}.items():
            if name == OURS or name in peers:
                on_progress(f"{name}: loading")
                python = {"python": peers[name]} if name in peers else {}
                runner = Runner(name, script, settings, **python)
                engines[name] = stack.enter_context(runner)
        rooflines = [roof.run([], [])]
        warm = [[7, 8, 9]] * 2, [4, 4]
        for name, engine in engines.items():
            on_progress(f"{name}: warming up")
            engine.run(*warm)
        found = []
        for work in workloads:
            results: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
            for repeat in range(repeats):
                for name, engine in engines.items():
                    on_progress(f"{work.name}: {name}, run {repeat + 1} of {repeats}")
                    results[name].append(_checked(engine, work))
            found += [
                Measured(name, work, tuple(r["total_s"] for r in runs), tuple(runs))
                for name, runs in results.items()
            ]
        rooflines.append(roof.run([], []))
    return found, {name: engine.about for name, engine in engines.items()}, _best(rooflines)


def _checked(engine: Runner, work: Workload) -> dict[str, Any]:
    from minserve.errors import MinserveError

    result = engine.run(work.prompts, work.max_tokens)
    lengths = [len(output) for output in result["outputs"]]
    if lengths != list(work.max_tokens):
        raise MinserveError(
            f"{engine.name} yielded {sum(lengths)} tokens on {work.name!r}, "
            f"not {work.num_output_tokens}",
            "such a run compares nothing; report it",
        )
    return result


def _best(rooflines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, last = rooflines
    best = {**first, "sum_of_weights_s": min(r["sum_of_weights_s"] for r in rooflines)}
    for rate in ("copy_bytes_per_s", "matmul_flops", "peak_flops"):
        best[rate] = max(first[rate], last[rate]) if first[rate] else None
    return best
