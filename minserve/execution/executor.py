"""The seam between scheduling and computing: a plan goes in, tokens come out.

An executor never decides who runs and never advances time. The driver that owns the event queue
launches a step, lets arrivals and cancellations happen while it is in flight, and collects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from minserve.events import TokenLogprob
from minserve.kv.blocks import BlockCopy
from minserve.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """One request's share of a step.

    `token_ids` are computed at positions `start`, `start + 1`, ...; their keys and values go to
    `block_table[position // block_size]`, slot `position % block_size`. Positions before `start`
    are already in those blocks. If `sample` is set, the last token's logits yield the next token,
    number `output_position` of the request's output.

    The last `num_draft_tokens` of `token_ids` are guesses of what the output goes on with. Then
    every logit from before the first guess on yields a token, up to the first that contradicts
    the guess after it; what was written for the guesses from there on is overwritten later.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sample: bool
    output_position: int
    sampling: SamplingParams
    adapter: str = ""
    num_draft_tokens: int = 0
    history: tuple[int, ...] = ()
    """Prompt and output tokens so far; only for sampling that has penalties."""

    @property
    def draft_token_ids(self) -> tuple[int, ...]:
        """The guesses among `token_ids`."""
        return self.token_ids[len(self.token_ids) - self.num_draft_tokens :]

    @property
    def num_context_tokens(self) -> int:
        """Tokens that the last computed token attends to, itself included."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one forward pass computes: prefill chunks and decodes together.

    Before anything else the copies are made, one after another: a later one may write to the
    source of an earlier one.
    """

    step: int
    rows: tuple[Row, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of each row, in the plan's order.

    `token_ids[i]` are the output tokens of row i: none if it did not sample, else one, and one
    more for each draft token that was right. `errors` maps a row's index to why it alone failed;
    `logprobs` the index of a row that asks for them to those of each of its output tokens.
    """

    token_ids: tuple[tuple[int, ...], ...]
    errors: dict[int, str]
    logprobs: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)


def accepted(draft: Sequence[int], tokens: Sequence[int]) -> tuple[int, ...]:
    """Those of `tokens` that stand, where `tokens[i + 1]` was computed on the guess `draft[i]`:
    up to and including the first that differs from its guess, or all.
    """
    pairs = zip(draft, tokens, strict=False)
    num_right = next((i for i, (guess, token) in enumerate(pairs) if guess != token), len(draft))
    return tuple(tokens[: num_right + 1])


class Handle(Protocol):
    """A step in flight. `ready_at_s` is when its result exists; None means: collect to find out."""

    @property
    def plan(self) -> StepPlan: ...

    @property
    def ready_at_s(self) -> float | None: ...


H = TypeVar("H", bound=Handle)


class Executor(Protocol[H]):
    """Computes steps over a KV cache of `num_blocks` blocks of `block_size` tokens.

    `launch(plan, now_s)` starts a step and returns at once or after computing it; the plan's
    blocks belong to the executor until `collect(handle)` returns their result. Steps are collected
    in the order of launch, each exactly once. A failure of one row is reported in
    `StepResult.errors`; an exception from either call means that the executor is lost. `H` is its
    own kind of handle: it collects what it launched.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    cache_namespace: str
    """Names model, tokenizer, template and precision: prefix hashes under another never match."""

    def launch(self, plan: StepPlan, now_s: float) -> H: ...

    def collect(self, handle: H) -> StepResult: ...


class Speculator(Protocol):
    """Guesses output tokens before the model has computed them (Leviathan et al., 2023).

    Guesses are checked by the model itself, so a bad one costs time and changes no token. All
    requests are only read.
    """

    def propose(self, requests: Sequence[Request], num_tokens: int) -> Sequence[Sequence[int]]:
        """For each of `requests`, which all decode in a step of `num_tokens` tokens, what its
        output may go on with; empty where a guess would not pay.
        """

    def verified(self, request: Request, num_proposed: int, num_right: int) -> None:
        """A step computed that many guesses for `request`, of which the first `num_right` hold."""

    def forget(self, request: Request) -> None:
        """`request` has ended; nothing may be known of it, and this is asked once."""
