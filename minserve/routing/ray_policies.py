"""Our routing and scaling policies in Ray Serve's frames.

NOTE: Ray sends this module's source with the classes and makes them anew where they run. So all
that must be the same object, or of the same class, on both sides stands in `minserve.routing.wire`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter

from minserve.loadtest.capacity import OnBacklog, Signals
from minserve.routing import wire
from minserve.routing.prefix import PrefixRouter

CHOSEN_S = 5.0
"""How long a choice counts of which nothing more was heard."""


class PrefixRequestRouter(FIFOMixin, RequestRouter):
    """`PrefixRouter` in Ray Serve's frame. It runs in the gateway, on Ray's own event loop."""

    def initialize_state(  # type: ignore[override]  # called with what `deploy` gives, by name
        self, num_blocks: int, block_size: int, at_random: bool = False
    ) -> None:
        self._prefixes = PrefixRouter(num_blocks, block_size)
        self._rng = random.Random(0) if at_random else None
        self._open: dict[str, tuple[ReplicaID, int]] = {}
        self._chosen: dict[str, tuple[ReplicaID, int, float]] = {}
        wire.routers.append(self)

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: PendingRequest | None = None
    ) -> list[list[Any]]:
        if pending_request is not None:
            # NOTE: without a pause Ray asks again at once while none can take it, for instance a
            # replica that has gone, and its event loop comes to nothing else: not to a stop either.
            pending_request.routing_context.should_backoff = True
        what = pending_request.args[0] if pending_request and pending_request.args else None
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        if isinstance(what, wire.To):
            return [[r for id, r in by_id.items() if id.unique_id == what.replica]]
        if not by_id or pending_request is None or not isinstance(what, wire.Sent):
            return [candidate_replicas]
        if self._rng:
            return [[self._rng.choice(candidate_replicas)]]
        request_id = pending_request.metadata.internal_request_id
        loads = self._loads(by_id, request_id)
        chosen = self._prefixes.choose(what.keys, what.request.num_prompt_tokens, loads)
        self._chosen[request_id] = chosen, what.num_tokens, time.monotonic()
        others = sorted((id for id in loads if id != chosen), key=loads.__getitem__)
        return [[by_id[chosen]], [by_id[id] for id in others]]

    def _loads(self, replicas: Collection[ReplicaID], asking: str) -> dict[ReplicaID, int]:
        """Tokens to compute at each: of what is there, and of what was just chosen for it.

        NOTE: several requests of a burst are chosen for before the first is on its way. One that
        is given up before that is never heard of again, and forgotten after a while.
        """
        loads = dict.fromkeys(replicas, 0)
        oldest_s = time.monotonic() - CHOSEN_S
        self._chosen = {
            id: entry for id, entry in self._chosen.items() if entry[2] > oldest_s and id != asking
        }
        chosen = ((replica_id, num_tokens) for replica_id, num_tokens, _ in self._chosen.values())
        for replica_id, num_tokens in (*self._open.values(), *chosen):
            if replica_id in loads:
                loads[replica_id] += num_tokens
        return loads

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        what = pending_request.args[0] if pending_request.args else None
        if isinstance(what, wire.Sent):
            self._prefixes.sent(what.keys, replica_id)
            request_id = pending_request.metadata.internal_request_id
            self._chosen.pop(request_id, None)
            self._open[request_id] = replica_id, what.num_tokens

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._open.pop(internal_request_id, None)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._prefixes.forget(replica_id)
        self._open = {k: v for k, v in self._open.items() if v[0] != replica_id}

    @property
    def replica_ids(self) -> list[str]:
        """Who can be sent something now."""
        return [replica_id.unique_id for replica_id in self.curr_replicas]


LOOK_EVERY_S = 2.5
"""Ray asks ten times a second; the rule counts the looks at which nothing was to be done."""


@dataclass
class Autoscaler:
    """`OnBacklog` as Ray Serve's scaling policy; `num_warm` more than it asks for are kept."""

    tokens_per_s: float
    drain_s: float
    num_warm: int = 0
    _rule: OnBacklog = field(init=False)
    _looked_s: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self._rule = OnBacklog(self.tokens_per_s, self.drain_s)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas there should be, and Ray's own state, unchanged."""
        wanted = context.target_num_replicas
        if context.current_time - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = context.current_time
            wanted = self._rule(self._signals(context)) + self.num_warm
        low, high = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return min(high, max(low, wanted)), context.policy_state

    def _signals(self, context: Any) -> Signals:
        """What the rule looks at. The warm replicas are not its affair: it would add to them."""
        told = context.aggregated_metrics or {}

        def each(name: str) -> list[float]:
            return list(told.get(name, {}).values()) or [0.0]

        current = max(1, context.current_num_replicas - self.num_warm)
        target = max(1, context.target_num_replicas - self.num_warm)
        return Signals(
            now_s=context.current_time,
            num_replicas=current,
            num_loading=max(0, target - current),
            queued_tokens=int(sum(each("queued_tokens"))),
            oldest_wait_s=max(each("oldest_wait_s")),
            num_running=int(sum(each("num_running"))),
            kv_pressure=max(each("kv_pressure")),
            utilisation=0.0,
        )
