"""Whether an answer is right, as far as its request says by itself what right is.

Two ways to say it: a `response_format` that asks for JSON, perhaps of a schema, and a class of
answer whose line in the policy table names a check. A request that says neither has no check, and
nothing here guesses at one: a model's own confidence is no evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any

from minserve.errors import ConfigError, InvalidRequest
from minserve.reuse.key import Message, Query
from minserve.reuse.policy import PolicyTable
from minserve.reuse.response import Answer

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

Check = Callable[[str], bool]
"""Whether the text of a whole answer is right."""
NamedCheck = Callable[[Sequence[Message]], Check | None]
"""The check that a chat allows for; None where the chat lacks what is needed to check by."""

MAX_DEPTH = 16
ANNOTATIONS = frozenset(("$schema", "title", "description", "default", "examples"))
TYPES = ("object", "array", "string", "boolean", "null", "number", "integer")
BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
KEYWORDS = ANNOTATIONS | {*BOUNDS, "type", "enum", "const"}
KEYWORDS |= {"properties", "required", "additionalProperties", "items"}
"""What costs no more than the answer is long: no patterns, no references."""


class Validation:
    """Finds the check of a request.

    Args:
        policies: Names the check of each class of answer.
        checks: What these names stand for.

    Raises `ConfigError` for a name that stands for nothing.
    """

    def __init__(self, policies: PolicyTable, checks: Mapping[str, NamedCheck]) -> None:
        self._policies, self._checks = policies, checks
        for policy in policies:
            if policy.check and policy.check not in checks:
                raise ConfigError(
                    f"class {policy.name!r} names the check {policy.check!r}",
                    f"the checks are {', '.join(checks)}",
                )

    def check_of(
        self, answer_class: str, messages: Sequence[Message], response_format: Any = None
    ) -> Check | None:
        """The check of such a request, of both kinds where it says both; None if it says none."""
        found = [json_check(response_format)]
        if name := self._policies[answer_class].check:
            found.append(self._checks[name](messages))
        checks = [check for check in found if check is not None]
        return (lambda text: all(check(text) is True for check in checks)) if checks else None

    def is_right(self, query: Query, answer: Answer) -> bool:
        """For an `ExactCache`: an answer that its request has no check for passes."""
        check = self.check_of(query.answer_class, query.messages, query.decoding.response_format)
        return check is None or check(answer.text)


def json_check(response_format: Any) -> Check | None:
    """What `response_format` asks for; None for plain text. Raises `InvalidRequest`."""
    match response_format:
        case None | {"type": "text"}:
            return None
    from jsonschema import Draft202012Validator  # NOTE: takes most of a second to load

    match response_format:
        case {"type": "json_object", **rest} if not rest:
            return partial(_holds, Draft202012Validator({"type": "object"}))
        case {"type": "json_schema", "json_schema": {"schema": schema}, **rest} if not rest:
            require_known(schema)
            return partial(_holds, Draft202012Validator(schema))
    raise InvalidRequest(
        "response_format is of no kind that is known here",
        'give {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": ...}}',
    )


def require_known(schema: Any, place: str = "schema", depth: int = 0) -> None:
    """Raises `InvalidRequest` for a schema that is none, or has more than KEYWORDS."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        why = f"is deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else "is not an object"
        raise InvalidRequest(f"{place} {why}", "write a JSON schema")
    if unknown := sorted(set(schema) - KEYWORDS):
        hint = f"it takes {', '.join(sorted(KEYWORDS - ANNOTATIONS))}"
        raise InvalidRequest(f"{place} has {unknown[0]!r}, which is not supported", hint)
    kinds, properties = schema.get("type", "object"), schema.get("properties", {})
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in TYPES:
            raise InvalidRequest(f"{place}.type is {kind!r}", f"use {', '.join(TYPES)}")
    shapes: dict[str, type | UnionType]
    shapes = {"properties": dict, "required": list, "additionalProperties": bool, "enum": list}
    shapes |= dict.fromkeys(BOUNDS, int | float)
    for name, shape in shapes.items():
        if name in schema and not isinstance(schema[name], shape):
            raise InvalidRequest(f"{place}.{name} is {schema[name]!r:.40}", "see json-schema.org")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise InvalidRequest(f"{place}.required holds what is no name", "list names of properties")
    for name, inner in properties.items():
        require_known(inner, f"{place}.{name}", depth + 1)
    if "items" in schema:
        require_known(schema["items"], f"{place}.items", depth + 1)


def _holds(schema: Draft202012Validator, text: str) -> bool:
    try:
        return bool(schema.is_valid(json.loads(text, parse_constant=_refuse)))
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
