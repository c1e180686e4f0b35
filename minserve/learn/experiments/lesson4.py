"""Lesson 4's experiments: prompts that begin alike, what that saves, and what is kept."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, StepStarted
from minserve.execution.executor import Executor
from minserve.execution.simulated import SimulatedExecutor
from minserve.kv.prefix import root_hash
from minserve.learn.experiments.common import BIG_MODEL, again, quantile, ttft_s
from minserve.learn.prefix import LeafFirstCache, block_hashes, install
from minserve.request import Request, SamplingParams

BLOCK = 16
Hashes = Callable[[Sequence[int], int, bytes], list[bytes]]


# -- runs


@dataclass(slots=True)
class Run:
    """What came of a run. Times are the clock's, in seconds; token counts need none."""

    requests: list[Request]
    events: list[Event]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of everybody."""
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_reused_tokens(self) -> int:
        """Prompt tokens that were found in the cache."""
        return sum(request.num_cached_tokens for request in self.requests)

    @property
    def num_prefilled_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self._computed(is_prompt=True)

    @property
    def num_decoded_tokens(self) -> int:
        """Tokens that were computed while answers were written."""
        return self._computed(is_prompt=False)

    @property
    def token_hit_rate(self) -> float:
        """Reused share of all prompt tokens."""
        return self.num_reused_tokens / self.num_prompt_tokens

    @property
    def request_hit_rate(self) -> float:
        """Share of the requests that reused something, however little."""
        return sum(r.num_cached_tokens > 0 for r in self.requests) / len(self.requests)

    @property
    def answers(self) -> list[list[int]]:
        """The tokens of every answer."""
        return [list(request.output_token_ids) for request in self.requests]

    def ttft_s(self, share: float = 0.5) -> float:
        """A quantile of the time to first token."""
        return quantile([ttft_s(request) for request in self.requests], share)

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `HEADING`."""
        return (
            name,
            f"{self.num_prompt_tokens:,}",
            f"{self.num_prefilled_tokens:,}",
            f"{self.token_hit_rate:.0%}",
            f"{self.ttft_s(0.5):.2f}",
            f"{self.ttft_s(0.95):.2f}",
        )

    def _computed(self, is_prompt: bool) -> int:
        lengths = {request.id: request.num_prompt_tokens for request in self.requests}
        return sum(
            count
            for event in self.events
            if isinstance(event, StepStarted)
            for name, count, context in event.rows
            if (context <= lengths[name]) is is_prompt
        )


HEADING = (
    "prompts",
    "prompt tokens",
    "computed",
    "hit rate (tokens)",
    "TTFT p50 (s)",
    "TTFT p95 (s)",
)


def simulate(requests: Sequence[Request], *, caching: bool = True, num_blocks: int = 16_384) -> Run:
    """Serve fresh copies of `requests` on the virtual clock, at the costs of a large model."""
    requests = [again(request) for request in requests]
    engine = Engine(SimulatedExecutor(num_blocks, BLOCK, cost=BIG_MODEL), prefix_caching=caching)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    for request in requests:
        client.send(request)
    client.run()
    engine.check_integrity()
    return Run(requests, engine.log.events)


def serve(
    executor: Executor,
    requests: Sequence[Request],
    make: Callable[[], Any] | None = None,
    hash_blocks: Hashes = block_hashes,
) -> Run:
    """Serve fresh copies of `requests`, one after the other, reusing prefixes by these parts.

    Without `make` there is no prefix cache.
    """
    requests = [again(request) for request in requests]
    engine = Engine(executor, prefix_caching=make is not None)
    if make is not None:
        install(engine, make, hash_blocks)
    for request in requests:
        engine.submit(request, 0.0)
        while engine.step(0.0):
            engine.check_integrity()
    return Run(requests, engine.log.events)


def tokens(name: str, count: int) -> list[int]:
    """`count` token ids that belong to `name`: the same each time, and like nobody else's."""
    rng = random.Random(name)
    return [rng.randrange(5, 50_000) for _ in range(count)]


def ask(
    id: str, *pieces: Sequence[int], answer: int = 40, at_s: float = 0.0, salt: str = ""
) -> Request:
    """A request whose prompt is these pieces, one behind the other."""
    prompt = tuple(token for piece in pieces for token in piece)
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Request(id, prompt, sampling, arrival_s=at_s, cache_salt=salt)


# -- the incident


def morning(order: str, count: int = 60, rate_per_s: float = 6.0) -> list[Request]:
    """`count` questions; `order` says in which order a prompt's three pieces stand.

    `h` is a header of 20 tokens that is new each time (the date, the person's name, a request id),
    `s` the system prompt of 1,200 tokens that all share, `q` the question, 80 tokens.
    """
    rng, at_s, requests = random.Random(4), 0.0, []
    system = tokens("system prompt", 1200)
    for number in range(count):
        name = f"r{number:02}"
        pieces = {"h": tokens(f"header {name}", 20), "s": system, "q": tokens(name, 80)}
        requests.append(ask(name, *(pieces[letter] for letter in order), at_s=at_s))
        at_s += rng.expovariate(rate_per_s)
    return requests


# -- exact match


def changed(prompt: Sequence[int], position: int) -> list[int]:
    """The prompt with one other token at `position`."""
    copy = list(prompt)
    copy[position] = copy[position] + 1 if copy[position] < 100 else copy[position] - 1
    return copy


# -- decode


def long_and_short_answers() -> list[tuple[str, ...]]:
    """Cells under `ANSWERS_HEADING`: one prompt of 2,000 tokens, cold and warm."""
    rows: list[tuple[str, ...]] = []
    for answer in (20, 400):
        document = tokens("document", 2000)
        cold = ask("cold", document, tokens("one question", 20), answer=answer)
        warm = ask("warm", document, tokens("another", 20), answer=answer, at_s=100.0)
        run = simulate([cold, warm])
        for request in run.requests:
            line = request.timeline
            rows.append(
                (
                    f"{answer} tokens, {request.id}",
                    f"{line.ttft_s:.3f}",
                    f"{fmean(line.itl_s) * 1000:.2f}",
                    f"{line.e2e_s:.2f}",
                )
            )
    return rows


ANSWERS_HEADING = ("answer", "TTFT (s)", "mean gap between tokens (ms)", "all (s)")


# -- the hit rate


def greetings(count: int = 30) -> list[Request]:
    """Everybody begins with the same 32 tokens, and goes on with 1,000 of their own."""
    hello = tokens("hello", 32)
    return [
        ask(f"g{n:02}", hello, tokens(f"own text {n}", 1000), at_s=0.4 * n) for n in range(count)
    ]


def one_document(count: int = 30) -> list[Request]:
    """Every third person asks about one document of 3,000 tokens, the others ask something."""
    document = tokens("document", 3000)
    return [
        ask(f"d{n:02}", document if n % 3 == 0 else [], tokens(f"question {n}", 40), at_s=0.4 * n)
        for n in range(count)
    ]


# -- warm and cold


def run_twice() -> list[tuple[str, ...]]:
    """Name, hit rate and median TTFT of one benchmark, run twice on one server."""
    once = [ask(f"a{n}", tokens(f"prompt {n}", 800), at_s=0.3 * n) for n in range(20)]
    later = [ask(f"b{n}", tokens(f"prompt {n}", 800), at_s=60 + 0.3 * n) for n in range(20)]
    run = simulate([*once, *later])
    halves = {"before the change": run.requests[:20], "after it": run.requests[20:]}
    return [
        (name, f"{half.token_hit_rate:.0%}", f"{half.ttft_s():.3f}")
        for name, half in ((name, Run(some, [])) for name, some in halves.items())
    ]


# -- eviction


class PlainLru(LeafFirstCache):
    """Least recently used, whoever builds on it. For comparison: an engine must not do this."""

    def evict(self, is_used: Callable[[int], bool]) -> int | None:
        for key, (block, _) in self.known.items():
            if not is_used(block):
                del self.known[key]
                return block
        return None


def documents(num_documents: int = 8, num_questions: int = 80, seed: int = 4) -> list[list[int]]:
    """Prompts of 20 blocks of one of the documents and 2 blocks of question, in random order."""
    rng = random.Random(seed)
    return [
        tokens(f"document {rng.randrange(num_documents)}", 20 * BLOCK)
        + tokens(f"question {number}", 2 * BLOCK)
        for number in range(num_questions)
    ]


@dataclass(frozen=True, slots=True)
class Replay:
    """Blocks asked for, found, and (on average) kept although no prompt could match them."""

    num_asked: int
    num_found: int
    out_of_reach: float

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `REPLAY_HEADING`."""
        found = f"{self.num_found * BLOCK:,} ({self.num_found / self.num_asked:.0%})"
        return name, f"{self.num_asked * BLOCK:,}", found, f"{self.out_of_reach:.1f}"


REPLAY_HEADING = ("eviction", "prompt tokens", "reused", "blocks kept out of reach")


def replay(
    make: Callable[[], Any],
    prompts: Sequence[Sequence[int]],
    num_blocks: int,
    hash_blocks: Hashes = block_hashes,
) -> Replay:
    """Look up and register prompts, one after the other, in a cache of `num_blocks`."""
    cache, free = make(), list(range(num_blocks))
    holds: dict[int, tuple[bytes, bytes | None]] = {}
    asked = found = 0
    out_of_reach = []
    for prompt in prompts:
        hashes = hash_blocks(prompt, BLOCK, root_hash("lesson 4"))
        table = list(cache.match(hashes))
        asked, found = asked + len(hashes), found + len(table)
        for index in range(len(table), len(hashes)):
            block = free.pop() if free else cache.evict(table.__contains__)
            if block is None:
                break
            holds[block] = hashes[index], hashes[index - 1] if index else None
            table.append(block)
            cache.register(hashes, index, block)
        out_of_reach.append(_num_out_of_reach(holds.values()))
    return Replay(asked, found, fmean(out_of_reach))


def _num_out_of_reach(held: Any) -> int:
    parents = dict(held)

    def is_reachable(key: bytes | None) -> bool:
        return key is None or (key in parents and is_reachable(parents[key]))

    return sum(not is_reachable(key) for key in parents)


# -- what invalidates


def fingerprints(folder: Path) -> list[tuple[str, str]]:
    """The cache namespace of a model's folder, and after one change to each thing it names."""
    from minserve.execution.torch_executor import fingerprint

    def change(file: str, key: str, value: Any) -> Callable[[Path], None]:
        def edit(copy: Path) -> None:
            content = json.loads((copy / file).read_text(encoding="utf-8"))
            content[key] = value
            (copy / file).write_text(json.dumps(content), encoding="utf-8")

        return edit

    def train(copy: Path) -> None:
        weights = copy / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)

    changes: dict[str, tuple[Callable[[Path], None], str]] = {
        "nothing": (lambda copy: None, "float32"),
        "weights (one bit)": (train, "float32"),
        "tokenizer": (change("tokenizer.json", "truncation", {}), "float32"),
        "chat template": (change("tokenizer_config.json", "chat_template", "{{ x }}"), "float32"),
        "precision": (lambda copy: None, "bfloat16"),
    }
    rows = []
    for name, (edit, dtype) in changes.items():
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / folder.name
            shutil.copytree(folder, copy)
            edit(copy)
            rows.append((name, fingerprint(copy, dtype)))
    return rows


# -- pictures


def blocks_reused(run: Run) -> Mapping[str, list[bool]]:
    """Of each request, block by block, whether the prompt's block was reused."""
    return {
        request.id: [
            index < request.num_cached_tokens // BLOCK
            for index in range(-(-request.num_prompt_tokens // BLOCK))
        ]
        for request in run.requests
    }
