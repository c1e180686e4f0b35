"""Who may call a server: its keys, and what to warn of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minserve.serving.identity import ApiKey, KeyRing


def key_ring(path: Path | None, demo: bool) -> KeyRing | None:
    """The keys of a file, and the demo keys where `demo`; None where neither: no key is asked."""
    from minserve.serving.identity import KeyFile, KeyRing

    extra = demo_keys() if demo else []
    if path is not None:
        return KeyFile(path, extra)
    return KeyRing(extra) if demo else None


def demo_keys() -> list[ApiKey]:
    """A key for each of Northstar's users, whose secrets are in data/northstar/demo_keys.json."""
    from minserve.northstar.corpus import load_corpus
    from minserve.serving.identity import ANY_CLASS, ApiKey

    return [
        ApiKey(
            user.id,
            user.key_sha256,
            user.tenant,
            user.id,
            application="northstar",
            answer_classes=(ANY_CLASS,),
        )
        for user in load_corpus().users
    ]


def warnings_of(ring: KeyRing | None, has_demo_keys: bool, prefix_scope: str) -> list[str]:
    """What whoever starts a server should know of who may call it and what they share."""
    warnings = []
    if ring is None:
        warnings.append("no API keys: anybody on this machine may use it, as one tenant")
    if has_demo_keys:
        where = "data/northstar/demo_keys.json"
        warnings.append(f"demo keys are published, in {where}: for demonstrations only")
    if prefix_scope in ("application", "global"):
        warnings.append(
            f"prefix scope {prefix_scope}: tenants can tell from timing what others have sent"
        )
    return warnings
