"""The timing side channel of prefix caching: an attacker guesses what others have sent.

A victim sends a secret prompt. Somebody of another tenant then sends either that very prompt or
one that nobody has sent, and judges from the time to its first token alone whether it was cached.
Each prompt is probed once, for a probe puts its own prompt into the cache. Half of the guesses are
right, in random order. The threshold comes from the attacker's own prompts and not from the
trials: before each probe it sends one twice, so that a machine that slows down does not hide the
difference. Global prompt caches were found in this way at seven providers (Gu et al.,
"Auditing Prompt Caching in Language Model APIs", 2025).

    shared   one cache for all tenants: no salt keeps them apart
    salted   the server's default: each tenant has a salt of its own
    control  salted, but whoever guesses is of the victim's own tenant, which may share
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minserve.benchmarks.server import running
from minserve.client import LocalClient
from minserve.clock import Clock, EventLoop
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import EventLog
from minserve.execution.executor import Executor
from minserve.metrics import percentile
from minserve.request import Identity, Request, SamplingParams
from minserve.serving.identity import (
    ApiKey,
    Principal,
    Salts,
    Scope,
    hash_of,
    new_secret,
)

VICTIM = Principal(Identity("victim", "vera"))
COLLEAGUE = Principal(Identity("victim", "carl"))
ATTACKER = Principal(Identity("attacker", "mallory"))
CASES = {
    "shared": (Scope.GLOBAL, ATTACKER),
    "salted": (Scope.TENANT, ATTACKER),
    "control": (Scope.TENANT, COLLEAGUE),
}

WINDOW = 9
"""How many of its own prompts the prober's threshold is made of."""

Send = Callable[[Principal, Sequence[int]], tuple[float, int]]
"""Sends a prompt; the seconds to its first token, and how many of its tokens were cached."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One probe: whether the victim had sent the prompt, and what the prober saw."""

    was_sent: bool
    ttft_s: float
    num_cached_tokens: int
    threshold_s: float
    """What the prober took for the limit between cached and not at that time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one case came to. `accuracy` is that of the threshold; `auc` of the best possible use
    of the times: the chance that a sent prompt was faster than one that was not. 0.5 is a guess.
    """

    case: str
    num_trials: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    auc: float
    threshold_p50_s: float
    ttft_sent_p50_s: float
    ttft_unsent_p50_s: float
    share_cached: float
    """Of the prompts that the victim had sent, those found in the cache by the prober."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure(
    case: str, send: Send, num_trials: int, prompts: Iterator[list[int]], rng: random.Random
) -> Verdict:
    """Calibrate, then probe `num_trials` prompts (an even number), half of them the victim's."""
    if num_trials < 2 or num_trials % 2:
        raise ConfigError(f"{num_trials} trials", "give an even number: half of them are hits")
    prober = CASES[case][1]
    own: deque[tuple[float, float]] = deque(maxlen=WINDOW)
    for _ in range(WINDOW):
        own.append(_own_pair(send, prober, next(prompts)))
    truths = [True, False] * (num_trials // 2)
    rng.shuffle(truths)
    trials = []
    for was_sent in truths:
        secret, other = next(prompts), next(prompts)
        send(VICTIM, secret)
        own.append(_own_pair(send, prober, next(prompts)))
        ttft_s, num_cached = send(prober, secret if was_sent else other)
        trials.append(Trial(was_sent, ttft_s, num_cached, _halfway(own)))
    return _judge(case, trials)


def send_in_process(
    executor: Executor, scope: Scope, clock: Clock, batch_tokens: int = 512
) -> Send:
    """A fresh engine, with an empty cache, that salts prompts as a server of this scope does."""
    from minserve.scheduling.batching import ContinuousBatching

    policy = ContinuousBatching(batch_tokens, max_running=8)
    engine = Engine(executor, policy, log=EventLog(keep=False))
    client, salts = LocalClient(engine, EventLoop(clock)), Salts(scope)
    numbers = iter(range(10**9))

    def send(principal: Principal, prompt: Sequence[int]) -> tuple[float, int]:
        request = Request(
            f"r{next(numbers)}",
            tuple(prompt),
            SamplingParams(max_tokens=1, ignore_eos=True),
            principal.identity,
            arrival_s=clock.now_s(),
            cache_salt=salts.of(principal),
        )
        client.send(request)
        client.run()
        return round(request.timeline.ttft_s, 6), request.num_cached_tokens

    return send


@contextlib.contextmanager
def send_over_http(model: str, num_blocks: int, scope: Scope) -> Iterator[Send]:
    """A `minserve serve` in a process of its own, with a key for each of the three people.

    The time is that of a whole answer of one token. Raises `ConfigError` if no server starts.
    """
    import httpx

    people = {person: new_secret() for person in (VICTIM, COLLEAGUE, ATTACKER)}
    keys = [
        ApiKey(who.identity.subject, hash_of(secret), who.identity.tenant, who.identity.subject)
        for who, secret in people.items()
    ]
    options = ("--num-blocks", num_blocks, "--prefix-scope", scope.value)
    with (
        running(model, options, keys) as site,
        httpx.Client(base_url=site.url, timeout=30) as client,
    ):

        def send(principal: Principal, prompt: Sequence[int]) -> tuple[float, int]:
            body = {"prompt": list(prompt), "max_tokens": 1, "ignore_eos": True}
            headers = {"authorization": f"Bearer {people[principal]}"}
            began_s = time.perf_counter()
            response = client.post("/v1/completions", json=body, headers=headers)
            took_s = time.perf_counter() - began_s
            usage = response.raise_for_status().json()["usage"]
            return round(took_s, 6), usage["prompt_tokens_details"]["cached_tokens"]

        yield send


def random_prompts(rng: random.Random, vocab_size: int, num_tokens: int) -> Iterator[list[int]]:
    """Prompts that share nothing with one another, in the first block or in any."""
    while True:
        yield [rng.randrange(vocab_size) for _ in range(num_tokens)]


def wilson(num_right: int, num: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    share, square = num_right / num, z * z
    middle = (share + square / (2 * num)) / (1 + square / num)
    half = z * (share * (1 - share) / num + square / (4 * num * num)) ** 0.5 / (1 + square / num)
    return middle - half, middle + half


def _own_pair(send: Send, prober: Principal, prompt: list[int]) -> tuple[float, float]:
    """Times to the first token of a prompt of the prober's own, sent first and sent again."""
    return send(prober, prompt)[0], send(prober, prompt)[0]


def _halfway(pairs: Iterable[tuple[float, float]]) -> float:
    first, again = zip(*pairs, strict=True)
    return (percentile(first, 0.5) + percentile(again, 0.5)) / 2


def _judge(case: str, trials: list[Trial]) -> Verdict:
    sent = [trial.ttft_s for trial in trials if trial.was_sent]
    unsent = [trial.ttft_s for trial in trials if not trial.was_sent]
    num_right = sum((trial.ttft_s < trial.threshold_s) == trial.was_sent for trial in trials)
    low, high = wilson(num_right, len(trials))
    faster = sum((a < b) + 0.5 * (a == b) for a in sent for b in unsent)
    cached = [trial.num_cached_tokens > 0 for trial in trials if trial.was_sent]
    return Verdict(
        case,
        len(trials),
        num_right / len(trials),
        low,
        high,
        faster / (len(sent) * len(unsent)),
        percentile((trial.threshold_s for trial in trials), 0.5),
        percentile(sent, 0.5),
        percentile(unsent, 0.5),
        sum(cached) / len(cached),
    )
