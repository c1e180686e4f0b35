"""What a cheaper precision costs in quality, and what it brings in speed and bytes.

Float32 is the oracle. Both models are shown the same texts, Northstar's prompts, and their logits
at every place are compared; then both answer the same questions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minserve.client import LocalClient
from minserve.clock import EventLoop, WallClock
from minserve.engine import Engine
from minserve.execution.executor import Row
from minserve.execution.precision import Precision
from minserve.execution.torch_executor import TorchExecutor
from minserve.kv.estimate import KVShape
from minserve.models.batch import TokenBatch
from minserve.northstar.questions import is_qualified
from minserve.northstar.replay import Replay
from minserve.northstar.traffic import Arrival, make_traffic
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

EXACT = Precision("float32")
CHEAPER = (
    Precision("float32", kv_cache="int8"),
    Precision("float32", "int8"),
    Precision("float32", "int8", "int8"),
    Precision("bfloat16"),
)
NUM_BLOCKS = 512
NUM_TIMED = 64


@dataclass(frozen=True, slots=True)
class Cost:
    """One precision beside float32.

    max_error, mean_error: of a logit, over `num_places` places and the whole vocabulary.
    same_likeliest: at how many of the places the likeliest token is the same. num_right: answers of
    `num_questions` that are right; num_same: that are float32's, token for token. token_s: seconds
    of a step in which one request decodes, the median of NUM_TIMED.
    """

    precision: str
    weight_bytes: int
    kv_bytes_per_token: int
    token_s: float
    max_error: float
    mean_error: float
    num_places: int
    same_likeliest: int
    num_questions: int
    num_right: int
    num_same: int


def compare(
    model: str,
    num_texts: int = 24,
    num_questions: int = 240,
    precisions: Sequence[Precision] = CHEAPER,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Iterator[Cost]:
    """Float32 itself, and then each of `precisions`; two models are in memory at a time.

    Raises what loading the model raises.
    """
    on_progress(f"{EXACT}: loading")
    exact = _load(model, EXACT)
    texts = [a.prompt_token_ids for a in _questions(exact, num_texts)]
    questions = _questions(exact, num_questions) if num_questions else []
    on_progress(f"{EXACT}: answering")
    right_answers = _answers(exact, questions)
    for precision in (EXACT, *precisions):
        on_progress(f"{precision}: comparing logits")
        executor = exact if precision == EXACT else _load(model, precision)
        pairs = [(logits(exact, text), logits(executor, text)) for text in texts]
        errors = [(one - other).abs() for one, other in pairs]
        on_progress(f"{precision}: answering")
        answers = right_answers if executor is exact else _answers(executor, questions)
        yield Cost(
            str(precision),
            executor.weight_bytes,
            _kv_bytes(executor),
            token_s(executor, texts[0]),
            max(float(error.max()) for error in errors),
            statistics.mean(float(error.mean()) for error in errors),
            sum(len(error) for error in errors),
            sum(int((one.argmax(-1) == other.argmax(-1)).sum()) for one, other in pairs),
            len(questions),
            sum(_is_right(executor, *pair) for pair in zip(questions, answers, strict=True)),
            sum(one == other for one, other in zip(right_answers, answers, strict=True)),
        )


def logits(executor: TorchExecutor, token_ids: Sequence[int]) -> Tensor:
    """`[num_tokens, vocab]` float32: what follows each token of a text, computed in one step."""
    blocks = tuple(range(-(-len(token_ids) // executor.block_size)))
    row = Row("text", tuple(token_ids), 0, blocks, False, 0, SamplingParams())
    decoder = executor.decoder
    windows = executor.config.windows
    batch = TokenBatch.of([row], executor.block_size, decoder.attention, executor.device, windows)
    found, _ = decoder(batch, executor.kv_cache, torch.arange(len(token_ids)))
    return found


def token_s(executor: TorchExecutor, prompt: Sequence[int]) -> float:
    """Median seconds of a step in which one request decodes."""
    engine = Engine(executor, prefix_caching=False)
    times_s: list[float] = []
    sampling = SamplingParams(NUM_TIMED + 4, ignore_eos=True)
    engine.submit(Request("timed", tuple(prompt[:64]), sampling), 0.0)
    while True:
        began_s = time.perf_counter()
        if not engine.step(0.0):
            return statistics.median(times_s[-NUM_TIMED:])
        times_s.append(time.perf_counter() - began_s)


def _load(model: str, precision: Precision) -> TorchExecutor:
    return TorchExecutor(
        model,
        num_blocks=NUM_BLOCKS,
        dtype=precision.dtype,
        quantization=precision.quantization,
        kv_cache_dtype=precision.kv_cache,
    )


def _kv_bytes(executor: TorchExecutor) -> int:
    c = executor.config
    shape = KVShape(c.num_hidden_layers, c.num_kv_heads, c.head_dim)
    return shape.bytes_per_token(executor.precision.kv_dtype)


def _questions(executor: TorchExecutor, count: int) -> list[Arrival]:
    def encode(text: str) -> list[int]:
        return executor.tokenizer.encode(text, add_special_tokens=False)

    return make_traffic("quality", count, encode, rate_per_s=1e6)


def _answers(executor: TorchExecutor, questions: Sequence[Arrival]) -> list[tuple[int, ...]]:
    engine = Engine(executor, ContinuousBatching(512, max_running=8))
    client = LocalClient(engine, EventLoop(WallClock()))
    replay = Replay.of(questions)
    replay.run(client, client.run)
    tokens = replay.tokens()
    return [tokens.get(question.id, ()) for question in questions]


def _is_right(executor: TorchExecutor, arrival: Arrival, token_ids: Sequence[int]) -> bool:
    text = executor.tokenizer.decode(token_ids)
    return arrival.question is not None and is_qualified(arrival.question, text, "v1")
