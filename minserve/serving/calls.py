"""From a body to a call: what the engine is to compute, and how the answer goes back."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from minserve.errors import ConfigError, InvalidRequest
from minserve.output import Detokenizer
from minserve.request import Request, SamplingParams, WorkloadClass
from minserve.reuse import key as cache_key
from minserve.serving.errors import ApiError, invalid, of_minserve
from minserve.serving.identity import Principal, Quota, Salts, within
from minserve.serving.protocol import ChatRequest, CompletionRequest, Message, TokenizeRequest
from minserve.serving.shapes import ChatShape, CompletionShape
from minserve.serving.streaming import Answer, Stream

MAX_CHOICES_PER_CALL = 128
LONG_TEXT_CHARS = 20_000
"""A longer text is tokenised on a thread of its own, so that others need not wait for it."""

T = TypeVar("T")


class TextCodec(Protocol):
    """What serving needs of `minserve.models.tokenizer.Tokenizer`."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def detokenizer(self, stop: Sequence[str] = ()) -> Detokenizer: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it. `names` are what it answers to, the first is its own.

    `root` is where it comes from. `max_model_len` is the most tokens, prompt and output, that
    model and KV cache hold of one sequence; `created` a Unix time in seconds; `precision` what
    its weights and KV cache are kept in, in words.
    """

    names: tuple[str, ...]
    root: str
    tokenizer: TextCodec
    vocab_size: int
    max_model_len: int
    created: int = 0
    precision: str = ""

    def card(self, name: str) -> dict[str, Any]:
        """What /v1/models says of it."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "minserve",
            "root": self.root,
            "parent": None,
            "max_model_len": self.max_model_len,
            "precision": self.precision or None,
        }

    def check(self, name: str | None) -> None:
        """Raises `ApiError` (404) unless the model answers to `name`; None leaves it open."""
        if name is not None and name not in self.names:
            raise ApiError(
                404,
                f"there is no model {name!r} here; this server has {self.names[0]!r}",
                param="model",
                code="model_not_found",
            )


@dataclass(slots=True, eq=False)
class Call:
    """One HTTP request for text: a `Request` for each prompt, and everything to answer with."""

    requests: list[Request]
    quota: Quota
    stream: Stream
    answer: Answer
    shape: ChatShape | CompletionShape
    is_stream: bool
    include_usage: bool
    continuous_usage: bool
    wording: cache_key.Wording


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, when on the engine's clock, and by when an answer is of use.

    `answer_class`, `sources` and `partition` are for caches; see `minserve.reuse.key.Wording`.
    """

    principal: Principal
    arrival_s: float
    deadline_s: float | None = None
    answer_class: str = "default"
    sources: tuple[str, ...] = ()
    partition: str = ""


@dataclass(frozen=True, slots=True)
class CallMaker:
    """Makes calls for one model.

    `default_max_tokens` bounds a chat that does not say how long its answer may be; `max_held` is
    how many tokens of each choice may wait for a slow reader. `can_check` says that an answer which
    is not in the `response_format` asked for would be found out.
    """

    model: ServedModel
    salts: Salts
    default_max_tokens: int = 1024
    max_held: int = 512
    can_check: bool = False

    async def chat(self, body: ChatRequest, caller: Caller) -> Call:
        """Raises `ApiError` if the body cannot be served."""
        self.model.check(body.model)
        if body.asked_format and not self.can_check:
            why = "response_format is not supported by this server: it has no --cascade-to"
            raise invalid(why, "response_format", "unsupported_field")
        prompt = await self.chat_prompt(body.messages)
        if body.limit is None:
            room = self.model.max_model_len - len(prompt)
            limit = max(1, min(room, self.default_max_tokens))
        else:
            limit = body.limit
        turns = tuple(cache_key.Message(m.role, m.content) for m in body.messages)
        wording = cache_key.Wording(
            caller.answer_class, turns, caller.sources, caller.partition, body.asked_format
        )
        return self._call(
            body, [prompt], limit, caller, ChatShape, "chatcmpl", "messages", wording=wording
        )

    async def completion(self, body: CompletionRequest, caller: Caller) -> Call:
        """Raises `ApiError` if the body cannot be served."""
        self.model.check(body.model)
        if len(body.prompt) * (body.n or 1) > MAX_CHOICES_PER_CALL:
            raise invalid(f"prompts times n is above {MAX_CHOICES_PER_CALL}", "prompt")
        tokenizer = self.model.tokenizer
        prompts = [
            await _aside(len(prompt), partial(tokenizer.encode, prompt))
            if isinstance(prompt, str)
            else self.check_tokens(prompt, "prompt")
            for prompt in body.prompt
        ]
        echoes = [
            (prompt if isinstance(prompt, str) else tokenizer.decode(prompt)) if body.echo else ""
            for prompt in body.prompt
        ]
        return self._call(
            body, prompts, body.limit, caller, CompletionShape, "cmpl", "prompt", echoes
        )

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """The tokens of a prompt or of messages. Raises `ApiError`."""
        self.model.check(body.model)
        if body.messages is not None:
            token_ids = await self.chat_prompt(body.messages)
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
            token_ids = await _aside(
                len(text), lambda: self.model.tokenizer.encode(text, add_special_tokens=special)
            )
        return {
            "count": len(token_ids),
            "max_model_len": self.model.max_model_len,
            "tokens": token_ids,
        }

    async def chat_prompt(self, messages: list[Message]) -> list[int]:
        """The token ids that the model is shown for `messages`."""
        turns = [
            {"role": "system" if m.role == "developer" else m.role, "content": m.content}
            for m in messages
        ]
        num_chars = sum(len(turn["content"]) for turn in turns)
        try:
            return await _aside(num_chars, lambda: self.model.tokenizer.encode_chat(turns))
        except (InvalidRequest, ConfigError) as error:
            raise invalid(str(error), "messages") from None

    def check_tokens(self, token_ids: list[int], param: str) -> list[int]:
        """The same ids. Raises `ApiError` for one that the model does not know."""
        if token_ids and max(token_ids) >= self.model.vocab_size:
            why = f"token id {max(token_ids)}: the model knows 0 to {self.model.vocab_size - 1}"
            raise invalid(why, param)
        return token_ids

    def _call(
        self,
        body: ChatRequest | CompletionRequest,
        prompts: list[list[int]],
        limit: int,
        caller: Caller,
        shape: type[ChatShape] | type[CompletionShape],
        prefix: str,
        param: str,
        echoes: list[str] | None = None,
        wording: cache_key.Wording | None = None,
    ) -> Call:
        for prompt in prompts:
            self._check_length(prompt, limit, param)
        principal, id = caller.principal, f"{prefix}-{secrets.token_hex(12)}"
        sampling = _sampling(body, limit)
        highest = principal.quota.max_priority
        if highest is not None and (body.priority or 0) > highest:
            raise invalid(f"your key may ask for priority {highest} at most", "priority")
        is_flex = body.service_tier == "flex"
        kind = WorkloadClass.BATCH if is_flex else principal.workload_class
        requests = [
            Request(
                id if len(prompts) == 1 else f"{id}-{index}",
                tuple(prompt),
                sampling,
                identity=principal.identity,
                workload_class=kind,
                arrival_s=caller.arrival_s,
                deadline_s=caller.deadline_s,
                priority=body.priority or 0,
                cache_salt=within(self.salts.of(principal), caller.partition),
            )
            for index, prompt in enumerate(prompts)
        ]
        num_choices = len(prompts) * sampling.n
        options = body.stream_options
        name = body.model or self.model.names[0]
        return Call(
            requests,
            principal.quota,
            Stream(self.max_held * num_choices),
            Answer(sum(map(len, prompts)), num_choices, echoes or [""]),
            shape(id, int(time.time()), name, self.model.tokenizer.token_bytes),
            bool(body.stream),
            bool(options and options.include_usage),
            bool(options and options.continuous_usage_stats),
            wording
            or cache_key.Wording(
                caller.answer_class, sources=caller.sources, partition=caller.partition
            ),
        )

    def _check_length(self, prompt: list[int], limit: int, param: str) -> None:
        if not prompt:
            raise invalid("the prompt is empty: send some text", param)
        most = self.model.max_model_len
        if len(prompt) + limit > most:
            raise invalid(
                f"this model's maximum context length is {most} tokens, and you asked for "
                f"{len(prompt) + limit}: {len(prompt)} in the prompt, {limit} for the answer",
                param if len(prompt) >= most else "max_tokens",
                "context_length_exceeded",
            )


def _sampling(body: ChatRequest | CompletionRequest, limit: int) -> SamplingParams:
    def given(**values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    seed = body.seed if body.seed is not None else secrets.randbits(63)
    try:
        return SamplingParams(
            max_tokens=limit,
            seed=seed,
            top_k=max(0, body.top_k or 0),
            stop=tuple(body.stop or ()),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            ignore_eos=bool(body.ignore_eos),
            temperature=1.0 if body.temperature is None else body.temperature,
            logprobs=body.num_logprobs,
            **given(
                top_p=body.top_p,
                min_p=body.min_p,
                repetition_penalty=body.repetition_penalty,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                min_tokens=body.min_tokens,
                n=body.n,
            ),
        )
    except InvalidRequest as error:
        name = str(error).split()[0]
        raise of_minserve(error, name if name in type(body).model_fields else None) from None


async def _aside(num_chars: int, work: Callable[[], T]) -> T:
    """The result of `work()`, on another thread if there is much of it."""
    return work() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(work)
