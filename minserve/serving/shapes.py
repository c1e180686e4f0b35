"""How an answer is written down: as a chat or a text completion, whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minserve.events import TokenLogprob
from minserve.serving.streaming import Answer, Choice

TokenBytes = Callable[[int], bytes]


class _Shape:
    """What both have in common. `token_bytes` gives the bytes of a token id."""

    whole_object = chunk_object = ""

    def __init__(self, id: str, created: int, model: str, token_bytes: TokenBytes) -> None:
        self._head = {"id": id, "created": created, "model": model}
        self._token_bytes = token_bytes

    def answered_by(self, model: str) -> None:
        """Name the model that answered, where a cascade says which; otherwise the one asked."""
        if model:
            self._head["model"] = model

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._whole_choice(choice) for choice in answer.choices]
        return self._head | {
            "object": self.whole_object,
            "choices": choices,
            "usage": answer.usage,
        }

    def chunk(self, choices: list[dict], usage: dict | None = None) -> dict[str, Any]:
        """One event of a stream."""
        body = self._head | {"object": self.chunk_object, "choices": choices}
        return body if usage is None else body | {"usage": usage}

    def parts(self, choice: Choice) -> list[dict[str, Any]]:
        """What is new in `choice`, as the `choices` of chunks; empty while its text is held back.

        Marks it as sent.
        """
        parts = []
        if not choice.is_open:
            choice.is_open = True
            parts += self._opening(choice)
        if choice.text:
            parts.append(self._delta(choice))
            choice.text, choice.tokens = "", []
        if choice.is_over and not choice.is_closed:
            choice.is_closed = True
            parts.append(self._closing(choice))
        return parts

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _opening(self, choice: Choice) -> list[dict[str, Any]]:
        return []

    def _delta(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _closing(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _name(self, token_id: int) -> str:
        """A token as text; one that splits a character shows its bytes."""
        data = self._token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class ChatShape(_Shape):
    """/v1/chat/completions."""

    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
        }

    def _opening(self, choice: Choice) -> list[dict[str, Any]]:
        return [self._part(choice, {"role": "assistant", "content": ""})]

    def _delta(self, choice: Choice) -> dict[str, Any]:
        return self._part(choice, {"content": choice.text}, self._logprobs(choice))

    def _closing(self, choice: Choice) -> dict[str, Any]:
        return self._part(choice, {}, reason=choice.finish_reason)

    def _part(
        self, choice: Choice, delta: dict, logprobs: dict | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not choice.tokens:
            return None
        content = [
            {
                **self._token(token_id, entry.logprob),
                "top_logprobs": [self._token(*likely) for likely in entry.top],
            }
            for token_id, entry in choice.tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = list(self._token_bytes(token_id))
        return {"token": self._name(token_id), "logprob": _finite(logprob), "bytes": data}


class CompletionShape(_Shape):
    """/v1/completions."""

    whole_object = chunk_object = "text_completion"

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return self._part(choice, choice.text, self._logprobs(choice), choice.finish_reason)

    def _delta(self, choice: Choice) -> dict[str, Any]:
        return self._part(choice, choice.text, self._logprobs(choice))

    def _closing(self, choice: Choice) -> dict[str, Any]:
        return self._part(choice, "", reason=choice.finish_reason)

    def _part(
        self, choice: Choice, text: str, logprobs: dict | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not choice.tokens:
            return None
        names, logprobs, tops, offsets = [], [], [], []
        for token_id, entry in choice.tokens:
            names.append(self._name(token_id))
            logprobs.append(_finite(entry.logprob))
            tops.append(self._top(token_id, entry))
            offsets.append(choice.num_chars)
            choice.num_chars += len(choice.decoder.decode(self._token_bytes(token_id)))
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _top(self, token_id: int, entry: TokenLogprob) -> dict[str, float]:
        likely = {token: logprob for token, logprob in entry.top}
        likely.setdefault(token_id, entry.logprob)  # the chosen one is always among them
        return {self._name(token): _finite(logprob) for token, logprob in likely.items()}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for what cannot be."""
    return max(logprob, -9999.0)
