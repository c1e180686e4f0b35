"""What a request is: plain data with derived properties.

A `Request` is created by whoever accepts work (the server, a replay, a test) and from then on is
changed only by `minserve.scheduling.scheduler.Scheduler`. Everything else may read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when they stop.

    `temperature == 0` is greedy. `top_k == 0` and `top_p == 1` switch those filters off. Noise is
    a function of (`seed`, output position) alone, so batching, preemption and neighbours cannot
    shift it. `max_tokens` counts output tokens.

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

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {self.max_tokens}", "ask for at least 1 token")
        if not 0 <= self.temperature < float("inf"):
            raise InvalidRequest(f"temperature is {self.temperature}", "use 0 (greedy) or more")
        if self.top_k < 0:
            raise InvalidRequest(f"top_k is {self.top_k}", "use 0 (off) or a positive count")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p is {self.top_p}", "use a value in (0, 1]")
        if "" in self.stop:
            raise InvalidRequest("a stop string is empty", "leave it out, or give some text")


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
    number: int = 0
    last_step: int = -1
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_token_ids = tuple(self.prompt_token_ids)
        if not self.prompt_token_ids:
            raise InvalidRequest(f"request {self.id!r} has an empty prompt", "send some text")
        self.timeline = Timeline(self.arrival_s)

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

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """The token ids at positions `start` to `end` (exclusive) of prompt and output."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        output = self.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
        return (*self.prompt_token_ids[start:], *output)
