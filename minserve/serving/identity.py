"""Who is asking: API keys, and the identity, class and quota that each one stands for.

A request is whoever its key says it is; nothing in its body can change that. Only the SHA-256 of a
key is kept. That is enough, because keys are drawn here from 256 bits of entropy: a slow password
hash protects guessable secrets, and these are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from minserve.errors import ConfigError
from minserve.request import Identity, WorkloadClass

log = logging.getLogger("minserve.identity")

OPERATOR = "operator"
"""The role that may read /metrics and everybody's traces."""
ANY_CLASS = "*"
"""Among a key's answer classes: all of them."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much may be used at once; None is no limit.

    `max_concurrent` (requests) and `tokens_per_s` (prompt and output) limit what the key's tenant
    uses, counted over all of the tenant's keys; `max_priority` limits what this key may ask for.
    """

    max_concurrent: int | None = None
    tokens_per_s: float | None = None
    max_priority: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is from, as far as the server's own records say.

    `application` names what the key is used by, for the isolation scope of that name.
    `answer_classes` are those that its requests may claim to be of, for the response cache.
    """

    identity: Identity
    workload_class: WorkloadClass = WorkloadClass.STANDARD
    quota: Quota = Quota()
    application: str = ""
    key_id: str = ""
    answer_classes: tuple[str, ...] = ()

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.identity.roles

    def may_claim(self, answer_class: str) -> bool:
        """Whether its requests may be of that class: a class says who shares their answers."""
        return bool({answer_class, ANY_CLASS} & {"default", *self.answer_classes})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One record of the key file. `sha256` is hexadecimal; the key itself is nowhere."""

    id: str
    sha256: str
    tenant: str
    subject: str
    roles: tuple[str, ...] = ()
    workload_class: WorkloadClass = WorkloadClass.STANDARD
    application: str = ""
    quota: Quota = field(default_factory=Quota)
    answer_classes: tuple[str, ...] = ()

    @property
    def principal(self) -> Principal:
        """Whom the key stands for."""
        identity = Identity(self.tenant, self.subject, frozenset(self.roles))
        return Principal(
            identity,
            self.workload_class,
            self.quota,
            self.application,
            self.id,
            self.answer_classes,
        )


OPEN = Principal(
    Identity("open", "anyone", frozenset({OPERATOR})), key_id="open", answer_classes=(ANY_CLASS,)
)
"""Everybody, on a server without keys. Such a server listens on loopback only."""


def new_secret() -> str:
    """A fresh key, shown once to whoever it is for."""
    return "ms-" + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class KeyRing:
    """The keys that are valid now."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)

    def find(self, secret: str) -> Principal | None:
        """Whose key this is, or None. Takes equally long whichever matches, and if none does."""
        digest, found = hash_of(secret), None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found.principal if found else None

    def refresh(self) -> bool:
        """Take in changes of the records, if they lie in a file; whether there were any."""
        return False


class KeyFile(KeyRing):
    """The keys of a JSON file, taken in again when the file changes.

    A file that has become unreadable is reported and changes nothing: the keys read last stay
    valid until a readable one replaces it. Raises `ConfigError` if it is unreadable at first.
    """

    def __init__(self, path: str | os.PathLike, also: Iterable[ApiKey] = ()) -> None:
        self.path = Path(path).expanduser()
        self._also = tuple(also)
        self._seen = self._stamp()
        super().__init__((*read_keys(self.path), *self._also))

    def refresh(self) -> bool:
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.keys = (*read_keys(self.path), *self._also)
        except ConfigError as error:
            log.error("the key file is unreadable; the keys read last stay valid: %s", error)
            return False
        log.info("read %d keys again", len(self.keys))
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_keys(path: Path) -> list[ApiKey]:
    """The records of a key file. Raises `ConfigError`, naming the record that is wrong."""
    try:
        records = json.loads(path.read_text("utf-8"))["keys"]
        keys = [_key(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"the key file {path} is unreadable ({why})",
            "make a new one, under another name, with `minserve keys create`",
        ) from None
    for what in ("id", "sha256"):
        values = [getattr(key, what) for key in keys]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ConfigError(f"two keys of {path} have the {what} {twice!r}", "revoke one")
    return keys


def write_keys(path: Path, keys: Iterable[ApiKey]) -> None:
    """Replace the key file in one move; only its owner may read it."""
    records = [{name: value for name, value in asdict(key).items() if value} for key in keys]
    for record in records:
        quota = record.get("quota", {})
        record["quota"] = {name: value for name, value in quota.items() if value is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "keys": records}, file, indent=1)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _key(record: dict[str, Any]) -> ApiKey:
    record = dict(record)
    quota = Quota(**record.pop("quota", {}))
    for name, limit in asdict(quota).items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
            raise ValueError(f"key {record.get('id')!r}: quota {name} is {limit!r}, not a number")
    roles = tuple(record.pop("roles", ()))
    classes = tuple(record.pop("answer_classes", ()))
    kind = WorkloadClass(record.pop("workload_class", WorkloadClass.STANDARD))
    key = ApiKey(**record, roles=roles, workload_class=kind, quota=quota, answer_classes=classes)
    for name in ("id", "tenant", "subject"):
        if not isinstance(getattr(key, name), str) or not getattr(key, name):
            raise ValueError(f"key {key.id!r} has no {name}")
    if len(bytes.fromhex(key.sha256)) != 32:
        raise ValueError(f"key {key.id!r}: sha256 is not the 64 digits of a SHA-256")
    return key


class Scope(StrEnum):
    """Who shares cached prefixes with whom; see docs/serving.md for what each one gives away.

    APPLICATION and GLOBAL cross tenants. A key without an application shares with its tenant only.
    """

    USER = "user"
    TENANT = "tenant"
    APPLICATION = "application"
    GLOBAL = "global"


class Salts:
    """The prefix-cache salt of a principal: HMAC-SHA256 of a server secret over who shares it.

    The secret never leaves the server, so no client can name, guess or compute another's salt.
    Without one given it is drawn anew, which suits a cache that lives as long as the process.
    """

    def __init__(self, scope: Scope = Scope.TENANT, secret: bytes | None = None) -> None:
        self.scope = scope
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def of(self, principal: Principal) -> str:
        """The salt: the same for two principals if and only if they may share."""
        tenant, subject = principal.identity.tenant, principal.identity.subject
        shared: tuple[str, ...] = ("tenant", tenant)
        if self.scope is Scope.USER:
            shared = ("user", tenant, subject)
        elif self.scope is Scope.APPLICATION and principal.application:
            shared = ("application", principal.application)
        elif self.scope is Scope.GLOBAL:
            shared = ("global",)
        # JSON keeps the parts apart: no two different tuples give the same bytes.
        return hmac.new(self._secret, json.dumps(shared).encode(), hashlib.sha256).hexdigest()


def within(salt: str, partition: str) -> str:
    """The salt of a part of those who share `salt`; of all of them where `partition` is empty.

    A caller may choose the partition, since whatever it says divides its own share only.
    """
    if not partition:
        return salt
    return hmac.new(salt.encode(), partition.encode(), hashlib.sha256).hexdigest()
