"""Who may share a step. Rules are symmetric predicates over two requests.

Whatever a rule keeps apart runs in turns: the scheduler serves whoever has gone longest without a
step, together with everybody compatible with it.
"""

from __future__ import annotations

from minserve.request import Request


def anyone(a: Request, b: Request) -> bool:
    """One model, no adapters, no isolation between neighbours."""
    return True


def same_adapter(a: Request, b: Request) -> bool:
    """For executors that apply one adapter to a whole step."""
    return a.adapter == b.adapter


def same_tenant(a: Request, b: Request) -> bool:
    """For tenants whose isolation policy forbids sharing a step; batches get smaller."""
    return a.identity.tenant == b.identity.tenant
