"""One description of traffic for everybody: what is asked, how often, from which seed.

`loadtest`, `simulate`, `capacity` and the sweep all build their calls here, so that the same
description means the same requests at the same times, on a real server and on the virtual clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from minserve.errors import ConfigError
from minserve.loadtest import arrivals, datasets
from minserve.loadtest.datasets import Call, Encode, Sample
from minserve.loadtest.traces import Row, read_trace
from minserve.northstar.lengths import AZURE, MOONCAKE

DATASETS = ("random", "shared-prefix", "northstar", "sharegpt", "azure", "mooncake")
TABLES = {"azure": AZURE, "mooncake": MOONCAKE}
ARRIVALS = ("gamma", "constant", "ramp", "trace")


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic, described; equal descriptions give equal calls. Lengths in tokens.

    `azure` and `mooncake` are recorded traffic where `path` names the trace, and lengths from the
    shipped quantile tables otherwise. A trace brings its own times unless a rate is given.
    `rate_per_s` may be infinite: everything at once. `scale` multiplies lengths of tables and
    traces, `speed` the pace of a trace. Raises `ConfigError` for what has no meaning.
    """

    dataset: str = "random"
    path: str | None = None
    num_prompts: int = 1000
    rate_per_s: float | None = None
    burstiness: float = 1.0
    arrivals: str = "gamma"
    ramp_to_per_s: float | None = None
    ramp_s: float = 60.0
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    num_prefixes: int = 8
    scale: float = 1.0
    speed: float = 1.0
    max_total_tokens: int | None = None
    ignore_eos: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ConfigError(f"dataset {self.dataset!r}", f"use {', '.join(DATASETS)}")
        if self.arrivals not in ARRIVALS:
            raise ConfigError(f"arrivals {self.arrivals!r}", f"use {', '.join(ARRIVALS)}")
        if self.num_prompts < 1:
            raise ConfigError(f"{self.num_prompts} prompts", "ask for at least 1")
        if self.dataset == "sharegpt" and self.path is None:
            raise ConfigError("sharegpt is read from a file", "give --dataset-path")
        if self.arrivals == "ramp" and (self.ramp_to_per_s is None or self.rate_per_s is None):
            raise ConfigError("a ramp goes from one rate to another", "give both rates")
        if self.arrivals == "trace" and not self.is_trace:
            raise ConfigError("these requests have no recorded times", "give a trace's file")
        if min(self.scale, self.speed) <= 0 or self.rate_per_s is not None and self.rate_per_s <= 0:
            raise ConfigError("a rate, scale or speed is not above 0", "use more than 0")

    @property
    def is_trace(self) -> bool:
        return self.dataset in TABLES and self.path is not None

    def check(self) -> None:
        """Read the trace, if it is one, before anything costly is done. Raises `DataNotFound`."""
        if self.is_trace:
            _rows(self.path)

    @property
    def has_trace_times(self) -> bool:
        return self.is_trace and (self.rate_per_s is None or self.arrivals == "trace")

    def at_rate(self, rate_per_s: float, num_prompts: int | None = None) -> Workload:
        """The same requests at another mean rate: a trace is sped up, the rest drawn anew."""
        count = num_prompts or self.num_prompts
        if self.has_trace_times:
            rows = _rows(self.path)[:count]
            own_per_s = (len(rows) - 1) / max(1e-9, rows[-1].time_s - rows[0].time_s)
            return replace(self, speed=rate_per_s / own_per_s, num_prompts=count)
        return replace(self, rate_per_s=rate_per_s, num_prompts=count)

    def calls(self, encode: Encode | None = None, vocab: int = 1000) -> Iterator[Call]:
        """The calls in order of time, each made when it is asked for.

        `encode` turns text into token ids, for Northstar and ShareGPT.
        """
        return datasets.calls(self._times_s(), self._samples(encode, vocab), self.num_prompts)

    def describe(self) -> dict[str, Any]:
        """All settings, as plain values."""
        settings = asdict(self)
        if self.rate_per_s == math.inf:
            settings["rate_per_s"] = "all at once"
        settings["times"] = "of the trace" if self.has_trace_times else self.arrivals
        return settings

    def _times_s(self) -> Iterator[float]:
        rng = random.Random(f"times/{self.seed}")
        if self.has_trace_times:
            first_s = _rows(self.path)[0].time_s
            return arrivals.scaled((row.time_s - first_s for row in _rows(self.path)), self.speed)
        if self.rate_per_s is None or self.rate_per_s == math.inf:
            return arrivals.at_once()
        if self.arrivals == "constant":
            return arrivals.constant(self.rate_per_s)
        if self.arrivals == "ramp":
            assert self.ramp_to_per_s is not None  # `__post_init__` has seen to it
            return arrivals.ramp(self.rate_per_s, self.ramp_to_per_s, self.ramp_s, rng)
        return arrivals.gamma(self.rate_per_s, self.burstiness, rng)

    def _samples(self, encode: Encode | None, vocab: int) -> Iterator[Sample]:
        for sample in islice(self._raw_samples(encode, vocab), self.num_prompts):
            if self.max_total_tokens is not None:
                sample = datasets.cut(sample, self.max_total_tokens)
            if sample.sampling.ignore_eos != self.ignore_eos:
                sampling = replace(sample.sampling, ignore_eos=self.ignore_eos)
                sample = replace(sample, sampling=sampling)
            yield sample

    def _raw_samples(self, encode: Encode | None, vocab: int) -> Iterator[Sample]:
        rng = random.Random(f"samples/{self.seed}")
        if self.dataset == "random":
            return datasets.random_tokens(
                rng,
                self.input_len,
                self.output_len,
                range_ratio=self.range_ratio,
                prefix_len=self.prefix_len,
                vocab=vocab,
            )
        if self.dataset == "shared-prefix":
            return datasets.shared_prefix(
                rng,
                num_prefixes=self.num_prefixes,
                prefix_len=self.prefix_len or 256,
                suffix_len=self.input_len,
                output_len=self.output_len,
                vocab=vocab,
            )
        if self.is_trace:
            return datasets.from_trace(_rows(self.path), rng, scale=self.scale, vocab=vocab)
        if self.dataset in TABLES:
            return datasets.from_table(TABLES[self.dataset], rng, scale=self.scale, vocab=vocab)
        if encode is None:
            raise ConfigError(f"{self.dataset} is text", "name a model whose tokenizer reads it")
        if self.dataset == "sharegpt":
            assert self.path is not None  # `__post_init__` has seen to it
            return datasets.sharegpt(Path(self.path), rng, encode)
        limit = self.max_total_tokens or 2048
        return datasets.northstar(encode, self.num_prompts, self.seed, limit)


@lru_cache(maxsize=4)
def _rows(path: str) -> list[Row]:
    return read_trace(Path(path))
