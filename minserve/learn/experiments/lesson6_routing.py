"""Lesson 6's experiments on more than one engine: hedging, a cascade, and autoscaling."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.events import Event, EventLog, TokensProduced
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.learn.experiments.common import BIG_MODEL, quantile, words
from minserve.learn.experiments.lesson6 import BIG, REAL
from minserve.loadtest import datasets
from minserve.loadtest.arrivals import poisson, waves
from minserve.loadtest.capacity import OnBacklog, OnUtilisation
from minserve.loadtest.measures import Objectives
from minserve.request import Request, SamplingParams
from minserve.routing.cascade import Cascade, Route, Routed
from minserve.routing.hedging import Hedging
from minserve.simulator.fleet import Setup
from minserve.simulator.runs import autoscaled

# -- hedging


@dataclass(frozen=True, slots=True)
class Hiccups(CostModel):
    """A machine that now and then stops: one step in `every` takes `stall_s` more, by chance."""

    every: int = 400
    stall_s: float = 1.5
    rng: random.Random = field(default_factory=lambda: random.Random(6))

    def seconds(self, rows: Any) -> float:
        stall_s = self.stall_s if self.rng.randrange(self.every) == 0 else 0.0
        return CostModel.seconds(self, rows) + stall_s


def hedged(rate_per_s: float, share: float) -> tuple[str, ...]:
    """Requests spread over two such machines; a copy goes to the other when one is late.

    Copies are at most `share` of all. Cells under `HEDGED_HEADING`.
    """
    loop = EventLoop(VirtualClock())
    costs = {name: getattr(BIG_MODEL, name) for name in CostModel.__dataclass_fields__}
    machines = [
        LocalClient(
            Engine(
                SimulatedExecutor(4096, 16, cost=Hiccups(**costs, rng=random.Random(seed))),
                prefix_caching=False,
                log=EventLog(keep=False),
            ),
            loop,
        )
        for seed in (1, 2)
    ]
    one, other = machines
    clients = [Hedging(*pair, loop, share=share) for pair in ((one, other), (other, one))]
    rng, waits = random.Random(6), []
    for number, at_s in zip(range(600), poisson(rate_per_s, rng), strict=False):
        heard: list[float] = []

        def listen(event: Event, at_s: float = at_s, heard: list[float] = heard) -> None:
            if isinstance(event, TokensProduced) and not heard:
                heard.append(event.time_s)
                waits.append(event.time_s - at_s)

        clients[number % 2].send(words(f"h{number}", 200, 10, at_s), listen)
    loop.run()
    return (
        f"{quantile(waits, 0.5):.2f}",
        f"{quantile(waits, 0.99):.2f}",
        str(sum(client.num_hedges for client in clients)),
    )


HEDGED_HEADING = ("load", "copies, at most", "TTFT p50 (s)", "TTFT p99 (s)", "copies sent")


# -- autoscaling


LIGHT = replace(REAL, scale=0.25)
PROMISE = Objectives(ttft_s=1.0)
WAVE_S = 60.0
EVERY_S = 5.0
"""How often the number of replicas is decided."""


def signals_at(rate_per_s: float) -> tuple[str, ...]:
    """What one replica shows after 30 s of such a load. Cells under `SIGNALS_HEADING`."""
    seen: list[Any] = []

    def watch(signals: Any) -> int:
        seen.append(signals)
        return 1

    given = LIGHT.at_rate(rate_per_s, int(30 * rate_per_s)).calls()
    autoscaled("", Setup(BIG, prefix_caching=False), given, watch, PROMISE, every_s=EVERY_S)
    last = [each for each in seen if each.now_s <= 30.0][-1]
    return (
        f"{rate_per_s:g}",
        f"{last.utilisation:.0%}",
        f"{last.queued_tokens:,}",
        f"{last.oldest_wait_s:.1f}",
        str(last.num_running),
        f"{last.kv_pressure:.0%}",
    )


SIGNALS_HEADING = (
    "requests/s",
    "utilisation",
    "queued tokens",
    "oldest waits (s)",
    "active",
    "KV in use",
)


def scaling(is_wave: bool, rule: Any, start: int = 1, load_s: float = 10.0) -> tuple[str, ...]:
    """A rule over one wave of load, or over a minute that one replica can bear.

    A replica that is asked for loads for `load_s` first. Cells under `SCALING_HEADING`.
    """
    low, high = (4.0, 30.0) if is_wave else (9.9, 10.0)
    samples = (call.sample for call in replace(LIGHT, num_prompts=4000).at_rate(1.0).calls())
    times_s = waves(low, high, WAVE_S, random.Random(6))
    given = takewhile(lambda call: call.at_s < WAVE_S, datasets.calls(times_s, samples))
    setup = Setup(replace(BIG, load_s=load_s), prefix_caching=False, num_replicas=start)
    found = autoscaled("", setup, given, rule, PROMISE, every_s=EVERY_S, most=6)
    return (
        f"{found.attainment:.1%}",
        f"{found.ttft_p99_s:.2f}",
        str(found.most_replicas),
        f"{found.replica_hours * 60:.1f}",
    )


def on_backlog() -> OnBacklog:
    """Queued tokens, their age, active requests and KV pressure."""
    return OnBacklog(tokens_per_s=4000.0, drain_s=0.5, max_running=48)


def kept_warm(count: int) -> Callable[[Any], int]:
    """As `on_backlog`, but never fewer than `count`."""
    rule = on_backlog()
    return lambda signals: max(count, rule(signals))


def on_utilisation() -> OnUtilisation:
    """The share of time in which a replica computes."""
    return OnUtilisation()


SCALING_HEADING = (
    "load",
    "scaled by",
    "first token within 1 s",
    "TTFT p99 (s)",
    "most replicas",
    "replica-minutes",
)


# -- a cascade: the short prompt first, the whole one where its answer does not pass

SLICES = ("account", "policy", "chat")
"""Kinds of Northstar's questions; one of chat can only be understood with what was said before."""


def grounded(task: Any, text: str) -> bool:
    """Every word and figure of the answer stands in one line of the question's evidence."""
    from minserve.northstar.corpus import load_corpus

    said = set(re.findall(r"[\w.,:-]*\w", text.lower()))
    lines = load_corpus().lines(task.evidence)
    return bool(said) and any(
        said <= set(re.findall(r"[\w.,:-]*\w", line.lower())) for line in lines
    )


@dataclass(frozen=True, slots=True)
class CascadeRun:
    """Of each slice: how many were asked, answered by the first route, and right; all tokens."""

    by_slice: dict[str, tuple[int, int, int]]
    num_tokens: int


def cascade(
    executor: Any, names: Sequence[str] = ("cheap", "whole"), per_slice: int = 6
) -> CascadeRun:
    """Northstar's questions by these routes, each to the next where its answer is not grounded.

    Both are nano: `cheap` without system prompt and history, `whole` with them.
    """
    from minserve.northstar.corpus import load_corpus
    from minserve.northstar.prompts import render_prompt
    from minserve.northstar.questions import is_correct, load_questions, prompt_of

    corpus, spent = load_corpus(), [0]

    def cheap(question: Any) -> str:
        lines = corpus.lines(question.evidence)
        return render_prompt("", lines, question.text)

    def whole(question: Any) -> str:
        return prompt_of(question, corpus)

    loop = EventLoop(VirtualClock())
    client = LocalClient(Engine(executor, prefix_caching=False), loop)

    def route(name: str, render: Callable[[Any], str]) -> Route:
        def request_of(task: Any, id: str) -> Request:
            prompt = tuple(executor.tokenizer.encode(render(task)))
            spent[0] += len(prompt)
            return Request(id, prompt, SamplingParams(max_tokens=24))

        def decode(tokens: Sequence[int]) -> str:
            return executor.tokenizer.decode(list(tokens)).replace("<|end|>", "")

        return Route(name, client, request_of, decode)

    renders = {"cheap": cheap, "whole": whole}
    routes = [route(name, renders[name]) for name in names]
    questions = load_questions()
    asked = [q for kind in SLICES for q in [q for q in questions if q.kind == kind][:per_slice]]
    ended: dict[str, Routed] = {}
    runner = Cascade(routes, grounded)
    for question in asked:
        runner.ask(question.id, question, lambda routed: ended.__setitem__(routed.task_id, routed))
    loop.run()
    found = {}
    for kind in SLICES:
        mine = [(q, ended[q.id]) for q in asked if q.kind == kind]
        by_first = sum(
            routed.answer is not None and len(routed.attempts) == 1 for _, routed in mine
        )
        right = sum(
            routed.answer is not None and is_correct(q, routed.answer, corpus.version)
            for q, routed in mine
        )
        found[kind] = (len(mine), by_first, right)
    return CascadeRun(found, spent[0])
