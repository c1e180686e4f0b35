"""Speculative decoding: guess a few tokens cheaply, let one step of the model check them all.

A step with four guesses costs little more than one with none while weights, not arithmetic, are
what it waits for; each guess that is right saves a whole step. A guess never changes a token: it
stands only if the model chooses the very same (see `minserve.models.sampling`), greedy or sampled,
with penalties, log-probabilities or stop strings.

Two ways to guess: `NgramProposer` looks up what followed the same words before, `DraftProposer`
asks a smaller model. `Speculation` decides for whom guessing pays, and reports what it brought.

Equivalent inputs: a guess and the token the model chooses, by id. Valid for the step that checks
it. Scope: the request alone. Order matters: the first wrong guess ends it. What is kept for a
cancelled request is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from minserve.errors import ConfigError, OutOfBlocks
from minserve.execution.executor import Executor, Row, StepPlan
from minserve.kv.blocks import BlockPool
from minserve.request import Request


class Proposer(Protocol):
    """Guesses tokens; `draft_cost` is the time of one guess as a share of a step of one row."""

    draft_cost: float

    def draft(self, requests: Sequence[Request], num_tokens: int) -> list[tuple[int, ...]]:
        """Up to `num_tokens` guesses for each request."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request, if anything."""


@dataclass(slots=True)
class _Record:
    num_proposed: float = 0.0
    num_right: float = 0.0
    num_skipped: int = 0

    @property
    def acceptance(self) -> float:
        return self.num_right / self.num_proposed if self.num_proposed else 1.0


class Speculation:
    """A `Speculator` that guesses with `proposer` for as long as that pays.

    With R requests decoding in a step of T tokens, a step costs 1 - c + cT, where c, `token_cost`,
    is what one more token costs as a share of a step of one. A guess costs c, and `draft_cost`,
    more; right guesses of all R rows bring as much as that many rows without. So guessing pays a
    request whose guesses are right more often than

        (c + draft_cost) * R / (1 - c + cT)

    which is low for a single stream and comes near 1 in a large batch, where arithmetic is short.
    A request that falls below (recent guesses count most) goes without; after `retry_after` of its
    steps it gets one trial, and comes back if that brings it above.

    `token_cost` depends on machine and model; the default is a round figure, not a measured one.
    """

    def __init__(
        self,
        proposer: Proposer,
        *,
        num_guesses: int = 4,
        token_cost: float = 0.1,
        retry_after: int = 32,
        memory: float = 0.9,
    ) -> None:
        if num_guesses < 1 or retry_after < 1 or not 0 <= token_cost <= 1 or not 0 <= memory < 1:
            raise ConfigError(
                f"{num_guesses} guesses, token_cost {token_cost}, retry after {retry_after} steps, "
                f"memory {memory}",
                "use at least 1 guess and step, a cost from 0 to 1 and a memory below 1",
            )
        self.proposer = proposer
        self.num_guesses = num_guesses
        self.token_cost = token_cost
        self.retry_after = retry_after
        self.memory = memory
        self._records: dict[str, _Record] = {}
        self.num_proposed = 0
        self.num_right = 0
        self.num_checks = 0
        self.num_skipped = 0

    @property
    def acceptance(self) -> float | None:
        """The share of all guesses that were right; None before the first."""
        return self.num_right / self.num_proposed if self.num_proposed else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a request's step gave on average, with guesses and without."""
        num_steps = self.num_checks + self.num_skipped
        return 1 + self.num_right / num_steps if num_steps else None

    def propose(self, requests: Sequence[Request], num_tokens: int) -> list[tuple[int, ...]]:
        cost = self.token_cost + self.proposer.draft_cost
        least = cost * len(requests) / (1 - self.token_cost + self.token_cost * num_tokens)
        chosen = [request for request in requests if self._pays(request, least)]
        drafts = dict(
            zip(
                (request.id for request in chosen),
                self.proposer.draft(chosen, self.num_guesses) if chosen else (),
                strict=True,
            )
        )
        guesses = [drafts.get(request.id, ()) for request in requests]
        self.num_skipped += sum(not guess for guess in guesses)
        return guesses

    def verified(self, request: Request, num_proposed: int, num_right: int) -> None:
        record = self._records[request.id]
        record.num_proposed = self.memory * record.num_proposed + num_proposed
        record.num_right = self.memory * record.num_right + num_right
        self.num_proposed += num_proposed
        self.num_right += num_right
        self.num_checks += 1

    def forget(self, request: Request) -> None:
        self._records.pop(request.id, None)
        self.proposer.forget(request.id)

    def _pays(self, request: Request, least: float) -> bool:
        record = self._records.setdefault(request.id, _Record())
        record.num_skipped += 1
        pays = record.acceptance > least or record.num_skipped > self.retry_after
        if pays:
            record.num_skipped = 0
        return pays


class NgramProposer:
    """What followed the last few tokens when they last occurred (prompt look-up, Saxena 2023).

    Costs nothing to speak of, and is right where an answer repeats its prompt: quotes, code that is
    edited, summaries. Longer matches go first. Each token is looked at once, so that a step's cost
    does not grow with the text.
    """

    draft_cost = 0.0

    def __init__(self, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ConfigError(f"n-grams of {shortest} to {longest}", "use 1 <= shortest <= longest")
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[str, tuple[dict[tuple[int, ...], int], int]] = {}

    def draft(self, requests: Sequence[Request], num_tokens: int) -> list[tuple[int, ...]]:
        return [self._look_up(request, num_tokens) for request in requests]

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)

    def _look_up(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        # `index` says where the tokens after an n-gram begin, the latest time that it occurred.
        index, start = self._indexes.get(request.id, ({}, 0))
        end, longest = request.num_tokens, self._sizes[0]
        first = max(0, start - longest)
        tokens = request.tokens(first, end)
        for position in range(start, end):
            for size in self._sizes:
                if position - size >= first:
                    index[tokens[position - size - first : position - first]] = position
        self._indexes[request.id] = index, end
        for size in self._sizes:
            found = index.get(tokens[len(tokens) - size :]) if end >= size else None
            if found is not None:
                return request.tokens(found, min(found + num_tokens, end))
        return ()


class DraftProposer:
    """Asks a smaller model, which runs on an executor, over blocks, of its own.

    It draws with the request's own sampling, seed and positions, and so with the noise that the
    checking model will draw with. What it has computed for a request is kept; where the output took
    another turn, it goes on from there. A request whose prompt is not yet computed here, at most
    `max_chunk_tokens` a step, or for which there are no blocks, gets no guess.

    `executor` must have the tokens of the model it guesses for: see `check_same_tokens`.
    """

    def __init__(
        self, executor: Executor, *, draft_cost: float = 0.1, max_chunk_tokens: int = 512
    ) -> None:
        self.executor = executor
        self.draft_cost = draft_cost
        self.max_chunk_tokens = max_chunk_tokens
        self.pool = BlockPool(executor.num_blocks, executor.block_size)
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, list[int]] = {}
        self._step = 0

    def draft(self, requests: Sequence[Request], num_tokens: int) -> list[tuple[int, ...]]:
        drafts: dict[str, list[int]] = {request.id: [] for request in requests}
        going = [r for r in requests if r.num_tokens + num_tokens <= self.executor.max_model_len]
        for _ in range(num_tokens):
            rows = [row for r in going if (row := self._row(r, drafts[r.id], num_tokens))]
            if not rows:
                break
            self._step += 1
            plan = StepPlan(self._step, tuple(rows))
            result = self.executor.collect(self.executor.launch(plan, 0.0))
            going = [r for r in going if any(row.sample and row.request_id == r.id for row in rows)]
            for index, (row, token_ids) in enumerate(zip(rows, result.token_ids, strict=True)):
                if index in result.errors:
                    going = [r for r in going if r.id != row.request_id]
                    self.forget(row.request_id)
                    continue
                self._computed[row.request_id] += row.token_ids
                drafts[row.request_id] += token_ids
        return [tuple(drafts[request.id]) for request in requests]

    def forget(self, request_id: str) -> None:
        self.pool.release(self._tables.pop(request_id, []))
        self._computed.pop(request_id, None)

    def _row(self, request: Request, draft: list[int], num_tokens: int) -> Row | None:
        """The next tokens to compute for a request; None if it has to go without guesses."""
        table = self._tables.setdefault(request.id, [])
        computed = self._computed.setdefault(request.id, [])
        held = request.num_tokens + len(draft)
        if not draft:  # keep what agrees with how the output went on
            # NOTE: only guesses can disagree, and of those there are no more than `num_tokens`.
            at = max(0, min(len(computed), held - 1) - num_tokens)
            recent = request.tokens(at, held - 1)
            pairs = zip(computed[at:], recent, strict=False)
            num_same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if num_same is None:
                num_same = min(len(computed) - at, len(recent))
            del computed[at + num_same :]
        start = len(computed)
        end = min(held, start + self.max_chunk_tokens)
        try:
            self.pool.append(table, start, end - start)
        except OutOfBlocks:
            return None
        new = request.tokens(start, min(end, request.num_tokens))
        tokens = (*new, *draft[max(0, start - request.num_tokens) :])
        history = request.tokens(0, request.num_tokens) if request.sampling.has_penalties else ()
        return Row(
            request.id,
            tokens,
            start,
            tuple(table),
            end == held,
            request.num_output_tokens + len(draft),
            request.sampling,
            history=history and (*history, *draft),
        )


class SimulatedProposer:
    """Is right with probability `acceptance`, the same guesses in every run, for the simulator.

    `token(request_id, position)` is what the simulated model will say; each guess is right or not
    by a hash of (request, position), whatever the schedule.
    """

    def __init__(
        self,
        token: Callable[[str, int], int],
        acceptance: float,
        draft_cost: float = 0.0,
    ) -> None:
        if not 0 <= acceptance <= 1:
            raise ConfigError(f"acceptance is {acceptance}", "use a share from 0 to 1")
        self.acceptance = acceptance
        self.draft_cost = draft_cost
        self._token = token

    def draft(self, requests: Sequence[Request], num_tokens: int) -> list[tuple[int, ...]]:
        return [
            tuple(self._guess(request.id, request.num_output_tokens + n) for n in range(num_tokens))
            for request in requests
        ]

    def forget(self, request_id: str) -> None:
        pass

    def _guess(self, request_id: str, position: int) -> int:
        digest = blake2b(f"{request_id}/{position}/guess".encode(), digest_size=4).digest()
        is_right = int.from_bytes(digest, "little") < self.acceptance * 2**32
        return self._token(request_id, position) + (not is_right)


def check_same_tokens(model, draft) -> None:
    """Raises `ConfigError` unless both tokenizers give every token the same id and text.

    model, draft: `minserve.models.tokenizer.Tokenizer`. A guess is an id, which must mean the same.
    """
    sizes = {model.vocab_size, draft.vocab_size}
    ids = range(model.vocab_size)
    if len(sizes) > 1 or any(model.token_bytes(i) != draft.token_bytes(i) for i in ids):
        raise ConfigError(
            "the draft model has another tokenizer than the model",
            "take a smaller model of the same family, or speculate by n-grams",
        )
