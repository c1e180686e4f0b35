"""What a cluster of replicas keeps to, measured on real ones over HTTP.

Each figure answers one question: do two caches together hit like one of their size; does a replica
that is killed lose an accepted request; does one that leaves finish what it has; is anything of one
tenant's found by another.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from minserve.errors import ConfigError

PREFIX_TOKENS = 128
BLOCKS = 96
"""Of one replica, where routing is measured: little, so that the prefixes do not fit."""
TIMEOUT_S = 120.0

Figures = dict[str, Any]


@dataclass
class Cluster:
    """A gateway that answers at `url`, and `engine`, its side of the replicas.

    `scale_to(count)` has that many replicas, and returns when Ray has begun.
    """

    url: str
    engine: Any
    loop: Any
    scale_to: Callable[[int], None]

    def reports(self) -> list[Any]:
        """How each replica is now."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(self.engine.reports(), self.loop).result(30)

    def await_replicas(self, count: int, seconds: float = 60.0) -> None:
        """Wait until exactly `count` can be sent requests. Raises `TimeoutError`."""
        end_s = time.monotonic() + seconds
        while len(self.reports()) != count:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(self.reports())} replicas, not {count}")
            time.sleep(0.2)

    def complete(self, prompt: Sequence[int] | str, key: str = "", **more: Any) -> httpx.Response:
        """Ask for a completion; whatever comes back."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True} | more
        return httpx.post(
            f"{self.url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S
        )


Start = Callable[..., contextlib.AbstractContextManager[Cluster]]
"""Starts a cluster with these settings, by name; see `minserve.cli.cluster.running`."""


def routing(start: Start, seed: int = 0, rounds: int = 20) -> Figures:
    """Token hit rates with a working set of 1.5 times one replica's cache, and equal total blocks.

    Every prompt is one of a set of prefixes and a few tokens of its own; the first round, in which
    nothing can be cached, counts for all three alike.
    """
    num_prefixes = BLOCKS * 3 // 2 // (PREFIX_TOKENS // 16)

    def hit_rate(num_replicas: int, num_blocks: int, how: str) -> float:
        rng = random.Random(seed)
        prefixes = [[100 + number] * PREFIX_TOKENS for number in range(num_prefixes)]
        with start(num_replicas=num_replicas, num_blocks=num_blocks, routing=how) as cluster:
            for _ in range(rounds):
                rng.shuffle(prefixes)
                for prefix in prefixes:
                    own = [rng.randrange(50, 90) for _ in range(8)]
                    cluster.complete([*prefix, *own]).raise_for_status()
            reports = cluster.reports()
        queried = sum(report.num_queried_tokens for report in reports)
        return sum(report.num_hit_tokens for report in reports) / queried

    single = hit_rate(1, 2 * BLOCKS, "prefix")
    routed = hit_rate(2, BLOCKS, "prefix")
    at_random = hit_rate(2, BLOCKS, "random")
    return {
        "hit_rate_single": single,
        "hit_rate_prefix_routing": routed,
        "hit_rate_random_routing": at_random,
        "prefix_routing_within_5_percent": routed >= 0.95 * single,
        "random_routing_loses_a_third": at_random <= 2 / 3 * single,
    }


def isolation(cluster: Cluster, keys: dict[str, str]) -> Figures:
    """The same long prompt from two tenants and from a colleague, whichever replica it meets.

    `keys` has the keys of `owner`, `colleague` and `stranger`.
    """

    def cached(who: str) -> int:
        reply = cluster.complete(prompt, keys[who]).raise_for_status().json()
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    found: dict[str, list[int]] = {"colleague": [], "stranger": []}
    for number in range(8):
        prompt = [300 + number] * 96
        cached("owner")
        for who, counts in found.items():
            counts.append(cached(who))
    shared, leaked = found["colleague"], found["stranger"]
    return {
        "colleague_cached_tokens": sum(shared),
        "stranger_cached_tokens": sum(leaked),
        "prefixes_isolated": sum(leaked) == 0 and all(shared),
    }


def response_cache(cluster: Cluster, keys: dict[str, str]) -> Figures:
    """One greedy chat, again and again: replicas differ, the store behind them does not."""

    def ask(who: str, number: int) -> tuple[str, bool]:
        body = {
            "messages": [{"role": "user", "content": f"What are the opening hours, {number}?"}],
            "max_tokens": 200,
            "temperature": 0,
        }
        headers = {"authorization": f"Bearer {keys[who]}"}
        url = f"{cluster.url}/v1/chat/completions"
        reply = httpx.post(url, json=body, headers=headers, timeout=TIMEOUT_S).raise_for_status()
        is_whole = reply.json()["choices"][0]["finish_reason"] == "stop"
        return reply.headers.get("x-cache", ""), is_whole

    told: dict[str, list[str]] = {"first": [], "again": [], "stranger": []}
    for number in range(12):
        state, is_whole = ask("owner", number)
        told["first"].append(state)
        told["stranger"].append(ask("stranger", number)[0])
        if is_whole:  # what was cut off at its length is not kept
            told["again"] += [ask("owner", number)[0] for _ in range(3)]
    return {
        "response_cache": {name: sorted(set(states)) for name, states in told.items()},
        "response_cache_shared": set(told["again"]) == {"hit"},
        "responses_isolated": set(told["first"]) == set(told["stranger"]) == {"miss"},
    }


def death(cluster: Cluster, num_requests: int = 48, num_streams: int = 8) -> Figures:
    """Kill a replica by SIGKILL while requests are open; what becomes of each."""
    num_before = len(cluster.reports())
    with ThreadPoolExecutor(num_requests + num_streams) as pool:
        whole = [
            pool.submit(cluster.complete, [500 + n] * 24, max_tokens=48)
            for n in range(num_requests)
        ]
        streams = [pool.submit(_stream, cluster, [700 + n] * 24) for n in range(num_streams)]
        _await_progress(cluster)
        victim = max(cluster.reports(), key=lambda report: report.num_running)
        os.kill(victim.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        replies = [future.result() for future in whole]
        ends = [future.result() for future in streams]
    cluster.await_replicas(num_before, 120)
    lost = [reply.status_code for reply in replies if reply.status_code != 200]
    return {
        "requests": num_requests,
        "requests_lost": len(lost),
        "requests_sent_again": cluster.engine.num_retries,
        "streams_whole": ends.count("whole"),
        "streams_told_why": ends.count("error"),
        "streams_cut_without_a_word": ends.count("cut"),
        "replaced_after_s": round(time.monotonic() - killed_s, 1),
        "death_survived": not lost and "cut" not in ends and cluster.engine.num_retries > 0,
    }


def scale_in(cluster: Cluster, num_requests: int = 32) -> Figures:
    """Take a replica away while both are busy; both finish, and all blocks come back."""
    with ThreadPoolExecutor(num_requests + 1) as pool:
        whole = [
            pool.submit(cluster.complete, [900 + n] * 24, max_tokens=48)
            for n in range(num_requests)
        ]
        _await_progress(cluster)
        busy = [report.num_running for report in cluster.reports()]
        scaling: Future[None] = pool.submit(cluster.scale_to, 1)
        replies = [future.result() for future in whole]
        scaling.result()
    cluster.await_replicas(1)
    (left,) = cluster.reports()
    lost = sum(reply.status_code != 200 for reply in replies)
    return {
        "scale_in_running_before": busy,
        "scale_in_requests_lost": lost,
        "scale_in_blocks_used_after": left.blocks["used"],
        "scale_in_leaks_nothing": lost == 0 and left.blocks["used"] == 0 and min(busy) > 0,
    }


def _await_progress(cluster: Cluster, seconds: float = 30.0) -> None:
    """Wait until every replica is running something."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if all(report.num_running for report in cluster.reports()):
            return
        time.sleep(0.02)


def _stream(cluster: Cluster, prompt: list[int]) -> str:
    """How a stream ended: `whole`, `error` (its client is told), or `cut`."""
    body = {"prompt": prompt, "max_tokens": 48, "stream": True, "ignore_eos": True}
    url, seen = f"{cluster.url}/v1/completions", ""
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", url, json=body, timeout=TIMEOUT_S) as reply,
    ):
        for line in filter(None, reply.iter_lines()):
            seen = "error" if '"error"' in line else "error" if seen == "error" else line
    return seen if seen == "error" else "whole" if "[DONE]" in seen else "cut"


@contextlib.contextmanager
def gateway(
    server: Any, engine: Any, has_keys: bool, scale_to: Callable[[int], None], jobs: Any = None
) -> Iterator[Cluster]:
    """Run the gateway on a thread of its own, with the socket and the rules of `minserve serve`."""
    from minserve.serving.app import create_app
    from minserve.serving.run import Runner, bind, url_of

    listener, ready = bind("127.0.0.1", 0, has_keys), threading.Event()
    runner = Runner(create_app(server, jobs), server, ready.set)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not ready.wait(0.2):
            if not thread.is_alive():
                raise ConfigError("the gateway did not start", "its log says why")
        yield Cluster(url_of(listener), engine, server.loop, scale_to)
    finally:
        runner.should_exit = True
        thread.join(30)
