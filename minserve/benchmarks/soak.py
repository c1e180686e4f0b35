"""Hours of everything that clients do, in minutes: does the server end as it began?

Users of two tenants, over raw sockets, do at random what clients do: ask and read, ask and leave,
send what is too large, broken, unknown or unauthorised. Then everybody stops, and all KV blocks
must be free or cached, nothing may run or wait, and memory may not have grown.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from minserve.benchmarks.server import Site, running
from minserve.loadtest.http import HttpClient
from minserve.serving.identity import ANY_CLASS, OPERATOR, ApiKey, hash_of, new_secret

TIMEOUT_S = 120.0
"""An action that takes longer counts as hung."""
BUSY = (429, 503)
MOST_GROWTH = 0.02
"""Of memory, over the second half of the run, as a share of what there was."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Deed:
    """What a user does: a request, the statuses it may have, and when its sender leaves.

    `leaves_after` bytes of the answer (0: at once), or None: it reads to the end. `read_s` is how
    long it dawdles between reads. `sent` is the share of the body that is ever sent.
    """

    name: str
    method: str = "POST"
    path: str = COMPLETIONS
    body: bytes = b""
    allowed: tuple[int, ...] = (200, *BUSY)
    leaves_after: int | None = None
    read_s: float = 0.0
    sent: float = 1.0
    has_key: bool = True


def deed(rng: random.Random) -> Deed:
    """One of them, at random."""
    prompt = [rng.randrange(100, 500) for _ in range(rng.randint(1, 200))]
    fields = {"prompt": prompt, "max_tokens": rng.randint(1, 64), "temperature": rng.choice([0, 1])}
    stream = fields | {"stream": True, "ignore_eos": True}
    asked = f"What is the late fee of club {rng.randrange(40)}?"
    chat = {
        "messages": [{"role": "user", "content": asked}],
        "max_tokens": 32,
        "temperature": 0,
        "stream": rng.random() < 0.5,
    }

    def sent(name: str, content: Any, path: str = COMPLETIONS, **options: Any) -> Deed:
        return Deed(name, path=path, body=json.dumps(content).encode(), **options)

    bad = (400,)
    kinds = [
        (8, lambda: sent("whole", fields)),
        (8, lambda: sent("stream", stream)),
        (6, lambda: sent("chat", chat, CHAT)),
        (3, lambda: sent("several choices", fields | {"n": 3, "logprobs": 2, "temperature": 1})),
        (3, lambda: sent("stop and seed", fields | {"stop": ["a", "e "], "seed": 7})),
        (3, lambda: sent("offline", stream | {"service_tier": "flex"})),
        (8, lambda: sent("leaves in mid-stream", stream, leaves_after=rng.randint(1, 4000))),
        (4, lambda: sent("leaves at once", stream, leaves_after=0)),
        (2, lambda: sent("leaves a whole answer", fields, leaves_after=0)),
        (2, lambda: sent("reads slowly", stream, read_s=0.2)),
        (2, lambda: sent("half a body", stream, sent=0.5, leaves_after=0)),
        (2, lambda: sent("oversized", {"prompt": "x" * 200_000}, allowed=(413,))),
        (2, lambda: sent("too long", fields | {"max_tokens": 1_000_000}, allowed=bad)),
        (2, lambda: sent("unknown field", fields | {"tenant": "b"}, allowed=bad)),
        (2, lambda: sent("wrong type", fields | {"max_tokens": "many"}, allowed=bad)),
        (2, lambda: Deed("malformed", body=b'{"prompt": [1, 2', allowed=bad)),
        (1, lambda: Deed("no body", allowed=bad)),
        (1, lambda: Deed("no such path", "GET", "/nowhere", allowed=(404,))),
        (1, lambda: sent("no key", fields, has_key=False, allowed=(401,))),
        (1, lambda: Deed("models", "GET", "/v1/models", allowed=(200,))),
        (1, lambda: Deed("live", "GET", "/live", allowed=(200,))),
    ]
    weights, makers = zip(*kinds, strict=True)
    return rng.choices(makers, weights)[0]()


@dataclass(slots=True)
class Tally:
    """What came of it all."""

    deeds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    hung: Counter[str] = field(default_factory=Counter)
    rss: list[tuple[float, int]] = field(default_factory=list)


def soak(model: str, minutes: float, num_users: int, seed: int) -> dict[str, Any]:
    """Run it, and judge how it ended. Raises `ConfigError` if the server does not start."""
    secrets = {name: new_secret() for name in ("a", "b", "operator")}
    keys = [
        ApiKey(
            name,
            hash_of(secret),
            name,
            "user",
            (OPERATOR,) if name == "operator" else (),
            answer_classes=(ANY_CLASS,),
        )
        for name, secret in secrets.items()
    ]
    options = ["--num-blocks", 400, "--max-body", "128KIB", "--max-running", 16]
    options += ["--response-cache", "memory", "--semantic-cache", "default"]
    with running(model, options, keys) as site:
        return asyncio.run(_soak(site, secrets, minutes, num_users, seed))


async def _soak(
    site: Site, secrets: dict[str, str], minutes: float, num_users: int, seed: int
) -> dict[str, Any]:
    tally, began_s = Tally(), time.monotonic()
    end_s = began_s + 60 * minutes

    async def user(number: int) -> None:
        rng = random.Random(f"soak {seed} {number}")
        while time.monotonic() < end_s:
            await _do(site, deed(rng), secrets["ab"[number % 2]], tally)

    async def watch() -> None:
        while time.monotonic() < end_s:
            tally.rss.append((time.monotonic() - began_s, site.rss_bytes()))
            await asyncio.sleep(min(5.0, 60 * minutes / 30))

    await asyncio.gather(watch(), *(user(number) for number in range(num_users)))
    ended = await _settled(site, secrets["operator"])
    memory = _memory(tally.rss)
    holds = (
        ended["is_idle"]
        and not tally.hung
        and not tally.unexpected
        and memory["growth_second_half"] <= MOST_GROWTH
    )
    return {
        "minutes": minutes,
        "users": num_users,
        "seed": seed,
        "deeds": dict(tally.deeds.most_common()),
        "num_deeds": sum(tally.deeds.values()),
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "unexpected": tally.unexpected[:20],
        "hung": tally.hung.total(),
        "hung_deeds": dict(tally.hung),
        "at_the_end": ended,
        "memory": memory,
        "holds": holds,
    }


async def _do(site: Site, deed: Deed, key: str, tally: Tally) -> None:
    tally.deeds[deed.name] += 1
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status = await _exchange(site, deed, key)
    except TimeoutError:
        tally.hung[deed.name] += 1
        return
    except OSError as error:
        tally.unexpected.append(f"{deed.name}: {type(error).__name__}: {error}")
        return
    if status is not None:
        tally.statuses[status] += 1
        if status not in deed.allowed:
            tally.unexpected.append(f"{deed.name}: {status}")


async def _exchange(site: Site, deed: Deed, key: str) -> int | None:
    """The status, or None where its sender has left before there was one."""
    host, port = site.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 14)
    try:
        head = f"{deed.method} {deed.path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        if deed.has_key:
            head += f"authorization: Bearer {key}\r\n"
        if deed.method == "POST":
            head += f"content-type: application/json\r\ncontent-length: {len(deed.body)}\r\n"
        writer.write(head.encode() + b"\r\n" + deed.body[: int(deed.sent * len(deed.body))])
        if deed.leaves_after == 0:
            return None
        answer = await reader.read(1 << 12)
        status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
        num_read = len(answer)
        while deed.leaves_after is None or num_read < deed.leaves_after:
            more = await reader.read(1 << 14)
            if not more:
                break
            num_read += len(more)
            await asyncio.sleep(deed.read_s)
        return status
    finally:
        writer.close()


async def _settled(site: Site, key: str, seconds: float = 60.0) -> dict[str, Any]:
    """What the server holds once nobody asks for anything; waits until it is nothing."""
    client = HttpClient(site.url, time.perf_counter, key)
    end_s = time.monotonic() + seconds
    while True:
        live = json.loads((await client.get("/live"))[1])
        blocks = live["blocks"]
        is_idle = not live["running"] and not live["waiting"] and not blocks["used"]
        is_idle &= blocks["free"] + blocks["cached"] == blocks["total"]
        if is_idle or time.monotonic() > end_s:
            client.close()
            return {
                "is_idle": is_idle,
                "running": live["running"],
                "waiting": live["waiting"],
                "blocks": blocks,
                "unfinished": live["load"].get("unfinished"),
            }
        await asyncio.sleep(0.2)


def _memory(samples: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Bytes, and the least-squares slope over the second half, when all caches are full."""
    late = samples[len(samples) // 2 :]
    times, sizes = [time_s for time_s, _ in late], [size for _, size in late]
    mean_s, mean = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((t - mean_s) ** 2 for t in times) or 1.0
    pairs = zip(times, sizes, strict=True)
    slope = sum((t - mean_s) * (size - mean) for t, size in pairs) / spread
    growth = slope * (times[-1] - times[0]) / mean if mean else 0.0
    return {
        "rss_first_bytes": samples[0][1],
        "rss_half_bytes": sizes[0],
        "rss_last_bytes": sizes[-1],
        "slope_bytes_per_minute": 60 * slope,
        "growth_second_half": growth,
    }
