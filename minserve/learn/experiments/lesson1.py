"""Lesson 1's experiments: a look inside the model, one person's latencies, and everybody's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from minserve.engine import Engine
from minserve.execution.executor import Row
from minserve.learn.experiments.common import or_never, quantile, ttft_s, words
from minserve.learn.experiments.lesson2 import Run, simulate
from minserve.models.config import ModelConfig
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

if TYPE_CHECKING:
    import numpy as np

    from minserve.execution.torch_executor import TorchExecutor


# -- inside the model


class Forward:
    """`forward(token_ids) -> logits`: the executor's decoder, with a KV cache that remembers.

    Each call reads `token_ids` behind what earlier calls have read, and returns the logits of the
    next token, float32 `[vocab]`. A new `Forward` begins with an empty cache.
    """

    def __init__(self, executor: TorchExecutor) -> None:
        self.executor = executor
        self.num_read = 0
        executor.kv_cache.zero_()

    def __call__(self, token_ids: Sequence[int]) -> np.ndarray:
        import torch

        from minserve.models.batch import TokenBatch

        it = self.executor
        row = Row(
            request_id="forward",
            token_ids=tuple(token_ids),
            start=self.num_read,
            block_table=tuple(range(it.num_blocks)),
            sample=True,
            output_position=0,
            sampling=SamplingParams(),
        )
        attention = it.decoder.attention
        batch = TokenBatch.of([row], it.block_size, attention, it.device, it.config.windows)
        logits, _ = it.decoder(batch, it.kv_cache, torch.tensor([len(token_ids) - 1]))
        self.num_read += len(token_ids)
        return logits[0].cpu().numpy()

    @property
    def num_cached(self) -> int:
        """Tokens that have a key in the first layer of the cache, counted there."""
        keys = self.executor.kv_cache[0, 0].flatten(0, 1)
        return int(keys.abs().sum((1, 2)).count_nonzero())

    @property
    def kv_bytes(self) -> int:
        """Bytes that the keys and values of these tokens take in all layers."""
        cache = self.executor.kv_cache
        return self.num_cached * cache[:, :, 0, 0].numel() * cache.element_size()


def question(executor: TorchExecutor, number: int = 0) -> tuple[str, list[int]]:
    """A question to Northstar as the model reads it: its text, and its tokens."""
    from minserve.northstar.corpus import load_corpus
    from minserve.northstar.questions import load_questions, prompt_of

    chosen = [q for q in load_questions() if q.kind == "policy"][number]
    text = prompt_of(chosen, load_corpus("v1"))
    return text, executor.tokenizer.encode(text)


def q_k_v(executor: TorchExecutor, token_ids: Sequence[int]) -> list[tuple[str, str]]:
    """The shapes of queries, keys and values in the first layer, as they go by."""
    backend = executor.decoder.attention
    seen: list[tuple[int, ...]] = []
    forward = Forward(executor)
    executor.decoder.attention = _Watched(backend, seen)
    try:
        forward(token_ids)
    finally:
        executor.decoder.attention = backend
    keys, values = (part.flatten(0, 1)[: forward.num_cached] for part in executor.kv_cache[0])
    tensors = {"queries (Q)": seen[0], "keys (K)": keys.shape, "values (V)": values.shape}
    return [(name, " x ".join(map(str, shape))) for name, shape in tensors.items()]


class _Watched:
    """An attention backend that notes the shape of the queries, and passes everything on."""

    def __init__(self, backend: Any, seen: list) -> None:
        self.backend, self.seen = backend, seen
        self.lay_out = backend.lay_out

    def attend(self, queries: Any, keys: Any, values: Any, layout: Any) -> Any:
        self.seen.append(tuple(queries.shape))
        return self.backend.attend(queries, keys, values, layout)


def engine_tokens(
    executor: TorchExecutor, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """What the engine writes for these prompts, all at once, greedily."""
    engine = Engine(executor, prefix_caching=False)
    sampling = SamplingParams(max_tokens=max_tokens)
    requests = [Request(f"r{n}", tuple(p), sampling) for n, p in enumerate(prompts)]
    for request in requests:
        engine.submit(request, 0.0)
    while engine.step(0.0):
        pass
    return [request.output_token_ids for request in requests]


def wall_clock(num_tokens: int = 512) -> list[tuple[str, int, str]]:
    """Read `num_tokens` in one call, then write 64: tokens and microseconds per token, here.

    Plain torch: kernels of a fixed order would compute whole tiles for a single token.
    """
    from time import perf_counter

    from minserve.execution.torch_executor import TorchExecutor

    executor = TorchExecutor("nano", num_blocks=64, fast=False)
    prompt = words("w", num_tokens, 1).prompt_token_ids

    def timed(forward: Forward, calls: Sequence[Sequence[int]]) -> float:
        begin = perf_counter()
        for token_ids in calls:
            forward(token_ids)
        return (perf_counter() - begin) / sum(map(len, calls)) * 1e6

    timed(Forward(executor), [prompt])  # the first call of all is slow
    forward = Forward(executor)
    return [
        ("prefill, in one call", num_tokens, f"{timed(forward, [prompt]):,.0f}"),
        ("decode, one by one", 64, f"{timed(forward, [[5]] * 64):,.0f}"),
    ]


# -- the incident


def rush_hour(count: int = 300, rate_per_s: float = 12.0, seed: int = 1) -> list[Request]:
    """Half a minute at noon: most ask a short question, one in eight brings a contract."""
    rng = random.Random(seed)
    requests, time_s = [], 0.0
    for number in range(count):
        is_long = rng.random() < 0.125
        prompt, answer = ((2000, 4000), (40, 120)) if is_long else ((30, 200), (20, 80))
        name = f"{'long' if is_long else 'short'} {number}"
        requests.append(words(name, rng.randint(*prompt), rng.randint(*answer), time_s))
        time_s += rng.expovariate(rate_per_s)
    return requests


def is_long(request: Request) -> bool:
    """Whoever brings a contract."""
    return request.num_prompt_tokens >= 2000


def noon(short_first: bool) -> Run:
    """The rush hour, served first come first served, or with all short prompts before long ones."""

    def key(asking: Any, now_s: float) -> tuple[bool, float]:
        return asking.id.startswith("long"), asking.arrival_s

    policy = ContinuousBatching(token_budget=512, max_running=16)
    return simulate(policy, rush_hour(), order=key if short_first else None)


def ttfts_s(run: Run, wanted: Callable[[Request], bool] = lambda request: True) -> list[float]:
    """Times to first token of those wanted."""
    return [ttft_s(request) for request in run.requests if wanted(request)]


TTFT_HEADING = ("time to first token (s)", "requests", "mean", "p50", "p95", "slowest")


def ttft_row(name: str, values: Sequence[float]) -> tuple[str, ...]:
    """Cells under `TTFT_HEADING`."""
    figures = (fmean(values), quantile(values, 0.5), quantile(values, 0.95), max(values))
    return name, f"{len(values)}", *(f"{value:.2f}" for value in figures)


# -- what one person feels


def three_people() -> Run:
    """Anna is alone at first; Ben's long prompt comes into her answer; Cleo finds two places taken.

    Two are served at a time.
    """
    policy = ContinuousBatching(token_budget=512, max_running=2)
    people = [words("anna", 60, 30), words("ben", 1200, 12, 0.2), words("cleo", 60, 12, 0.3)]
    return simulate(policy, people)


def stream(request: Request, together: int = 1) -> list[tuple[float, int]]:
    """What a client saw of it: (time, tokens), `together` tokens to a chunk after the first.

    A role comes at the beginning and the usage at the end; neither bears a token.
    """
    timeline = request.timeline
    later = timeline.token_times_s[1:]
    chunks = [later[at : at + together] for at in range(0, len(later), together)]
    return [
        (or_never(timeline.scheduled_s), 0),
        (timeline.token_times_s[0], 1),
        *((chunk[-1], len(chunk)) for chunk in chunks),
        (timeline.token_times_s[-1] + 0.050, 0),
    ]


MEASURES_HEADING = (
    "who",
    "queue delay (ms)",
    "TTFT (ms)",
    "longest gap (ms)",
    "TPOT (ms)",
    "total (ms)",
)


def measures_row(request: Request, measured: Any) -> tuple[str, ...]:
    """Cells under `MEASURES_HEADING`, from a `RequestMeasures`; queue delay is the engine's."""
    times = (
        or_never(request.timeline.queue_delay_s),
        measured.ttft_s,
        max(measured.itl_s),
        measured.tpot_s,
        measured.e2e_s,
    )
    return request.id, *(f"{time_s * 1000:.1f}" for time_s in times)


# -- batching


def crowd(max_running: int, num_people: int = 256) -> Run:
    """`num_people` ask at once, 40 tokens each, and want 40; `max_running` are served at a time."""
    policy = ContinuousBatching(token_budget=2048, max_running=max_running)
    return simulate(policy, [words(f"p{n}", 40, 40) for n in range(num_people)])


CROWD_HEADING = (
    "places",
    "tokens/s of all",
    "gap, p95 (ms)",
    "queue delay, mean (s)",
    "total, mean (s)",
)


def crowd_row(places: int, run: Run) -> tuple[Any, ...]:
    """Cells under `CROWD_HEADING`."""
    timelines = [request.timeline for request in run.requests]
    queue_s, total_s = (
        fmean(or_never(t.queue_delay_s) for t in timelines),
        fmean(or_never(t.e2e_s) for t in timelines),
    )
    gap_ms = run.itl_s(0.95) * 1000
    return places, f"{run.tokens_per_s:,.0f}", f"{gap_ms:.1f}", f"{queue_s:.2f}", f"{total_s:.2f}"


# -- Little's law


@dataclass(frozen=True, slots=True)
class Little:
    """Three averages of a stretch of time, each found in its own way."""

    in_system: float
    rate_per_s: float
    time_s: float


def little(run: Run, begin_s: float, end_s: float, every_s: float = 0.02) -> Little:
    """Look every `every_s` seconds who is there; count who arrives; time those who arrived."""
    spans = [(r.arrival_s, or_never(r.timeline.finished_s)) for r in run.requests]
    looks = [begin_s + i * every_s for i in range(round((end_s - begin_s) / every_s))]
    present = [sum(arrived <= now < left for arrived, left in spans) for now in looks]
    times_s = [left - arrived for arrived, left in spans if begin_s <= arrived < end_s]
    return Little(fmean(present), len(times_s) / (end_s - begin_s), fmean(times_s))


# -- the roofline

SMOLLM2 = ModelConfig.from_dict(
    {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "SmolLM2-135M",
)
"""The shape of SmolLM2-135M, as in its published config.json."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's two limits, as published."""

    name: str
    peak_flops: float
    bytes_per_s: float


A100 = Machine("A100 80GB SXM", 312e12, 2.039e12)
"""NVIDIA's datasheet: 16-bit matrix arithmetic without sparsity, and HBM2e."""


def work(
    config: ModelConfig, rows: Sequence[tuple[int, int]], bytes_per_value: int = 2
) -> tuple[float, float]:
    """(floating-point operations, bytes moved) of one step.

    `rows` are (tokens computed, tokens in the context, those included). Weights are read once,
    whatever the rows; so is each row's context, and what it computes is written. Activations are
    taken to stay on the chip. A token attends to itself and those before it. The output embeddings
    are those of the input (`tie_word_embeddings`).
    """
    heads = config.num_attention_heads * config.head_dim
    kv_values = 2 * config.num_hidden_layers * config.num_kv_heads * config.head_dim
    vocabulary = config.vocab_size * config.hidden_size
    num_tokens = sum(count for count, _ in rows)
    attended = sum(count * context - count * (count - 1) / 2 for count, context in rows)
    flops = 2.0 * (config.num_parameters - vocabulary) * num_tokens
    flops += 2.0 * vocabulary * len(rows)  # logits of the last token of each row
    flops += 4.0 * config.num_hidden_layers * heads * attended
    moved = config.num_parameters + kv_values * sum(context for _, context in rows)
    return flops, float(bytes_per_value * moved)


STEPS = {
    "decode, 1 person": [(1, 512)],
    "decode, 8 people": [(1, 512)] * 8,
    "decode, 64 people": [(1, 512)] * 64,
    "decode, 512 people": [(1, 512)] * 512,
    "prefill, 64 tokens": [(64, 64)],
    "prefill, 512 tokens": [(512, 512)],
    "prefill, 4 x 512 tokens": [(512, 512)] * 4,
}
"""Steps to draw on the roofline: rows of (tokens computed, tokens in the context)."""
