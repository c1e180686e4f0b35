"""Northstar's tenants, users and facts: what the assistant may know, and for whom.

A policy fact belongs to a tenant and is public to its users; it exists in two versions (a third or
more of the values differ). An account fact belongs to one user. All people and keys are invented.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from minserve.errors import DataNotFound, MinserveError
from minserve.northstar.paths import data_dir
from minserve.northstar.prompts import state

VERSIONS = ("v1", "v2")


class CorpusError(MinserveError):
    """A Northstar data file is there but not usable; or it was asked for what it does not hold."""


@dataclass(frozen=True)
class User:
    """One invented person of one tenant; only the SHA-256 (hex) of the API key is kept."""

    id: str
    tenant: str
    name: str
    key_sha256: str


@dataclass(frozen=True)
class Tenant:
    """A company that Northstar serves, with its users."""

    id: str
    name: str
    users: tuple[User, ...]


@dataclass(frozen=True)
class Fact:
    """``attribute`` of ``entity`` is ``value``; an account fact has a user and no entity."""

    id: str
    tenant: str
    attribute: str
    value: str
    entity: str | None = None
    user: str | None = None

    @property
    def text(self) -> str:
        """The evidence line, which is also the sentence that answers."""
        return state(self.attribute, self.entity, self.value)


@dataclass(frozen=True)
class Corpus:
    """Everything under one policy version. ``facts`` maps the id of each fact to it."""

    version: str
    tenants: tuple[Tenant, ...]
    facts: Mapping[str, Fact]
    system_prompt: str

    @property
    def users(self) -> tuple[User, ...]:
        """All users of all tenants."""
        return tuple(user for tenant in self.tenants for user in tenant.users)

    def lines(self, fact_ids: Iterable[str]) -> list[str]:
        """The evidence lines of these facts, in this order.

        Raises:
            CorpusError: No fact has that id.
        """
        ids = list(fact_ids)
        unknown = [i for i in ids if i not in self.facts]
        if unknown:
            raise CorpusError(f"no fact has the id {unknown[0]!r} in corpus {self.version}")
        return [self.facts[i].text for i in ids]


def read_json(path: Path) -> dict:
    """The JSON object in a file.

    Raises:
        DataNotFound: There is no such file.
        CorpusError: It is not a JSON object in UTF-8.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataNotFound(
            f"{path} is missing", hint="restore it with git, or run data/northstar/build_corpus.py"
        ) from None
    except ValueError as error:
        raise CorpusError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CorpusError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def load_corpus(version: str = "v1", folder: Path | None = None) -> Corpus:
    """Load the corpus under one policy version.

    Args:
        version: ``"v1"`` or ``"v2"``.
        folder: Where the files are; by default the shipped data/northstar.

    Raises:
        DataNotFound: A file is missing.
        CorpusError: The version is unknown, or a file is malformed.
    """
    if version not in VERSIONS:
        raise CorpusError(
            f"unknown corpus version {version!r}", hint=f"choose one of {', '.join(VERSIONS)}"
        )
    folder = folder or data_dir()
    prompt = folder / "system_prompt.txt"
    if not prompt.is_file():
        raise DataNotFound(f"{prompt} is missing", hint="restore it with git")
    path = folder
    facts: dict[str, Fact] = {}
    try:
        path = folder / "tenants.json"
        tenants = tuple(
            Tenant(t["id"], t["name"], tuple(User(tenant=t["id"], **u) for u in t["users"]))
            for t in read_json(path)["tenants"]
        )
        for name in (f"policies_{version}.json", "accounts.json"):
            path = folder / name
            for entry in read_json(path)["facts"]:
                fact = Fact(**entry)
                if fact.id in facts:
                    raise CorpusError(f"{path}: two facts have the id {fact.id!r}")
                facts[fact.id] = fact
    except (KeyError, TypeError) as error:
        raise CorpusError(f"{path} is malformed: {error}") from None
    system_prompt = prompt.read_text(encoding="utf-8").strip()
    return Corpus(version, tenants, MappingProxyType(facts), system_prompt)


def load_demo_keys(folder: Path | None = None) -> dict[str, str]:
    """The plain demo API key of each user id, for demos and tests only.

    Raises:
        DataNotFound, CorpusError: As ``load_corpus``.
    """
    path = (folder or data_dir()) / "demo_keys.json"
    keys = read_json(path).get("keys")
    if not isinstance(keys, dict):
        raise CorpusError(f"{path} is malformed: it has no object 'keys'")
    return keys
