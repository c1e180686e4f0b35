"""A handler that needs no engine: for trying the queue out, and for measuring it."""

from __future__ import annotations

import time
from typing import Any

from minserve.jobs.handler import Context


def nap(payload: dict[str, Any], ctx: Context) -> float:
    """Sleep, say how far it is, and leave one effect in the ledger."""
    seconds, parts = payload.get("seconds", 0.0), payload.get("parts", 1)
    for part in range(parts):
        time.sleep(seconds / parts)
        if parts > 1:
            ctx.progress(part + 1, parts)
    ctx.effect("nap", {"seconds": seconds})
    return seconds
