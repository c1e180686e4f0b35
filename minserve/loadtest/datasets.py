"""What is asked: endless, seeded sequences of samples, made as they are needed and then forgotten.

A sample is independent of when it is sent (`arrivals`) and of who sends it (`generator`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minserve.errors import ConfigError, DataNotFound
from minserve.loadtest.traces import FIRST_TOKEN, Row
from minserve.northstar.lengths import LengthTable
from minserve.northstar.traffic import Arrival, make_traffic
from minserve.request import Identity, Request, SamplingParams, WorkloadClass

Encode = Callable[[str], Sequence[int]]
SEASON = 4_000
WORDS = ("the", "report", "plan", "account", "covers", "two", "people", "until", "year", "note")


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing to ask. It has `text` or `token_ids`, or both where they say the same.

    `deadline_s` counts from the intended send time. `kind` is a bounded label to report by.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams(max_tokens=128)
    kind: str = ""
    identity: Identity = Identity("default")
    cache_salt: str = ""
    workload_class: WorkloadClass = WorkloadClass.STANDARD
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A sample and the time, in seconds from the start, at which it is meant to be sent."""

    id: str
    at_s: float
    sample: Sample

    def request(self, encode: Encode | None = None) -> Request:
        """What an `EngineClient` takes; `encode` is needed where a sample has only text."""
        sample, token_ids = self.sample, self.sample.token_ids
        if token_ids is None:
            if encode is None:
                raise ConfigError("this traffic is text", "give a tokenizer, or use token ids")
            token_ids = tuple(encode(sample.text or ""))
        return Request(
            self.id,
            token_ids,
            sample.sampling,
            identity=sample.identity,
            workload_class=sample.workload_class,
            arrival_s=self.at_s,
            deadline_s=None if sample.deadline_s is None else self.at_s + sample.deadline_s,
            priority=sample.priority,
            cache_salt=sample.cache_salt,
        )


def calls(
    times_s: Iterable[float], samples: Iterable[Sample], limit: int | None = None
) -> Iterator[Call]:
    """Samples at their times, at most `limit`, until either ends."""
    for number, (time_s, sample) in enumerate(zip(times_s, samples, strict=False)):
        if number == limit:
            return
        yield Call(f"{sample.kind or 'r'}-{number:06}", time_s, sample)


def cut(sample: Sample, max_total_tokens: int) -> Sample:
    """The sample cut to `max_total_tokens`: its prompt to three quarters of that at most.

    A sample of text alone is left as it is: its length is known only to the server.
    """
    if sample.token_ids is None or sample.text is not None:
        return sample
    token_ids = sample.token_ids[: max(1, max_total_tokens * 3 // 4)]
    room = max(1, max_total_tokens - len(token_ids))
    sampling = replace(sample.sampling, max_tokens=min(sample.sampling.max_tokens, room))
    return replace(sample, token_ids=token_ids, sampling=sampling)


# -- made up


def random_tokens(
    rng: random.Random,
    input_len: int,
    output_len: int,
    *,
    range_ratio: float = 0.0,
    prefix_len: int = 0,
    vocab: int = 1000,
) -> Iterator[Sample]:
    """Random token ids behind one shared prefix, as `vllm bench serve` has them.

    Lengths are uniform within `range_ratio` of their means: 0 forces every one to the mean.
    """
    if input_len < 1 or output_len < 1 or prefix_len < 0 or not 0 <= range_ratio < 1:
        raise ConfigError(
            f"lengths {input_len}, {output_len}, {prefix_len} within {range_ratio}",
            "use lengths of 1 or more and a range ratio from 0 up to 1",
        )
    prefix = _random_ids(rng, prefix_len, vocab)
    while True:
        num_prompt, num_output = (
            rng.randint(max(1, round(n * (1 - range_ratio))), round(n * (1 + range_ratio)))
            for n in (input_len, output_len)
        )
        yield _of_lengths(prefix + _random_ids(rng, num_prompt, vocab), num_output)


def shared_prefix(
    rng: random.Random,
    *,
    num_prefixes: int = 8,
    prefix_len: int = 256,
    suffix_len: int = 64,
    output_len: int = 32,
    vocab: int = 1000,
) -> Iterator[Sample]:
    """Long prefixes, each shared by many requests whose ends differ: chats, templates, tools."""
    if min(num_prefixes, prefix_len, suffix_len, output_len) < 1:
        raise ConfigError(
            "an empty prefix, suffix or answer", "use lengths and counts of 1 or more"
        )
    prefixes = [_random_ids(rng, prefix_len, vocab) for _ in range(num_prefixes)]
    while True:
        prompt = rng.choice(prefixes) + _random_ids(rng, suffix_len, vocab)
        yield _of_lengths(prompt, output_len)


def from_table(
    name: str, rng: random.Random, *, scale: float = 1.0, vocab: int = 1000
) -> Iterator[Sample]:
    """(prompt, output) length pairs bootstrapped from a shipped quantile table, times `scale`.

    `name` is `azure_conv` or `mooncake_conversation`; prompts share nothing.
    """
    table = LengthTable.load(name)
    while True:
        num_prompt, num_output = (max(1, round(n * scale)) for n in table.draw(rng))
        yield _of_lengths(_random_ids(rng, num_prompt, vocab), num_output)


def from_trace(
    rows: Iterable[Row], rng: random.Random, *, scale: float = 1.0, vocab: int = 1000
) -> Iterator[Sample]:
    """The rows of a trace: its lengths times `scale`, and its shared prefixes where it has them.

    Scaled, every block shrinks alike, so the same share of each prompt stays shared.
    """
    for row in rows:
        if row.blocks:
            prompt = row.prompt_token_ids(vocab, scale)
        else:
            prompt = _random_ids(rng, max(1, round(row.num_prompt_tokens * scale)), vocab)
        yield _of_lengths(prompt, max(1, round(row.num_output_tokens * scale)))


# -- from files


def sharegpt(
    path: Path, rng: random.Random, encode: Encode, output_len: int | None = None
) -> Iterator[Sample]:
    """First turns of conversations, shuffled, over and over; the answer's length is forced.

    JSON, or JSON lines, of `{"conversations": [{"value": ...}, {"value": ...}]}` (ShareGPT), or of
    `{"prompt": ..., "completion": ...}` or `{"prompt": ..., "max_tokens": ...}`.
    Raises `DataNotFound` if the file holds none.
    """
    pairs = list(_pairs(path))
    if not pairs:
        raise DataNotFound(f"{path} holds no conversation", "see `minserve loadtest --help`")
    while True:
        rng.shuffle(pairs)
        for prompt, answer in pairs:
            length = answer if isinstance(answer, int) else len(encode(answer))
            sampling = SamplingParams(max_tokens=output_len or max(1, length), ignore_eos=True)
            yield Sample(prompt, sampling=sampling)


def _pairs(path: Path) -> Iterator[tuple[str, str | int]]:
    try:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if text.lstrip().startswith("[") else map(json.loads, _lines(text))
        for row in rows:
            if "conversations" in row:
                turns = row["conversations"]
                if len(turns) >= 2:
                    yield turns[0]["value"], turns[1]["value"]
            else:
                yield row["prompt"], row.get("completion", int(row.get("max_tokens", 128)))
    except OSError as error:
        raise DataNotFound(f"cannot read {path}: {error.strerror}", "give --dataset-path") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataNotFound(
            f"{path} is not ShareGPT-style: {error!r}", "see `minserve loadtest --help`"
        ) from None


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def northstar(
    encode: Encode, count: int, seed: int = 0, max_total_tokens: int = 2048
) -> Iterator[Sample]:
    """Northstar's timing set: `count` samples with tenants, classes, salts and deadlines.

    Made a season at a time, each from its own seed, so that memory holds one: chats end with it.
    """
    for season, first in enumerate(range(0, count, SEASON)):
        traffic = make_traffic(
            "timing",
            min(SEASON, count - first),
            encode,
            rate_per_s=1.0,
            seed=seed + season * 1_000_003,
            max_total_tokens=max_total_tokens,
        )
        for arrival in traffic:
            yield sample_of(arrival)


def sample_of(arrival: Arrival) -> Sample:
    """What one arrival of Northstar's traffic asks, without when."""
    return Sample(
        arrival.prompt,
        arrival.prompt_token_ids,
        arrival.sampling,
        arrival.kind,
        arrival.identity,
        arrival.cache_salt,
        arrival.workload_class,
        arrival.priority,
        arrival.deadline_s - arrival.arrival_s,
    )


def words(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The same lengths as plain words, for a chat endpoint that takes no token ids.

    About one token a word: the server's usage says how many they were. Equal tokens become equal
    words, so prefixes stay shared.
    """
    for sample in samples:
        if sample.text is None:
            text = " ".join(WORDS[token % len(WORDS)] for token in sample.token_ids or ())
            sample = replace(sample, text=text, token_ids=None)
        yield sample


def _random_ids(rng: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(FIRST_TOKEN, vocab), k=count))


def _of_lengths(token_ids: tuple[int, ...], num_output: int) -> Sample:
    return Sample(
        token_ids=token_ids, sampling=SamplingParams(max_tokens=num_output, ignore_eos=True)
    )
