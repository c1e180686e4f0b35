"""What a request is: plain data with derived properties.

A `Request` is created by whoever accepts work (the server, a replay, a test) and from then on is
changed only by `minserve.scheduling.scheduler.Scheduler`. Everything else may read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b

from minserve.errors import InvalidRequest


class WorkloadClass(StrEnum):
    """A bounded label for the kind of work; safe as a metric label, unlike a tenant id."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Status(StrEnum):
    """Where a request is in its life. FINISHED is the only terminal state."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended; every request ends for exactly one reason."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking, as the server's own records say; never taken from a request body."""

    tenant: str
    subject: str = ""
    roles: frozenset[str] = frozenset()


MAX_CHOICES = 16
MAX_LOGPROBS = 20
_INFINITY = float("inf")
# What each number may be: lowest, highest, and whether the lowest itself is allowed.
_RANGES = {
    "max_tokens": (1, _INFINITY, True),
    "temperature": (0, 1e6, True),
    "top_k": (0, _INFINITY, True),
    "top_p": (0, 1, False),
    "min_p": (0, 1, True),
    "repetition_penalty": (0, 1e6, False),
    "presence_penalty": (-2, 2, True),
    "frequency_penalty": (-2, 2, True),
    "min_tokens": (0, _INFINITY, True),
    "logprobs": (0, MAX_LOGPROBS, True),
    "n": (1, MAX_CHOICES, True),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when they stop.

    `temperature == 0` is greedy. Noise is a function of (`seed`, output position) alone, so
    batching, preemption, speculation and neighbours cannot shift it.

    - `top_k` keeps the k likeliest (0: off), then `top_p` the likeliest of that much mass (1: off),
      then `min_p` those at least that share as likely as the likeliest (0: off).
    - `repetition_penalty` divides the positive and multiplies the negative logits of every token
      of prompt and output (CTRL, Keskar 2019; 1: off). Of output tokens alone, `presence_penalty`
      is taken off once and `frequency_penalty` once per occurrence (OpenAI; -2 to 2, 0: off).
    - `max_tokens` and `min_tokens` count output tokens. Before `min_tokens` no end-of-sequence and
      no stop token can be chosen; a stop string still ends the text.
    - `logprobs` asks for the log-probability of each chosen token and of the so many likeliest
      (None: off), as the model gave them: before penalties, temperature and filters.
    - `n` choices are made of one prompt, which is computed once; see `Request.choice_ids`.

    Raises `InvalidRequest` for a value that has no meaning.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        for name, (low, high, is_low_allowed) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            if not (low < value <= high or (is_low_allowed and value == low)):
                least = "from" if is_low_allowed else "above"
                most = "" if high == _INFINITY else f", at most {high:g}"
                raise InvalidRequest(f"{name} is {value}", f"use a value {least} {low}{most}")
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}",
                "ask for no more than may come",
            )
        if "" in self.stop:
            raise InvalidRequest("a stop string is empty", "leave it out, or give some text")

    @property
    def has_penalties(self) -> bool:
        """The tokens so far change what comes next beyond the model's own view of them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def of_choice(self, index: int) -> SamplingParams:
        """For one choice alone: the first keeps the seed, each other has one of its own."""
        if index == 0:
            return replace(self, n=1)
        digest = blake2b(f"{self.seed}/{index}".encode(), digest_size=8).digest()
        return replace(self, n=1, seed=int.from_bytes(digest, "little"))


@dataclass(slots=True)
class Timeline:
    """When things happened to one request, in seconds on the engine's clock; None until then.

    `arrival_s` is the intended send time, so a late submission counts against the server.
    """

    arrival_s: float
    scheduled_s: float | None = None
    finished_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)

    @property
    def queue_delay_s(self) -> float | None:
        """Arrival to first scheduled step."""
        return None if self.scheduled_s is None else self.scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: arrival to the first output token."""
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: N tokens give N - 1 gaps."""
        times = self.token_times_s
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; undefined (None) for fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def e2e_s(self) -> float | None:
        """Arrival to the last token."""
        return self.token_times_s[-1] - self.arrival_s if self.token_times_s else None


@dataclass(eq=False, slots=True)
class Request:
    """One generation: what was asked, and how far it has come.

    The tokens of a request are its prompt followed by its output. `num_computed_tokens` of them
    have their keys and values in the blocks of `block_table`; computing the last of them yields
    the next output token. Preemption sets `num_computed_tokens` to 0 and keeps the output.

    A request for several choices is the first of them itself. Once its prompt is computed, the
    others split off as requests of their own, which share its blocks: `choice_ids` names them all.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    identity: Identity = Identity("default")
    workload_class: WorkloadClass = WorkloadClass.STANDARD
    arrival_s: float = 0.0
    deadline_s: float | None = None
    priority: int = 0
    adapter: str = ""
    cache_salt: str = ""

    # Owned by the scheduler. `last_step` is the last in which it, or its group, had a turn.
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None
    output_token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_bypasses: int = 0
    num_forks_to_come: int = field(init=False)
    number: int = 0
    last_step: int = -1
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_token_ids = tuple(self.prompt_token_ids)
        if not self.prompt_token_ids:
            raise InvalidRequest(f"request {self.id!r} has an empty prompt", "send some text")
        self.num_forks_to_come = self.sampling.n - 1
        self.timeline = Timeline(self.arrival_s)

    @property
    def choice_ids(self) -> list[str]:
        """The ids of all choices, in order: its own, then `id#1`, `id#2`, ..."""
        return [self.id, *(f"{self.id}#{index}" for index in range(1, self.sampling.n))]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def max_total_tokens(self) -> int:
        """The most tokens this request can come to hold."""
        return len(self.prompt_token_ids) + self.sampling.max_tokens

    @property
    def is_prefill(self) -> bool:
        """More than the newest token is still to be computed."""
        return self.num_tokens - self.num_computed_tokens > 1

    def fork(self, now_s: float) -> Request:
        """The next choice to come: a running request of its own, which has no block yet."""
        index = self.sampling.n - self.num_forks_to_come
        self.num_forks_to_come -= 1
        choice = replace(
            self,
            id=self.choice_ids[index],
            sampling=self.sampling.of_choice(index),
            output_token_ids=[],
            block_table=[],
            block_hashes=[],
            num_preemptions=0,
        )
        choice.timeline.scheduled_s = now_s
        return choice

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """The token ids at positions `start` to `end` (exclusive) of prompt and output."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        output = self.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
        return (*self.prompt_token_ids[start:], *output)
