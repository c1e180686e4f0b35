"""Who may share a step. Rules are symmetric predicates over two requests.

Whatever a rule keeps apart runs in turns: the scheduler serves whoever has gone longest without a
step, together with everybody compatible with it.

Equivalent inputs: requests that one pass can compute, whatever their decoding, which goes row by
row. Valid for one step. Scope: whom the rule lets. Order changes time and no token. A cancelled
request's row of the step in flight is thrown away.
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
