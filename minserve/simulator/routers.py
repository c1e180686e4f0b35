"""Which replica of a simulated fleet takes a request."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from minserve.request import Request
from minserve.routing.prefix import PrefixRouter
from minserve.simulator.profile import Profile

if TYPE_CHECKING:
    from minserve.simulator.fleet import Replica


class Router(Protocol):
    """Chooses a replica for a request; `loads` are requests unfinished at each."""

    def __call__(self, request: Request, loads: list[int]) -> int: ...


def least_loaded(request: Request, loads: list[int]) -> int:
    """The replica with the fewest unfinished requests; the first of them."""
    return loads.index(min(loads))


def by_prefix(request: Request, loads: list[int], num_tokens: int = 64) -> int:
    """Requests that begin alike go to one replica, whose cache has that prefix.

    Unless that replica has twice the mean load and four requests more: then the least loaded.
    """
    head = repr((request.cache_salt, request.prompt_token_ids[:num_tokens])).encode()
    chosen = zlib.crc32(head) % len(loads)
    if loads[chosen] > max(2 * sum(loads) / len(loads), min(loads) + 4):
        return least_loaded(request, loads)
    return chosen


class ByCachedPrefix:
    """The cluster's router, `minserve.routing.prefix`, on the virtual clock: one for each fleet.

    A replica's load is what its unfinished requests may come to compute, as in the cluster.
    """

    def __init__(self, profile: Profile) -> None:
        self.prefixes = PrefixRouter(profile.num_blocks, profile.block_size)

    def choose(self, request: Request, replicas: list[Replica]) -> int:
        """The index of the replica that computes least for `request`."""
        cache = replicas[0].client.engine.prefix_cache
        keys = []
        if cache:
            root = cache.root(request.cache_salt, request.adapter)
            keys = cache.hashes(request.prompt_token_ids, root)
        loads = {replica: replica.num_tokens for replica in replicas}
        chosen = self.prefixes.choose(keys, request.num_prompt_tokens, loads)
        self.prefixes.sent(keys, chosen)
        return replicas.index(chosen)


ROUTERS: dict[str, Callable[[Profile], Router | ByCachedPrefix]] = {
    "least-loaded": lambda profile: least_loaded,
    "prefix": lambda profile: by_prefix,
    "cached-prefix": ByCachedPrefix,
}
