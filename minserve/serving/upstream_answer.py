"""An answer of an engine elsewhere, as it comes: bytes in, outputs out. Knows no connection."""

from __future__ import annotations

import json
from typing import Any

from minserve.events import TokenLogprob
from minserve.request import FinishReason, SamplingParams
from minserve.service import Ended, Output, Piece, Started

MAX_EVENT_BYTES = 1 << 20
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Why(str):
    """What went wrong, with an HTTP status and a name for machines."""

    status = 502
    code = "upstream_failed"

    def __new__(cls, text: str, code: str = code, status: int = status) -> Why:
        why = super().__new__(cls, text)
        why.code, why.status = code, status
        return why


class UpstreamFailed(Exception):
    """The upstream's answer is an error, or is none."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


class AnswerReader:
    """Reads a stream of /v1/completions into outputs of `minserve.service`.

    Tokens are counted by what a chunk says of itself, or else one for each chunk with text; the
    usage at the end puts that right. So the last choice's end is told after the usage has come.
    """

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self._rest = b""
        self._num_counted = 0
        self._num_output_tokens: int | None = None
        self._num_cached_tokens = self._num_cached_told = 0
        self._has_started = False
        self._open = set(range(sampling.n))
        self._last: Ended | None = None
        self.is_over = False
        """Every choice's end has been told."""

    def feed(self, data: bytes) -> list[Output]:
        """What these bytes say; they may end anywhere. Raises `UpstreamFailed`."""
        outputs: list[Output] = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UpstreamFailed(Why(f"an event of its stream exceeds {MAX_EVENT_BYTES} bytes"))
        for line in lines:
            if line.startswith(b"data:") and not self.is_over:
                outputs += self._event(line[5:].strip())
        return outputs

    def close(self) -> list[Output]:
        """The stream has ended. Raises `UpstreamFailed` if the answer has not."""
        return [] if self.is_over else self._end()

    def _event(self, payload: bytes) -> list[Output]:
        if payload == b"[DONE]":
            return self._end()
        try:
            event = json.loads(payload)
            if error := event.get("error"):
                raise UpstreamFailed(Why(message_of(error)))
            usage, choices = event.get("usage") or {}, event.get("choices") or []
            num_new = self._usage(usage)
            outputs: list[Output] = []
            if choices and not self._has_started:
                self._has_started = True
                self._num_cached_told = self._num_cached_tokens
                outputs.append(Started(self._num_cached_told))
            for choice in choices:
                outputs += self._choice(choice, num_new)
            return outputs
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            why = f"not an answer in OpenAI's form ({type(error).__name__}): {payload[:80]!r}"
            raise UpstreamFailed(Why(why)) from None

    def _usage(self, usage: dict[str, Any]) -> int | None:
        """Note the counts; the tokens since the last chunk, where that can be known."""
        if usage.get("completion_tokens") is None:
            return None
        self._num_output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        self._num_cached_tokens = details.get("cached_tokens") or self._num_cached_tokens
        # NOTE: of several choices some engines tell the sum, and some each choice's own.
        return self._num_output_tokens - self._num_counted if self._sampling.n == 1 else None

    def _choice(self, choice: dict[str, Any], num_new: int | None) -> list[Output]:
        index, text = choice["index"], choice.get("text") or ""
        if index not in self._open:
            raise KeyError(index)
        token_ids, logprobs = self._logprobs(choice.get("logprobs") or {})
        num_tokens = len(token_ids) or (bool(text) if num_new is None else num_new)
        self._num_counted += num_tokens
        outputs: list[Output] = []
        if text or num_tokens:
            outputs.append(Piece(index, text, num_tokens, token_ids, logprobs))
        if reason := choice.get("finish_reason"):
            if reason not in _REASONS:
                raise UpstreamFailed(Why(f"it ended the answer for the reason {reason!r}"))
            self._open.remove(index)
            ended = Ended(index, _REASONS[reason])
            if self._open:
                outputs.append(ended)
            else:
                self._last = ended
        return outputs

    def _logprobs(self, told: dict[str, Any]) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        if self._sampling.logprobs is None or not told:
            return (), ()
        ids, most = tuple(map(_token_id, told["tokens"])), self._sampling.logprobs
        logprobs = []
        for value, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True):
            likely = sorted(((_token_id(t), p) for t, p in (top or {}).items()), key=_falling)
            logprobs.append(TokenLogprob(value, tuple(likely[:most])))
        return ids, tuple(logprobs)

    def _end(self) -> list[Output]:
        if self._last is None:
            raise UpstreamFailed(Why("its stream broke off before the end", "upstream_lost"))
        self.is_over = True
        outputs: list[Output] = []
        if self._num_cached_tokens != self._num_cached_told:
            outputs.append(Started(self._num_cached_tokens - self._num_cached_told))
        if (total := self._num_output_tokens) is not None and total != self._num_counted:
            outputs.append(Piece(self._last.index, "", total - self._num_counted))
        return [*outputs, self._last]


def message_of(error: Any) -> str:
    """What an error's body says, in short."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("error") or error
        if isinstance(error, dict):
            return message_of(error)
    return str(error)[:500]


def _token_id(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def _falling(entry: tuple[int, float]) -> float:
    return -entry[1]
