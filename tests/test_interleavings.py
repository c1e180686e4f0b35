"""Every interleaving of three requests over six blocks, to the end.

From each state every action is tried: submit or cancel each of three requests whose prompts share
a prefix, begin a step, finish the step in flight. States that are equal are explored once. Since
each of the requests may also be sent late or never, this covers all ways in which they can meet.
"""

from __future__ import annotations

import copy

import pytest
from support import ContentExecutor, TerminalEvents, ask, check, check_output, check_plan

from minserve.engine import Engine
from minserve.request import Status
from minserve.scheduling.batching import ContinuousBatching, StaticBatching

# (prompt, max_tokens) of each request: alone it fits in six blocks of two tokens; all together
# they do not, so that some paths preempt.
EVEN = [((1, 2, 3, 4, 5), 3), ((1, 2, 4), 5), ((1, 2, 3), 1)]
LONG = [((1, 2, 3), 5), ((1, 2, 4), 6), ((1, 2, 3, 4), 1)]


class World:
    """An engine, three requests, and what has been done with each so far."""

    def __init__(self, requests, policy, prefix_caching: bool):
        executor = ContentExecutor(num_blocks=6, block_size=2)
        self.engine = Engine(
            executor, policy, prefix_caching=prefix_caching, log=TerminalEvents(keep=False)
        )
        self.requests = [ask(f"r{n}", *requests[n]) for n in range(3)]
        self.is_sent = [False] * 3

    def actions(self) -> list[tuple[str, int]]:
        actions = [("submit", n) for n in range(3) if not self.is_sent[n]]
        actions += [
            ("cancel", n)
            for n, request in enumerate(self.requests)
            if self.is_sent[n] and request.status is not Status.FINISHED
        ]
        if self.engine._handle is not None:
            actions.append(("finish", 0))
        elif self.engine.scheduler.num_unfinished:
            actions.append(("begin", 0))
        return actions

    def act(self, action: str, n: int) -> None:
        engine = self.engine
        if action == "submit":
            engine.submit(self.requests[n], 0.0)
            self.is_sent[n] = True
        elif action == "cancel":
            assert engine.cancel(self.requests[n].id, 0.0) is True
            assert engine.cancel(self.requests[n].id, 0.0) is False
        elif action == "begin":
            handle = engine.begin_step(0.0)
            check_plan(engine, handle.plan)
        else:
            engine.finish_step(0.0)
        engine.executor.plans.clear()
        check(engine)

    def copy(self) -> World:
        """A world that goes its own way; what never changes is shared, to save time."""
        shared = [self.engine.scheduler.policy, self.engine._handle]
        for request in self.requests:
            shared += [request.sampling, request.identity, request.prompt_token_ids]
        return copy.deepcopy(self, {id(part): part for part in shared})

    def check_end(self) -> None:
        pool, log = self.engine.pool, self.engine.log
        assert pool.num_used == 0 and pool.num_free + pool.num_cached == 6
        for request in self.requests:
            check_output(request)
            assert log.finished[request.id] == 1
            assert log.tokens.get(request.id, []) == request.output_token_ids

    def key(self):
        """All that can influence what happens from here on."""
        engine, cache = self.engine, self.engine.prefix_cache
        scheduler, pool = engine.scheduler, engine.pool
        requests = tuple(
            (
                is_sent,
                request.status,
                len(request.output_token_ids),
                tuple(request.block_table),
                len(request.block_hashes),
                request.num_computed_tokens,
                request.num_bypasses,
                request.id in scheduler._in_flight,
            )
            for is_sent, request in zip(self.is_sent, self.requests, strict=True)
        )
        # Numbers and ticks only order things: their ranks are all that counts.
        order = tuple(r.id for r in sorted(scheduler._requests.values(), key=lambda r: r.number))
        running = tuple(request.id for request in scheduler.running)
        rows = tuple(engine._handle.plan.rows) if engine._handle else ()
        row_keys = tuple((row.request_id, row.start, row.num_context_tokens) for row in rows)
        cached = ()
        if cache:
            entries = sorted(cache._entries.items(), key=lambda item: item[1].last_used)
            ranks = {
                last_used: n
                for n, last_used in enumerate(
                    sorted(
                        {entry.last_used for _, entry in entries}
                        | {tick for tick, _ in cache._evictable}
                    )
                )
            }
            cached = (
                tuple((key, entry.block, ranks[entry.last_used]) for key, entry in entries),
                tuple(sorted((ranks[tick], key) for tick, key in cache._evictable)),
            )
        return requests, order, running, row_keys, tuple(pool._free), cached


def explore(world: World) -> dict[str, int]:
    """Visit every state once, and count."""
    seen, todo = {world.key()}, [world]
    num_actions = num_ends = num_preempted = num_hits = 0
    while todo:
        world = todo.pop()
        actions = world.actions()
        if not actions:
            world.check_end()
            num_ends += 1
            num_preempted += any(request.num_preemptions for request in world.requests)
            num_hits += any(request.num_cached_tokens for request in world.requests)
        for index, action in enumerate(actions):
            is_last = index == len(actions) - 1
            after = world if is_last else world.copy()
            after.act(*action)
            num_actions += 1
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append(after)
    return {
        "states": len(seen),
        "actions": num_actions,
        "ends": num_ends,
        "ends after a preemption": num_preempted,
        "ends after a prefix hit": num_hits,
    }


@pytest.mark.parametrize(
    ("requests", "policy", "prefix_caching"),
    [
        (EVEN, ContinuousBatching(token_budget=7, max_running=3, chunk_tokens=3), True),
        (EVEN, ContinuousBatching(token_budget=7, max_running=3, chunk_tokens=3), False),
        (LONG, StaticBatching(2), True),
    ],
    ids=["continuous, prefix", "continuous, no prefix", "static, prefix"],
)
def test_every_interleaving_of_three_requests_over_six_blocks(
    requests, policy, prefix_caching, capsys
):
    counts = explore(World(requests, policy, prefix_caching))
    with capsys.disabled():
        print(f"{counts} ", end="")
    assert counts["states"] > 1_000 and counts["ends after a preemption"] > 10
    assert (counts["ends after a prefix hit"] > 10) == prefix_caching
