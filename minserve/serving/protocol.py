"""OpenAI's shapes: what a body may hold, and how an answer is written down.

A body is taken whole or refused: a field that is unknown, or known but not supported, would change
what was meant, so it is an error and never ignored. `null` and values that ask for nothing (no
tools, plain text) are the same as leaving the field out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from minserve.errors import InvalidRequest
from minserve.request import MAX_CHOICES, MAX_LOGPROBS
from minserve.reuse.validation import json_check
from minserve.serving.errors import ApiError, invalid

MAX_MESSAGES = 1024
MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_STOP_CHARS = 256

IDENTITY_FIELDS = frozenset(
    ("tenant", "tenant_id", "subject", "roles", "identity", "application", "workload_class")
    + ("cache_salt", "salt", "prompt_cache_key")
)
"""What the server knows from the API key and nobody may claim."""

# Known fields that cannot be had, and the values of each that ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class Body(BaseModel):
    """Strict types, no unknown fields, nothing infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    _unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in body.items():
            if name in cls.model_fields:
                kept[name] = value
            elif name in cls._unsupported:
                if value is not None and value not in cls._unsupported[name]:
                    raise _error(name, f"{name} is not supported by this server")
            else:
                kept[name] = value
        return kept


def _error(name: str, message: str) -> PydanticCustomError:
    """An error about the field `name` of the model that is being validated."""
    return PydanticCustomError("field", "{message}", {"message": message, "field": name})


# -- messages


def _text_of(content: Any) -> Any:
    """The text of a message; `content` may come in parts, as long as each is text."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str) or len(part) != 2:
            raise ValueError('every part must be {"type": "text", "text": ...}: text only here')
        texts.append(part["text"])
    return "".join(texts)


_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
Content = Annotated[
    str,
    BeforeValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}),
]


class Message(Body):
    """One turn of a conversation."""

    _unsupported: ClassVar = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "name": (),
        "reasoning_content": (),
        "refusal": (),
        "tool_call_id": (),
        "tool_calls": ([],),
    }
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


# -- generation


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None,
    BeforeValidator(_stops),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
                {
                    "type": "array",
                    "maxItems": MAX_STOPS,
                    "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
                },
                {"type": "null"},
            ]
        }
    ),
]


class StreamOptions(Body):
    """When a stream says how many tokens it took: at its end, or in every chunk."""

    _unsupported: ClassVar = {"include_obfuscation": (False,)}
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Generation(Body):
    """What both kinds of completion take. A field left out or null has the default beside it."""

    _unsupported: ClassVar = _UNSUPPORTED
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, description="default 1; 0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1, description="default 1")
    top_k: int | None = Field(None, ge=-1, description="default 0; 0 and -1 switch it off")
    min_p: float | None = Field(None, ge=0, le=1, description="default 0")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="default 1")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="default 0")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="default 0")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="default: a fresh one")
    stop: Stop = None
    stop_token_ids: list[int] | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="default 1")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = Field(None, ge=-100, le=100, description="higher goes first; default 0")
    service_tier: Literal["auto", "default", "flex"] | None = None
    metadata: dict[str, Any] | None = Field(None, description="ignored")
    safety_identifier: str | None = Field(None, description="ignored")
    user: str | None = Field(None, description="ignored: who you are comes from your key")

    @model_validator(mode="after")
    def _consistent(self) -> _Generation:
        if self.stream_options is not None and not self.stream:
            raise _error("stream_options", "stream_options is for streams: set stream to true")
        return self


def _format(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json_check(value)
    except InvalidRequest as error:
        raise ValueError(f"{error}; {error.hint}") from None
    return value


ResponseFormat = Annotated[
    dict[str, Any],
    AfterValidator(_format),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
            "required": ["type"],
        }
    ),
]


class ChatRequest(_Generation):
    """The body of /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = Field(None, description="where there is a cascade")

    @model_validator(mode="after")
    def _consistent_chat(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise _error("top_logprobs", "top_logprobs needs logprobs to be true")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise _error("max_tokens", "max_tokens and max_completion_tokens differ: give one")
        if self.asked_format and ((self.n or 1) > 1 or self.logprobs):
            why = "response_format is not supported together with n above 1 or logprobs"
            raise _error("response_format", why)
        return self

    @property
    def asked_format(self) -> dict[str, Any] | None:
        """The form its answer is to have; None for plain text."""
        told = self.response_format
        return told if told is not None and told["type"] != "text" else None

    @property
    def limit(self) -> int | None:
        """At most so many output tokens, if the client said."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _prompts(value: Any) -> Any:
    """A list of prompts, each a text or a list of token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _are_token_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _are_token_ids(item) for item in value):
            return value
    raise ValueError("give a text, a list of texts, a list of token ids, or a list of such lists")


def _are_token_ids(value: list) -> bool:
    return all(type(item) is int and item >= 0 for item in value)


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS}
Prompts = Annotated[
    list[Any],
    BeforeValidator(_prompts),
    Field(max_length=MAX_PROMPTS),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _TEXTS,
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]


class CompletionRequest(_Generation):
    """The body of /v1/completions. `max_tokens` is 16 unless given, as with OpenAI."""

    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None

    @model_validator(mode="after")
    def _consistent_completion(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise _error("echo", "echo with logprobs is not supported: prompts have no logprobs")
        return self

    @property
    def limit(self) -> int:
        """At most so many output tokens."""
        return self.max_tokens or 16

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


# -- tokens


class TokenizeRequest(Body):
    """The body of /tokenize: a prompt, or messages as the model is shown them."""

    _unsupported: ClassVar = {"add_generation_prompt": (True,), "return_token_strs": (False,)}
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise _error("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """The body of /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()]


# -- what is wrong with a body


class ErrorFields(BaseModel):
    """What went wrong, for people and for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every error, on every path."""

    error: ErrorFields


def of_validation(errors: list[dict[str, Any]], body: Any) -> ApiError:
    """The first thing that is wrong, with the field's place in the body as `param`."""
    error = errors[0]
    kind, place = error["type"], [part for part in error["loc"] if part != "body"]
    if kind == "json_invalid":
        why = error.get("ctx", {}).get("error", "")
        return invalid(f"the body is not JSON: {why}".rstrip(": "), code="invalid_json")
    if field := error.get("ctx", {}).get("field"):
        place = [*place, field]
    param = _path(place, body)
    if not param:
        return invalid("the body must be a JSON object, sent as content-type application/json")
    name = place[-1]
    if kind == "extra_forbidden" and name in IDENTITY_FIELDS:
        why = "is not for the body to say: who you are, and what you share, comes from your API key"
        return invalid(f"{param} {why}", param, "identity_in_body")
    if kind == "extra_forbidden":
        return invalid(f"{param} is not a field that this server knows", param, "unknown_field")
    if kind == "missing":
        return invalid(f"{param} is missing", param, "missing_field")
    if kind == "field":
        return invalid(error["msg"], param, "unsupported_field")
    message = error["msg"].removeprefix("Value error, ")
    return invalid(f"{param}: {message[:1].lower()}{message[1:]}", param, "invalid_value")


def _path(place: list[str | int], body: Any) -> str:
    """`messages[0].content`; what pydantic adds to a place and the body does not have is left out.

    The last part may name a field that is missing.
    """
    path, value = "", body
    for position, part in enumerate(place):
        has = isinstance(part, int) == isinstance(value, list)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if not has or position < len(place) - 1:
                continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")
