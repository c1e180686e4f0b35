"""Lesson 4's experiments on who shares a prefix, and whom time tells of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments.common import BIG_MODEL, ttft_s
from minserve.learn.experiments.lesson4 import BLOCK, ask, tokens
from minserve.learn.prefix import Caller
from minserve.request import Request

# -- who shares


def neighbours(salt: Callable[[bytes, Caller, str], str], scope: str) -> list[Request]:
    """Questions of 24 people of 4 tenants through 2 applications, salted by `scope`.

    A prompt has 320 tokens of the application, 320 of its tenant's policy, 160 of the person's
    own record, and a question.
    """
    rng, requests = random.Random(4), []
    for number in range(150):
        person = rng.randrange(24)
        tenant, application = f"tenant {person % 4}", f"application {person % 2}"
        who = Caller(tenant, f"person {person}", application)
        requests.append(
            ask(
                f"q{number:03}",
                tokens(application, 320),
                tokens(f"policy of {tenant}", 320),
                tokens(f"record of {who.user}", 160),
                tokens(f"question {number}", 40),
                at_s=0.2 * number,
                answer=20,
                salt=salt(SECRET, who, scope),
            )
        )
    return requests


SECRET = b"drawn by the server at its start"
"""Fixed here, so that a lesson says the same each time."""


# -- the side channel

VICTIM = Caller("acme", "vera")
ATTACKER = Caller("rival", "mallory")


@dataclass(frozen=True, slots=True)
class Probe:
    """What an attacker saw: times to first token, in ms, of prompts that the victim had sent or
    not, the limit it guessed by, and the share of its guesses that were right.
    """

    sent_ms: list[float]
    unsent_ms: list[float]
    limit_ms: float

    @property
    def accuracy(self) -> float:
        """0.5 is what a coin gets."""
        right = sum(time < self.limit_ms for time in self.sent_ms)
        right += sum(time >= self.limit_ms for time in self.unsent_ms)
        return right / (len(self.sent_ms) + len(self.unsent_ms))


def probe(
    salt: Callable[[bytes, Caller, str], str],
    scope: str,
    attacker: Caller = ATTACKER,
    num_trials: int = 200,
    num_tokens: int = 600,
) -> Probe:
    """Of each two prompts the victim sends one; the attacker sends both, and looks at the clock.

    Other people's requests come at the same moment, which blurs the times. The attacker learns its
    limit from prompts of its own, sent twice.
    """
    engine = Engine(SimulatedExecutor(16_384, BLOCK, cost=BIG_MODEL))
    clock = VirtualClock()
    client, rng = LocalClient(engine, EventLoop(clock)), random.Random(4)
    names = iter(range(10**6))

    def send(who: Caller, prompt: list[int]) -> float:
        now_s = clock.now_s() + 1.0
        for _ in range(rng.randrange(4)):
            other = tokens(f"noise {next(names)}", rng.randrange(20, 200))
            client.send(ask(f"n{next(names)}", other, answer=1, at_s=now_s))
        request = ask(f"p{next(names)}", prompt, answer=1, at_s=now_s)
        request.cache_salt = salt(SECRET, who, scope)
        client.send(request)
        client.run()
        return ttft_s(request) * 1000

    own = [tokens(f"own {n}", num_tokens) for n in range(20)]
    cold, warm = ([send(attacker, prompt) for prompt in own] for _ in range(2))
    sent, unsent = [], []
    for trial in range(num_trials // 2):
        secret = tokens(f"secret {trial}", num_tokens)
        send(VICTIM, secret)
        sent.append(send(attacker, secret))
        unsent.append(send(attacker, tokens(f"guess {trial}", num_tokens)))
    return Probe(sent, unsent, (median(cold) + median(warm)) / 2)
