"""A learner's `decode_loop` that writes the answers of a server, all at once.

Each request has a loop in a thread of its own, and both sides meet once a token:

    engine's thread    logits of a row --> | forward() returns them
                       the next token  <-- | forward([token]) is called, or the loop returns

The engine reads the prompt, in chunks and out of the prefix cache; what a loop's first call reads
must be that prompt. So the loop chooses every token, and knows nothing of batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from minserve.execution.executor import Row
from minserve.learn.serving.guard import LOOKS, stop
from minserve.learn.serving.shelf import Shelf
from minserve.models.sampling import sample_rows
from minserve.request import Request

NAME = "decode_loop"


class _Over(BaseException):
    """The request has ended: thrown into its loop by `forward`."""


class Loops:
    """Chooses tokens as `minserve.models.sampling.sample_rows` does, by the learner's loops.

    Only plain greedy rows: a loop knows neither temperature nor penalties, so others are sampled
    as ever. `request_of(id)` is a running request.
    """

    def __init__(self, shelf: Shelf, request_of: Callable[[str], Request]) -> None:
        self._shelf, self._request_of = shelf, request_of
        self._loops: dict[str, Loop] = {}

    def __call__(self, logits: Any, rows: Sequence[Row], eos_token_ids: frozenset[int]) -> tuple:
        """See `sample_rows`. Raises `PartFailed`."""
        if any(row.num_draft_tokens for row in rows):
            return sample_rows(logits, rows, eos_token_ids)
        tokens: list = [()] * len(rows)
        logprobs: list = [()] * len(rows)
        others = [n for n, row in enumerate(rows) if not _is_plain(row)]
        if others:
            sampled = sample_rows(logits[others], [rows[n] for n in others], eos_token_ids)
            for n, chosen, asked in zip(others, *sampled, strict=True):
                tokens[n], logprobs[n] = chosen, asked
        for n in set(range(len(rows))) - set(others):
            row_logits = logits[n].float().cpu().numpy().copy()
            tokens[n] = (self._next(rows[n], row_logits, eos_token_ids),)
        return tokens, logprobs

    def end(self, request_id: str) -> None:
        """A request is over; its loop ends at its next call."""
        if loop := self._loops.pop(request_id, None):
            loop.end()

    def end_all(self) -> None:
        """Every request is over."""
        for request_id in list(self._loops):
            self.end(request_id)

    def _next(self, row: Row, logits: Any, eos_token_ids: frozenset[int]) -> int:
        shelf, loop = self._shelf, self._loops.get(row.request_id)
        shelf.ledger.note(NAME, row.request_id)
        if loop is None:
            request = self._request_of(row.request_id)
            ends = frozenset() if row.sampling.ignore_eos else eos_token_ids
            ends |= frozenset(row.sampling.stop_token_ids)
            target = shelf.books[NAME].target
            loop = self._loops[row.request_id] = Loop(target, request, ends, shelf.guard.limit_s)
        try:
            token = loop.next(logits)
        except _Wrong as wrong:
            raise shelf.guard.failed(NAME, str(wrong)) from wrong.__cause__
        if not 0 <= token < len(logits):
            raise shelf.guard.failed(NAME, f"it chose token {token} of {len(logits)}")
        return token


def _is_plain(row: Row) -> bool:
    s = row.sampling
    return s.temperature == 0 and s.logprobs is None and not (s.has_penalties or s.min_tokens)


class _Wrong(Exception):
    """What a loop did instead of choosing a token."""


class Loop:
    """One request's loop. `next` belongs to the engine's thread, `_run` is the loop's own."""

    def __init__(
        self, function: Callable, request: Request, ends: frozenset[int], limit_s: float
    ) -> None:
        self._function, self._ends, self._limit_s = function, ends, limit_s
        self._prompt = list(request.prompt_token_ids)
        self._max_tokens = request.sampling.max_tokens
        self._written: list[int] = []
        self._logits: SimpleQueue = SimpleQueue()
        self._answers: SimpleQueue = SimpleQueue()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def next(self, logits: Any) -> int:
        """The token that the loop chooses by `logits`. Raises `_Wrong`."""
        if not self._written:
            read = self._answer()
            if read != self._prompt:
                raise _Wrong(f"its first call reads {read!r:.80}, and not the prompt")
        if self._is_over:
            raise _Wrong(f"it stopped after {len(self._written)} tokens, and more were asked for")
        self._logits.put(logits)
        answer = self._answer()
        before: list[int] = self._written if self._is_over else []
        if len(answer) != len(before) + 1 or answer[:-1] != before:
            did = "returned" if self._is_over else "read"
            raise _Wrong(f"after {len(self._written)} tokens it {did} {answer!r:.80}")
        self._written.append(answer[-1])
        return answer[-1]

    def end(self) -> None:
        """Let the loop end, wherever it is."""
        self._logits.put(None)

    def _answer(self) -> list[int]:
        for _ in range(LOOKS):  # see there why it is not one long wait
            with suppress(Empty):
                kind, value = self._answers.get(timeout=self._limit_s / LOOKS)
                break
        else:
            stop(self._thread.ident or 0)
            raise _Wrong(f"no token within {self._limit_s:g} s: an endless loop?")
        self._is_over = kind == "returned"
        try:
            if kind == "raised":
                raise value
            return [int(token) for token in value]
        except Exception as error:
            raise _Wrong(f"{type(error).__name__}: {error}") from error

    def _run(self) -> None:
        try:
            written = self._function(
                self._forward, list(self._prompt), self._max_tokens, self._ends
            )
            self._answers.put(("returned", written))
        except _Over:
            pass
        except Exception as error:
            self._answers.put(("raised", error))
        except BaseException as error:  # stopped, or it called exit()
            self._answers.put(("raised", RuntimeError(f"{type(error).__name__}")))

    def _forward(self, token_ids: Sequence[int]) -> Any:
        self._answers.put(("read", list(token_ids)))
        logits = self._logits.get()
        if logits is None:
            raise _Over
        return logits
