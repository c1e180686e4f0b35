"""Where the time of a step goes: scheduling, projections, attention, sampling, and the rest.

    with StepTimes(engine) as times:
        while engine.step(0.0):
            pass
    times.seconds()     # {"scheduling": ..., "projections": ..., ..., "other": ...}

While it is open, the engine's parts are called through stopwatches; nothing else knows of them, and
an engine that is not watched pays nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution import torch_executor

PARTS = ("scheduling", "projections", "attention", "sampling", "other")
_SAMPLER = "sample_rows" if hasattr(torch_executor, "sample_rows") else "sample"


class StepTimes:
    """Wall time of an engine with a `TorchExecutor`, by part, from `with` to its end.

    scheduling is planning and committing; projections the matrix products with the norms and
    activations between them, and with rotating and writing to the cache where a kernel does it in
    one go; other is what is left of the executor, such as laying out the batch. On a GPU kernels
    outlast their calls, so times by part mean little there.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.num_steps = 0
        self._spent = dict.fromkeys(("engine", "executor", *PARTS[1:4]), 0.0)
        self._patches = ExitStack()

    def __enter__(self) -> StepTimes:
        executor = self.engine.executor
        if not isinstance(executor, torch_executor.TorchExecutor):
            raise ConfigError(f"{executor!r} has no such parts", "time one that runs on torch")
        for owner, name, part in (
            (self.engine, "begin_step", "engine"),
            (self.engine, "finish_step", "engine"),
            (executor, "launch", "executor"),
            (executor, "collect", "executor"),
            (executor.decoder, "by_tile", "projections"),
            (executor.decoder.attention, "lay_out", "attention"),
            (executor.decoder.attention, "attend", "attention"),
            (torch_executor, _SAMPLER, "sampling"),
        ):
            timed = self._timed(getattr(owner, name), part)
            self._patches.enter_context(patch.object(owner, name, timed))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each of PARTS since the beginning; they add up to the engine's time."""
        spent = self._spent
        computing = {part: spent[part] for part in PARTS[1:4]}
        return {
            "scheduling": spent["engine"] - spent["executor"],
            **computing,
            "other": spent["executor"] - sum(computing.values()),
        }

    def _timed(self, function: Callable, part: str) -> Callable:
        def timed(*args, **options):
            began_s = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._spent[part] += time.perf_counter() - began_s
                self.num_steps += part == "engine" and function.__name__ == "finish_step"

        return timed
