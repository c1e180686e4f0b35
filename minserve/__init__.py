"""minserve: an LLM inference engine that a learner builds, breaks and measures.

The names below load their module on first use: ``import minserve`` stays fast and takes no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minserve.engine import Engine
    from minserve.errors import MinserveError
    from minserve.request import Identity, Request, SamplingParams, Timeline, WorkloadClass

__version__ = "1.0.0"

__all__ = [
    "Engine",
    "Identity",
    "MinserveError",
    "Request",
    "SamplingParams",
    "Timeline",
    "WorkloadClass",
    "__version__",
]

_HOME_OF = {
    "Engine": "minserve.engine",
    "MinserveError": "minserve.errors",
    "Identity": "minserve.request",
    "Request": "minserve.request",
    "SamplingParams": "minserve.request",
    "Timeline": "minserve.request",
    "WorkloadClass": "minserve.request",
}


def __getattr__(name: str) -> object:
    """Import a re-exported name on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """List the re-exported names too."""
    return sorted({*globals(), *__all__})
