"""What HTTP costs, and whether people wait for machines and tenants for each other.

Four questions to a real `minserve serve`, each beside its yardstick in the same run:

    throughput  many streams at once, against the same requests given to the engine in one go
    ttft        the time to the first token over HTTP, against the same engine asked past HTTP
    classes     interactive requests while offline work keeps the engine full, against none
    tenants     two tenants that always have work waiting, one of them with ten times as much
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any

from minserve.benchmarks.runner import FOLDER, Runner
from minserve.benchmarks.server import Site, running
from minserve.errors import ConfigError, MinserveError
from minserve.loadtest.http import HttpClient
from minserve.loadtest.openai import COMPLETIONS, AnswerReader
from minserve.loadtest.record import OK, Record
from minserve.metrics import percentile
from minserve.request import WorkloadClass
from minserve.serving.identity import ApiKey, hash_of, new_secret

MOST_LOST, MOST_ADDED_S, MOST_UNFAIR = 0.15, 0.002, 0.10
"""Bounds: of throughput lost to HTTP, of added time to the first token, between two tenants."""
_COUNTS = re.compile(rb'"completion_tokens":(\d+)')
MORE_REQUESTS = 10
"""Times as many, of the busier tenant."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for: random tokens in, and a forced number out."""

    num_prompt: int
    num_output: int

    def body(self, rng: random.Random, vocab_size: int) -> bytes:
        prompt = [rng.randrange(100, vocab_size) for _ in range(self.num_prompt)]
        return _body(prompt, self.num_output)


def _body(prompt: Sequence[int], num_output: int) -> bytes:
    fields = {"prompt": list(prompt), "max_tokens": num_output, "ignore_eos": True, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    return json.dumps(fields | {"temperature": 0, "stream_options": options}).encode()


class Sender:
    """Streams requests to one server and stamps what comes back, from one thread."""

    def __init__(self, site: Site) -> None:
        self._client = HttpClient(site.url, time.perf_counter)

    async def stream(self, body: bytes, key: str = "", on_tokens=lambda count: None) -> Record:
        """The record of one answer; `on_tokens(n)` hears of each n tokens as they come.

        Raises `MinserveError` if it is refused or breaks off.
        """
        record = Record("", time.perf_counter())
        reader, num_told = AnswerReader(record), 0

        def take(data: bytes, now_s: float) -> None:
            nonlocal num_told
            reader.feed(data, now_s)
            if counts := _COUNTS.findall(data):  # a chunk may bear several tokens
                on_tokens(int(counts[-1]) - num_told)
                num_told = int(counts[-1])

        reply = await self._client.post(COMPLETIONS, body, take, api_key=key)
        reader.finish(reply.status, time.perf_counter())
        if record.outcome != OK:
            raise MinserveError(f"the server failed a request: {record.error}", "see its log")
        return record

    def close(self) -> None:
        self._client.close()


# -- throughput


def throughput(
    settings: dict[str, Any], prompts: Sequence[Sequence[int]], num_output: int, repeats: int
) -> dict[str, Any]:
    """All prompts as streams at once, and offline; the two take turns, and medians count."""
    options = ["--prefix-scope", "off", "--num-blocks", settings["kv_tokens"] // 16]
    options += ["--max-running", settings["max_running"]]
    options += ["--token-budget", settings["token_budget"], "--dtype", settings["dtype"]]
    lengths, num_tokens = [num_output] * len(prompts), num_output * len(prompts)
    bodies = [_body(prompt, num_output) for prompt in prompts]
    warm = [[7, 8, 9]] * 2
    with (
        Runner("minserve", "run_minserve.py", settings) as engine,
        running(settings["model"], options) as site,
    ):
        engine.run(warm, [4, 4])
        _all_at_once(site, [_body(prompt, 4) for prompt in warm])
        offline, online = [], []
        for _ in range(repeats):
            offline.append(engine.run(prompts, lengths)["total_s"])
            online.append(_all_at_once(site, bodies))
    offline_s = statistics.median(offline)
    online_s = statistics.median(run["wall_s"] for run in online)
    lost = 1 - offline_s / online_s
    return {
        "streams": len(prompts),
        "prompt_tokens": len(prompts[0]),
        "output_tokens": num_output,
        "offline_tokens_per_s": num_tokens / offline_s,
        "http_tokens_per_s": num_tokens / online_s,
        "lost": lost,
        "offline_s": offline,
        "http": online,
        "holds": lost <= MOST_LOST,
    }


def _all_at_once(site: Site, bodies: Sequence[bytes]) -> dict[str, float]:
    """Seconds until the last token, and the CPU time of both sides as a share of one core."""

    async def go() -> float:
        sender = Sender(site)
        try:
            records = await asyncio.gather(*(sender.stream(body) for body in bodies))
        finally:
            sender.close()
        return max(record.times_s[-1] for record in records)

    began_s, own_s, server_s = time.perf_counter(), time.process_time(), site.cpu_s()
    wall_s = asyncio.run(go()) - began_s
    return {
        "wall_s": wall_s,
        "client_cpu": (time.process_time() - own_s) / wall_s,
        "server_cpu": (site.cpu_s() - server_s) / wall_s,
    }


# -- time to the first token


def added_ttft(model: str, vocab_size: int, count: int, seed: int) -> dict[str, Any]:
    """One request at a time, over HTTP and past it to the same engine, in turn.

    Prompts of 40 tokens share nothing. Past HTTP means from a thread of the server's process.
    """
    rng = random.Random(f"ttft {seed}")
    direct, over_http = [], []
    command = [sys.executable, str(FOLDER / "run_server.py"), model]
    process = subprocess.Popen(
        command, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, text=True
    )

    def said() -> str:
        for line in process.stdout:
            if line.startswith("@"):
                return line[1:].strip()
        raise MinserveError("the server has ended", "try `minserve serve --model nano`")

    async def go(site: Site) -> None:
        sender = Sender(site)
        for number in range(count + 5):
            for seconds in (direct, over_http):
                prompt = [rng.randrange(100, vocab_size) for _ in range(40)]
                if seconds is direct:
                    print(json.dumps(prompt), file=process.stdin, flush=True)
                    took_s = float(said())
                else:
                    took_s = (await sender.stream(_body(prompt, 8))).ttft_s
                if number >= 5:  # the first ones warm both
                    seconds.append(took_s)
        sender.close()

    try:
        asyncio.run(go(Site(said(), process.pid)))
    finally:
        process.kill()
        process.communicate()
    added_s = percentile(over_http, 0.5) - percentile(direct, 0.5)
    return {
        "requests": count,
        "direct_p50_s": percentile(direct, 0.5),
        "direct_p95_s": percentile(direct, 0.95),
        "http_p50_s": percentile(over_http, 0.5),
        "http_p95_s": percentile(over_http, 0.95),
        "added_p50_s": added_s,
        "holds": added_s <= MOST_ADDED_S,
    }


# -- classes and tenants


class Crowd:
    """Users who each send the next request when the last is answered. `num_tokens` that came."""

    def __init__(self, sender: Sender, ask: Ask, vocab_size: int, seed: str) -> None:
        self._sender, self._ask, self._vocab_size = sender, ask, vocab_size
        self._rng = random.Random(seed)
        self._tasks: list[asyncio.Task] = []
        self.num_tokens = 0

    def start(self, num_users: int, key: str) -> None:
        self._tasks = [asyncio.create_task(self._user(key)) for _ in range(num_users)]

    async def stop(self) -> None:
        """End all that runs. Raises what a user met."""
        failed = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in failed:
            task.result()

    async def rate(self, seconds: float) -> float:
        """Tokens per second that come in the next `seconds`."""
        before, began_s = self.num_tokens, time.perf_counter()
        await asyncio.sleep(seconds)
        return (self.num_tokens - before) / (time.perf_counter() - began_s)

    async def _user(self, key: str) -> None:
        while True:
            body = self._ask.body(self._rng, self._vocab_size)
            await self._sender.stream(body, key, self._count)

    def _count(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens


def classes(
    model: str, vocab_size: int, step_cap_s: float, count: int, seed: int
) -> dict[str, Any]:
    """`count` interactive requests one by one, without and with 32 offline ones at all times."""
    person, machine = new_secret(), new_secret()
    keys = [
        ApiKey("person", hash_of(person), "t", "p", workload_class=WorkloadClass.INTERACTIVE),
        ApiKey("machine", hash_of(machine), "t", "m", workload_class=WorkloadClass.BATCH),
    ]
    ask, rng = Ask(64, 8), random.Random(f"classes {seed}")

    async def ttfts(sender: Sender) -> list[float]:
        found = []
        for _ in range(count):
            await asyncio.sleep(rng.uniform(0.0, 0.1))  # else it would keep in step with the steps
            record = await sender.stream(ask.body(rng, vocab_size), person)
            found.append(record.ttft_s)
        return found

    async def go(site: Site) -> dict[str, Any]:
        sender = Sender(site)
        crowd = Crowd(sender, Ask(256, 128), vocab_size, f"offline {seed}")
        await ttfts(sender)  # warms it
        alone = await ttfts(sender)
        crowd.start(32, machine)
        await asyncio.sleep(4)
        offline_alone = await crowd.rate(6)
        before, began_s = crowd.num_tokens, time.perf_counter()
        loaded = await ttfts(sender)
        took_s = time.perf_counter() - began_s
        offline_beside = (crowd.num_tokens - before) / took_s
        await crowd.stop()
        sender.close()
        allowed_s = percentile(alone, 0.95) + 2 * step_cap_s
        return {
            "step_cap_s": step_cap_s,
            "requests": count,
            "unloaded_ttft_p50_s": percentile(alone, 0.5),
            "unloaded_ttft_p95_s": percentile(alone, 0.95),
            "loaded_ttft_p50_s": percentile(loaded, 0.5),
            "loaded_ttft_p95_s": percentile(loaded, 0.95),
            "allowed_ttft_p95_s": allowed_s,
            "offline_tokens_per_s_alone": offline_alone,
            "offline_tokens_per_s_beside": offline_beside,
            "interactive_tokens_per_s_beside": count * ask.num_output / took_s,
            "holds": percentile(loaded, 0.95) <= allowed_s,
        }

    options = ["--step-cap", 1000 * step_cap_s, "--prefix-scope", "off", "--max-running", 32]
    with running(model, options, keys) as site:
        return asyncio.run(go(site))


def tenants(model: str, vocab_size: int, seconds: float, seed: int) -> dict[str, Any]:
    """Two tenants with more requests waiting than are served at once, one with ten times more."""
    secrets = {"many": new_secret(), "few": new_secret()}
    keys = [ApiKey(name, hash_of(secret), name, "s") for name, secret in secrets.items()]
    num_few, ask = 12, Ask(32, 48)

    async def go(site: Site) -> dict[str, Any]:
        sender = Sender(site)
        crowds = {name: Crowd(sender, ask, vocab_size, f"{name} {seed}") for name in secrets}
        crowds["many"].start(MORE_REQUESTS * num_few, secrets["many"])
        await asyncio.sleep(1)  # the one who sends more is there first
        crowds["few"].start(num_few, secrets["few"])
        await asyncio.sleep(2)
        before = {name: crowd.num_tokens for name, crowd in crowds.items()}
        await asyncio.sleep(seconds)
        served = {name: crowd.num_tokens - before[name] for name, crowd in crowds.items()}
        for crowd in crowds.values():
            await crowd.stop()
        sender.close()
        apart = abs(served["many"] - served["few"]) / max(1, *served.values())
        return {
            "users": {"many": MORE_REQUESTS * num_few, "few": num_few},
            "seconds": seconds,
            "served_tokens": served,
            "apart": apart,
            "holds": min(served.values()) > 0 and apart <= MOST_UNFAIR,
        }

    options = ["--prefix-scope", "off", "--max-running", 8, "--ordering", "fair"]
    with running(model, options, keys) as site:
        return asyncio.run(go(site))


PARTS = ("throughput", "ttft", "classes", "tenants")


def check_parts(text: str) -> list[str]:
    """The parts that `text` names, with commas. Raises `ConfigError`."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PARTS]:
        raise ConfigError(f"part {unknown[0]!r}", f"use {', '.join(PARTS)}")
    return names
