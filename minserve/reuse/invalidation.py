"""What makes an answer wrong before its time, as typed events.

Every entry carries tags; an event names those that it makes invalid. So a change reaches exactly
the entries that rest on it, on every store, and what is being computed meanwhile is not stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from minserve.errors import InvalidRequest
from minserve.reuse.key import Query


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEvent:
    """Something changed at `happened_s` on the cache's clock; None: now, as it is reported.

    An event that comes late leaves hits behind that should not have been: they are counted.
    """

    happened_s: float | None = None
    kind: ClassVar[str] = ""

    def tags(self) -> tuple[str, ...]:
        """The tags whose entries are no longer to be served."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged(CacheEvent):
    """The rules that answers follow are others now; `tenant` None: for everybody."""

    tenant: str | None = None
    kind: ClassVar[str] = "policy_changed"

    def tags(self) -> tuple[str, ...]:
        return (tag("all"),) if self.tenant is None else (tag("tenant", self.tenant),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChanged(CacheEvent):
    """A document or fact that answers rest on has another content, or none."""

    source: str
    kind: ClassVar[str] = "source_changed"

    def tags(self) -> tuple[str, ...]:
        return (tag("source", self.source),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionChanged(CacheEvent):
    """A subject may see other things than before; `subject` None: everybody in the tenant."""

    tenant: str
    subject: str | None = None
    kind: ClassVar[str] = "permission_changed"

    def tags(self) -> tuple[str, ...]:
        return _of(self.tenant, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDeleted(CacheEvent):
    """A subject's data, or a whole tenant's, is to be gone: also what they asked of others."""

    tenant: str
    subject: str | None = None
    kind: ClassVar[str] = "data_deleted"

    def tags(self) -> tuple[str, ...]:
        return _of(self.tenant, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged(CacheEvent):
    """A model goes by the same name and answers differently, or is withdrawn."""

    model: str
    kind: ClassVar[str] = "model_changed"

    def tags(self) -> tuple[str, ...]:
        return (tag("model", self.model),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateChanged(CacheEvent):
    """A chat template is no longer the one that answers were made with."""

    template: str
    kind: ClassVar[str] = "template_changed"

    def tags(self) -> tuple[str, ...]:
        return (tag("template", self.template),)


KINDS: dict[str, type[CacheEvent]] = {
    cls.kind: cls
    for cls in (
        PolicyChanged,
        SourceChanged,
        PermissionChanged,
        DataDeleted,
        ModelChanged,
        TemplateChanged,
    )
}


def from_dict(data: Mapping[str, Any]) -> CacheEvent:
    """The event of a JSON object such as `{"kind": "source_changed", "source": "faq/7"}`.

    Raises `InvalidRequest` for an unknown kind, a field it has not, lacks, or of another type.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise InvalidRequest("an event is an object with a kind", f"kinds: {', '.join(KINDS)}")
    if data["kind"] not in KINDS:
        raise InvalidRequest(f"unknown event {data['kind']!r}", f"use {', '.join(KINDS)}")
    cls = KINDS[data["kind"]]
    names = [f.name for f in fields(cls)]
    given = {name: value for name, value in data.items() if name != "kind" and value is not None}
    for name, value in given.items():
        right = (float, int) if name == "happened_s" else str
        if name not in names or isinstance(value, bool) or not isinstance(value, right):
            raise InvalidRequest(f"{cls.kind} has no such {name}", f"its fields: {names}")
    try:
        return cls(**given)
    except TypeError:
        raise InvalidRequest(f"{cls.kind} lacks a field", f"its fields: {names}") from None


def to_dict(event: CacheEvent) -> dict[str, Any]:
    """What `from_dict` reads."""
    return {"kind": event.kind, **{k: v for k, v in asdict(event).items() if v is not None}}


def tag(*parts: str) -> str:
    """One tag. JSON, so that no name can be mistaken for another plus a separator.

    Interned, because many entries carry the same few.
    """
    return sys.intern(json.dumps(parts, separators=(",", ":")))


def tags_of(query: Query, sources: Iterable[str], with_model: bool = True) -> tuple[str, ...]:
    """Everything an entry rests on. Whoever asked is among it, in every scope."""
    identity, model = query.identity, query.model
    tags = [tag("all"), *_of(identity.tenant, None), *_of(identity.tenant, identity.subject)]
    if with_model:
        tags.append(tag("model", model.name))
        tags += [tag("template", model.template)] if model.template else []
    return tuple(dict.fromkeys([*tags, *(tag("source", source) for source in sources)]))


def _of(tenant: str, subject: str | None) -> tuple[str, ...]:
    return (tag("tenant", tenant),) if subject is None else (tag("asker", tenant, subject),)
