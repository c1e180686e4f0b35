"""An executor that computes nothing: it knows what a step costs and answers with fixed tokens.

The scheduler cannot tell it from a real one, so policies can be tried on a virtual clock, at sizes
that this machine could not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from minserve.errors import ConfigError
from minserve.execution.executor import Row, StepPlan, StepResult, accepted


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds that a step takes: a fixed part, plus so much per token, row and context token.

    `per_context_token_s` counts every cached token that a computed token attends to, which is what
    makes long prompts cost more than their length; `per_read_token_s` counts each row's context
    once, as memory is read; `per_chunk_s` counts rows of more than one token, and
    `per_chunk_token_s` their tokens. The defaults are round figures of the size of northstar-nano
    on two CPU cores; `minserve calibrate` fits them.
    """

    per_step_s: float = 2e-3
    per_token_s: float = 4e-5
    per_row_s: float = 5e-5
    per_context_token_s: float = 2e-8
    per_read_token_s: float = 0.0
    per_chunk_s: float = 0.0
    per_chunk_token_s: float = 0.0

    def step_s(self, plan: StepPlan) -> float:
        """Duration of one step in seconds."""
        return self.seconds((len(row.token_ids), row.num_context_tokens) for row in plan.rows)

    def seconds(self, rows: Iterable[tuple[int, int]]) -> float:
        """The same, from (tokens computed, tokens in context) of each row."""
        num_rows = num_tokens = num_attended = num_read = 0
        num_chunks = num_chunk_tokens = 0
        for count, context in rows:
            num_rows += 1
            num_tokens += count
            num_attended += count * (2 * context - count + 1)
            num_read += context
            if count > 1:
                num_chunks += 1
                num_chunk_tokens += count
        return (
            self.per_step_s
            + self.per_token_s * num_tokens
            + self.per_row_s * num_rows
            + self.per_context_token_s * num_attended / 2
            + self.per_read_token_s * num_read
            + self.per_chunk_s * num_chunks
            + self.per_chunk_token_s * num_chunk_tokens
        )


@dataclass(frozen=True, slots=True)
class SimulatedHandle:
    """A step that is over at `ready_at_s`."""

    plan: StepPlan
    ready_at_s: float


def repeatable_token(row: Row, vocab_size: int = 50_000) -> int:
    """A token that depends on (request, output position) alone, whatever the schedule."""
    text = f"{row.request_id}/{row.output_position}".encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "little") % vocab_size


class SimulatedExecutor:
    """Implements `Executor` over `num_blocks` imaginary blocks of `block_size` tokens."""

    def __init__(
        self,
        num_blocks: int = 1024,
        block_size: int = 16,
        *,
        cost: CostModel | None = None,
        max_model_len: int = 8192,
        eos_token_ids: frozenset[int] = frozenset(),
        token: Callable[[Row], int] = repeatable_token,
    ) -> None:
        if max_model_len < 1:
            raise ConfigError(f"max_model_len is {max_model_len}", "use at least 1 token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.cache_namespace = "simulated"
        self._cost = cost or CostModel()
        self._token = token

    def launch(self, plan: StepPlan, now_s: float) -> SimulatedHandle:
        return SimulatedHandle(plan, now_s + self._cost.step_s(plan))

    def collect(self, handle: SimulatedHandle) -> StepResult:
        rows = handle.plan.rows
        return StepResult(tuple(self._tokens(row) if row.sample else () for row in rows), {})

    def _tokens(self, row: Row) -> tuple[int, ...]:
        if not row.num_draft_tokens:  # nearly all rows, and a copy would be dearer than the step
            return (self._token(row),)
        positions = range(row.output_position, row.output_position + row.num_draft_tokens + 1)
        tokens = [self._token(replace(row, output_position=position)) for position in positions]
        return accepted(row.draft_token_ids, tokens)
