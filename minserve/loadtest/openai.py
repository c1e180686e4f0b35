"""The OpenAI shapes a load test needs: the request body, and a reader of streamed answers.

The reader is pure: bytes and the time they came go in, a `Record` comes out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from minserve.loadtest.datasets import Sample
from minserve.loadtest.record import CANCELLED, ERROR, OK, REJECTED, Record

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
REJECTING = (429, 503)


def body(
    sample: Sample, model: str, endpoint: str = COMPLETIONS, chunk_usage: bool = True
) -> bytes:
    """A streamed request. `chunk_usage` asks for token counts in every chunk, as vLLM offers."""
    sampling = sample.sampling
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if chunk_usage:
        fields["stream_options"]["continuous_usage_stats"] = True
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if endpoint.endswith("chat/completions"):
        fields["messages"] = [{"role": "user", "content": sample.text}]
    else:
        fields["prompt"] = list(sample.token_ids or ()) if sample.text is None else sample.text
    return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Chunk:
    time_s: float
    num_characters: int
    num_tokens: int | None


@dataclass(slots=True)
class AnswerReader:
    """Reads one answer, streamed or whole, into `record`.

    `feed` takes bytes of the body as they come; `finish` judges the whole. A chunk bears tokens if
    its own usage says so, or else if it has text: a role, an empty delta or the usage does not.
    """

    record: Record
    _rest: bytes = b""
    _plain: bytes = b""  # what came outside of the stream's events: an error, a whole answer
    _chunks: list[_Chunk] = field(default_factory=list)
    _num_counted: int = 0
    _has_ended: bool = False

    def feed(self, data: bytes, now_s: float) -> None:
        """Take in bytes that came at `now_s`; they may end anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)
            elif not line.startswith((b":", b"event:", b"id:")):
                self._plain += line

    def finish(self, status: int, now_s: float, retry_after: str = "") -> None:
        """The body is over. Sets the record's outcome, and how many tokens each chunk bore."""
        record = self.record
        record.ended_s = now_s
        self._plain += self._rest
        if status != 200:
            record.outcome = REJECTED if status in REJECTING else ERROR
            said = self._plain.decode(errors="replace")[:200]
            wait = f", retry after {retry_after} s" if retry_after else ""
            record.error = f"HTTP {status}{wait}: {said}"
            return
        if not self._has_ended and self._plain.lstrip().startswith(b"{"):  # not streamed
            self._event(self._plain, now_s)
        if record.outcome == ERROR:
            return
        if not self._has_ended:
            record.outcome, record.error = ERROR, "the stream broke off before its end"
            return
        record.outcome = OK
        self._count()

    def _event(self, payload: bytes, now_s: float) -> None:
        record = self.record
        if payload == b"[DONE]":
            self._has_ended = True
            return
        try:
            event = json.loads(payload)
            if event.get("error"):
                error = event["error"]
                record.outcome = ERROR
                record.error = str(
                    error.get("message", error) if isinstance(error, dict) else error
                )
                return
            num_tokens = self._usage(event.get("usage") or {}, bool(event.get("choices")))
            for choice in event.get("choices") or ():
                text, num_listed = _text_of(choice)
                num_tokens = num_listed if num_tokens is None else num_tokens
                if num_tokens or (num_tokens is None and text):
                    self._chunks.append(_Chunk(now_s, len(text), num_tokens))
                self._has_ended |= choice.get("finish_reason") is not None
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            record.outcome, record.error = (
                ERROR,
                f"not an OpenAI answer ({error}): {payload[:80]!r}",
            )

    def _usage(self, usage: dict[str, Any], in_chunk: bool) -> int | None:
        """Note the server's counts; returns the tokens this chunk bore, where that is said."""
        if "completion_tokens" not in usage:
            return None
        record = self.record
        record.num_output_tokens = usage["completion_tokens"]
        record.num_prompt_tokens = usage.get("prompt_tokens", record.num_prompt_tokens)
        details = usage.get("prompt_tokens_details") or {}
        record.num_cached_tokens = details.get("cached_tokens") or 0
        num_new = record.num_output_tokens - self._num_counted
        self._num_counted = record.num_output_tokens
        return num_new if in_chunk else None

    def _count(self) -> None:
        record, chunks = self.record, self._chunks
        record.times_s = [chunk.time_s for chunk in chunks]
        total = record.num_output_tokens
        if all(chunk.num_tokens is not None for chunk in chunks):
            record.counts = [chunk.num_tokens or 0 for chunk in chunks]
            record.count_source = "each chunk's usage"
        elif total is None:
            record.counts = [1] * len(chunks)
            record.count_source = "chunks: the server sent no usage"
        elif total == len(chunks):
            record.counts = [1] * len(chunks)
            record.count_source = "usage"
        else:
            record.counts = spread(total, [chunk.num_characters for chunk in chunks])
            record.count_source = "usage, spread over chunks by their text"


def spread(total: int, sizes: list[int]) -> list[int]:
    """`total` whole tokens over chunks in proportion to their sizes, one each if there are enough.

    The largest remainders get the rest, so the counts add up to `total`.
    """
    if not sizes:
        return []
    least = 1 if total >= len(sizes) else 0
    left = total - least * len(sizes)
    sizes = sizes if any(sizes) else [1] * len(sizes)
    shares = [left * size / sum(sizes) for size in sizes]
    counts = [least + int(share) for share in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda i: int(shares[i]) - shares[i])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _text_of(choice: dict[str, Any]) -> tuple[str, int | None]:
    """The text of a choice, streamed or not, and how many tokens it lists, where it does."""
    part = choice.get("delta") or choice.get("message") or choice
    text = part.get("content") or part.get("reasoning_content") or part.get("text") or ""
    for call in part.get("tool_calls") or ():
        function = call.get("function") or {}
        text += (function.get("name") or "") + (function.get("arguments") or "")
    listed = choice.get("token_ids")
    return text, len(listed) if listed else None


__all__ = ["CANCELLED", "CHAT", "COMPLETIONS", "AnswerReader", "body", "spread"]
