"""The key of a cached answer: everything the answer depends on, typed and named, written one way.

Two requests share a key only if every field of `Query` agrees, after two normalisations that change
no meaning: JSON is written canonically (RFC 8785), and message text is put into Unicode NFC. Not
NFKC, lower case or collapsed spaces: those merge different questions (x² and x2, US and us).

Who asks enters as far as the class of the answer says: everybody (`PUBLIC`), one tenant's users of
the same roles (`TENANT`), or one user (`SUBJECT`). The same rule names the partition, which is
chosen before anything is looked up.

`EvidenceKey` names what was looked up. Equivalent inputs: the same less model and decoding. Valid
for a window of its own, less any event. Scope: the same. Order: the same. A cancelled answer leaves
the evidence that was whole.
"""

from __future__ import annotations

import hashlib
import json
import sys
import typing
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from types import UnionType
from typing import Any, Protocol

import rfc8785

from minserve.errors import InvalidRequest
from minserve.request import Identity

VERSION = 1
"""Of the canonical form; another version never meets the entries of this one."""

Json = Any
"""A JSON value: None, bool, int, float, str, or lists and string-keyed mappings of such."""


class NotCacheable(InvalidRequest):
    """A field has no canonical form (a number beyond 2^53, a lone surrogate): it is not cached."""


class Scope(StrEnum):
    """Who may be served an answer that somebody else's request produced."""

    PUBLIC = "public"
    TENANT = "tenant"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `extra` holds what else the turn carries, as JSON: tool calls, a name."""

    role: str
    content: str
    extra: Json = None


@dataclass(frozen=True, slots=True)
class ModelTuple:
    """What computes the answer. Digests where there are some; None where it does not apply."""

    name: str
    revision: str | None = None
    tokenizer: str | None = None
    template: str | None = None
    adapter: str | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen. None is "the request did not say", which is no value: not 0, not 1."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs: int | None = None
    n: int | None = None
    response_format: Json = None

    @property
    def is_deterministic(self) -> bool:
        """The same request gives the same answer: greedy, or with a seed."""
        return self.temperature == 0 or self.seed is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One request as caches see it.

    `identity` comes from the server's own records, and `scope` from its policy for `answer_class`;
    neither is ever taken from a request's body. `messages` hold the system prompt, the history and
    the question. The versions say what the answer was to rest on: the prompt and policy in force,
    the snapshot of the corpus, the class of the tools' state, the locale.
    """

    identity: Identity
    scope: Scope
    answer_class: str
    messages: tuple[Message, ...]
    model: ModelTuple
    decoding: Decoding = Decoding()
    tools: Json = None
    tool_state: str | None = None
    prompt_version: str | None = None
    policy_version: str | None = None
    corpus_snapshot: str | None = None
    locale: str | None = None

    @property
    def question(self) -> str:
        """The text of the last message, if it is the user's; else empty."""
        last = self.messages[-1] if self.messages else None
        return last.content if last and last.role == "user" else ""

    def asking(self, text: str) -> Query:
        """The same request with another text in its last message."""
        *before, last = self.messages
        return replace(self, messages=(*before, replace(last, content=text)))


@dataclass(frozen=True, slots=True)
class Wording:
    """What a request says of itself beyond its tokens, for caches and checks.

    `answer_class` is one that the caller's key may claim. `messages` are its turns as text, empty
    where there are none; `sources` the ids of what its evidence was taken from. With a `partition`
    it shares with those of the same one only, among those it would share with. `response_format`
    is what its answer is to be, as OpenAI's API has it.
    """

    answer_class: str = "default"
    messages: tuple[Message, ...] = ()
    sources: tuple[str, ...] = ()
    partition: str = ""
    response_format: Json = None


class CacheKey(Protocol):
    """Names the answer to a request.

    `of(query)` is the same text, in every process and on every machine, for requests whose answers
    are interchangeable, and another one for all others. Raises `NotCacheable`.
    """

    def of(self, query: Query) -> str: ...


class CanonicalKey:
    """SHA-256, in hex, of the canonical form of every field of `Query`."""

    def of(self, query: Query) -> str:
        return digest({"kind": "answer", **canonical(query)})


class EvidenceKey:
    """Names what was looked up for a request: it depends neither on the model nor on decoding."""

    def of(self, query: Query) -> str:
        form = canonical(query)
        del form["model"], form["decoding"]
        return digest({"kind": "evidence", **form})


class ShelfKey:
    """Names all requests that differ in the text of their question only."""

    def of(self, query: Query) -> str:
        form = canonical(query)
        form["messages"][-1:] = [{**form["messages"][-1], "content": None}]
        return digest({"kind": "shelf", **form})


def partition_of(query: Query) -> str:
    """Where the answers to such requests live: a function of identity and scope alone."""
    return sys.intern(digest({"kind": "partition", "v": VERSION, **_who(query)}))


def canonical(query: Query) -> dict[str, Any]:
    """Every field by name; the identity as far as the scope says; text of messages in NFC."""
    form = asdict(query)
    for message in form["messages"]:
        message["content"] = unicodedata.normalize("NFC", message["content"])
    form["messages"] = list(form["messages"])
    del form["identity"], form["scope"]
    return {"v": VERSION, **form, "who": _who(query)}


def digest(form: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of canonical JSON. Raises `NotCacheable` where there is no such form."""
    try:
        return hashlib.sha256(rfc8785.dumps(form)).hexdigest()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotCacheable(f"not cacheable: {error}", "such a request is answered afresh") from None


def explain(one: Query, other: Query) -> list[tuple[str, Any, Any]]:
    """The fields that separate two requests: (path, value in one, value in the other)."""
    found: list[tuple[str, Any, Any]] = []

    def walk(path: str, a: Any, b: Any) -> None:
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            for name in sorted({*a, *b}):
                walk(f"{path}.{name}" if path else name, a.get(name, ABSENT), b.get(name, ABSENT))
        elif _is_list(a) and _is_list(b) and len(a) == len(b):
            for number, (x, y) in enumerate(zip(a, b, strict=True)):
                walk(f"{path}[{number}]", x, y)
        elif _written(a) != _written(b):
            found.append((path, a, b))

    walk("", canonical(one), canonical(other))
    return found


ABSENT = "(absent)"


def from_dict(data: Mapping[str, Any]) -> Query:
    """The query that a JSON object describes, every field checked. Raises `InvalidRequest`."""
    return _build(Query, data, "request")


def _who(query: Query) -> dict[str, Any]:
    identity, scope = query.identity, Scope(query.scope)
    who: dict[str, Any] = {"scope": scope.value}
    if scope is not Scope.PUBLIC:
        # Roles belong here: what an administrator was told is not for everybody in the tenant.
        who |= {"tenant": identity.tenant, "roles": sorted(identity.roles)}
    if scope is Scope.SUBJECT:
        who["subject"] = identity.subject
    return who


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _written(value: Any) -> bytes:
    return b"absent" if value is ABSENT else rfc8785.dumps(value)


def _build(cls: type, data: Any, where: str) -> Any:
    """A dataclass from a JSON object: no unknown field, none missing, none of another type."""
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"{where} is {_kind(data)}, not an object")
    hints = typing.get_type_hints(cls, globals())
    names = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(data) - set(names)):
        raise InvalidRequest(f"{where} has an unknown field {unknown[0]!r}", _known(names))
    made = {name: _value(hints[name], data[name], f"{where}.{name}") for name in data}
    try:
        return cls(**made)
    except TypeError:
        missing = [n for n, f in names.items() if n not in made and _is_required(f)]
        raise InvalidRequest(f"{where} lacks {', '.join(missing)}", _known(names)) from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint is Json:
        return value
    options = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option)
        if isinstance(option, type) and is_dataclass(option):
            return _build(option, value, where)
        if origin in (tuple, frozenset) and _is_list(value):
            inner = typing.get_args(option)[0]
            return origin(_value(inner, v, f"{where}[{n}]") for n, v in enumerate(value))
        if option is Scope and value in set(Scope):
            return Scope(value)
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(option, type) and origin is None and type(value) is option:
            return value
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise InvalidRequest(f"{where} is {_kind(value)}", f"give {wanted}")


def _kind(value: Any) -> str:
    return json.dumps(value)[:40] if not isinstance(value, (Mapping, list)) else "a list or object"


def _known(names: Mapping[str, Any]) -> str:
    return f"the fields are {', '.join(names)}"


def _is_required(f: Any) -> bool:
    return f.default is MISSING and f.default_factory is MISSING
