"""Which replica computes least for a request: most of its prompt is cached there, or it is idle.

Equivalent inputs: prompts whose chained block keys begin alike. The keys hold the isolation scope's
salt, so what one tenant sent never attracts another's requests. What is known of a replica's cache
is what was sent there lately: a guess that costs time when it is wrong, and never an answer.
The idea is that of SGLang's cache-aware load balancing (Zheng 2023), with cost counted in tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Replica = TypeVar("Replica", bound=Hashable)


class PrefixRouter:
    """Remembers which blocks were computed where.

    Args:
        num_blocks: What one replica's cache holds; older keys than that are taken for evicted.
        block_size: Tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._cached: dict[Hashable, OrderedDict[bytes, None]] = {}

    def choose(
        self, keys: Sequence[bytes], num_tokens: int, loads: Mapping[Replica, float]
    ) -> Replica:
        """The replica that would be done first.

        `keys` are the chained keys of the prompt's full blocks, `num_tokens` its length, `loads`
        the tokens that each replica still has to compute. Between equals the one whose cache has
        most room is chosen, so that an idle cluster spreads prefixes. Changes nothing.
        """

        def cost(replica: Replica) -> tuple[float, int]:
            num_cached = self.num_cached_tokens(keys, replica)
            return loads[replica] + num_tokens - num_cached, self.num_known_blocks(replica)

        return min(loads, key=cost)

    def num_cached_tokens(self, keys: Sequence[bytes], replica: Hashable) -> int:
        """How much of the prompt is believed to be cached there."""
        known, num_blocks = self._cached.get(replica, ()), 0
        for key in keys:
            if key not in known:
                break
            num_blocks += 1
        return num_blocks * self._block_size

    def num_known_blocks(self, replica: Hashable) -> int:
        """How many blocks are believed to be cached there."""
        return len(self._cached.get(replica, ()))

    def sent(self, keys: Sequence[bytes], replica: Hashable) -> None:
        """Note where a prompt went: its blocks are now the newest there, the last one the oldest
        of them, for caches give up leaves first."""
        known = self._cached.setdefault(replica, OrderedDict())
        for key in reversed(keys):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._num_blocks:
            known.popitem(last=False)

    def forget(self, replica: Hashable) -> None:
        """A replica has gone, and its cache with it."""
        self._cached.pop(replica, None)
