"""Which classes of answer may be cached, for whom, and for how long: one table, read by people.

What the table does not name is never cached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from minserve.errors import ConfigError
from minserve.reuse.key import Query, Scope


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """One line of the table.

    `freshness_s` is how long an answer may be served after it was computed, `evidence_s` how long
    what was looked up for it may be used; 0 is never. `semantic` allows it for other words of the
    same question. `sampled` allows it where decoding is random, so that all get one sample.
    `check` names what its answers must pass (`minserve.reuse.validation`); empty is nothing.
    """

    name: str
    scope: Scope = Scope.SUBJECT
    freshness_s: float = 0.0
    evidence_s: float = 0.0
    semantic: bool = False
    sampled: bool = False
    check: str = ""
    why: str = ""

    def allows(self, query: Query) -> bool:
        """Whether an exact answer to this very request may be stored and served."""
        return (
            self.freshness_s > 0
            and query.scope is self.scope
            and query.answer_class == self.name
            and (self.sampled or query.decoding.is_deterministic)
        )


class PolicyTable:
    """`table[name]` is the policy of a class; of an unknown class: never."""

    def __init__(self, policies: Iterable[ClassPolicy]) -> None:
        self._policies = {policy.name: policy for policy in policies}

    def __getitem__(self, name: str) -> ClassPolicy:
        return self._policies.get(name) or ClassPolicy(name, why="the table does not name it")

    def __iter__(self):
        return iter(self._policies.values())

    @classmethod
    def from_json(cls, text: str) -> PolicyTable:
        """From `{"classes": [{"name": ..., "scope": ..., ...}]}`. Raises `ConfigError`."""
        try:
            return cls([_policy(entry) for entry in json.loads(text)["classes"]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the cache policy table is malformed: {error}") from None

    def as_dict(self) -> dict[str, dict]:
        """Plain values by class, for reports and the gate."""
        return {policy.name: asdict(policy) for policy in self}


def _policy(entry: Mapping) -> ClassPolicy:
    known = {f.name: f.type for f in fields(ClassPolicy)}
    if unknown := set(entry) - set(known):
        raise ValueError(f"unknown column {sorted(unknown)[0]!r}")
    for name, value in entry.items():
        if known[name] == "bool" and not isinstance(value, bool):
            raise ValueError(f"{name} of {entry['name']} must be true or false")
        if known[name] == "float" and (isinstance(value, bool) or not 0 <= value < 1e12):
            raise ValueError(f"{name} of {entry['name']} must be seconds")
    return ClassPolicy(**{**entry, "scope": Scope(entry.get("scope", Scope.SUBJECT))})
