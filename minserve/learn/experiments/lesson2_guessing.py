"""Lesson 2's stretch: tokens that are guessed, and what a step that checks them is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.execution.executor import Row
from minserve.execution.simulated import SimulatedExecutor, repeatable_token
from minserve.execution.speculative import NgramProposer, SimulatedProposer, Speculation
from minserve.learn.experiments.common import BIG_MODEL, words
from minserve.request import Request, SamplingParams
from minserve.scheduling.batching import ContinuousBatching

if TYPE_CHECKING:
    from minserve.execution.torch_executor import TorchExecutor

QUOTED_HEADING = ("guesses", "engine steps", "tokens", "guessed", "of them right")
CROWD_HEADING = ("people at once", "no guesses (ms)", "always (ms)", "while it pays (ms)")


def quoting(executor: TorchExecutor, count: int = 4) -> list[Request]:
    """Reports: Northstar's longest answers, each sentence of which is a line of the prompt."""
    from minserve.northstar.corpus import load_corpus
    from minserve.northstar.questions import load_questions, prompt_of

    reports = [question for question in load_questions() if question.kind == "report"][:count]
    return [
        Request(
            question.id,
            tuple(
                executor.tokenizer.encode(
                    prompt_of(question, load_corpus()), add_special_tokens=False
                )
            ),
            SamplingParams(max_tokens=160),
        )
        for question in reports
    ]


def one_by_one(
    executor: TorchExecutor, requests: Sequence[Request], guesses: bool
) -> tuple[tuple[str, ...], list[list[int]]]:
    """Serve `requests` one after another; cells under `QUOTED_HEADING`, and the tokens."""
    speculation = Speculation(NgramProposer(), token_cost=0.0) if guesses else None
    steps, tokens = 0, []
    for request in requests:
        request = replace(request, output_token_ids=[], block_table=[], block_hashes=[])
        engine = Engine(executor, prefix_caching=False, speculator=speculation)
        engine.submit(request, 0.0)
        while engine.step(0.0):
            steps += 1
            engine.check_integrity()
        tokens.append(request.output_token_ids)
    total = sum(map(len, tokens))
    told = ("-", "-")
    if speculation:
        told = f"{speculation.num_proposed}", f"{speculation.acceptance or 0:.0%}"
    name = "looked up in the text so far" if guesses else "none"
    return (name, f"{steps}", f"{total}", *told), tokens


def crowd(people: int, acceptance: float) -> tuple[str, ...]:
    """Cells under `CROWD_HEADING`: the mean gap between one's tokens, on the virtual clock.

    Each guess is right with probability `acceptance`; four are made for each token.
    """
    token_cost = BIG_MODEL.per_token_s / (BIG_MODEL.per_step_s + BIG_MODEL.per_token_s)
    ways = (
        None,
        Speculation(SimulatedProposer(_token, acceptance), token_cost=0.0),
        Speculation(SimulatedProposer(_token, acceptance), token_cost=token_cost),
    )
    return (f"{people}", *(f"{1000 * _gap_s(people, way):.1f}" for way in ways))


def _token(request_id: str, position: int) -> int:
    """What the simulated model says."""
    return repeatable_token(Row(request_id, (), 0, (), True, position, SamplingParams()))


def _gap_s(people: int, speculation: Speculation | None) -> float:
    policy = ContinuousBatching(token_budget=8192, max_running=1024)
    executor = SimulatedExecutor(16_384, 16, cost=BIG_MODEL)
    engine = Engine(executor, policy, prefix_caching=False, speculator=speculation)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    requests = [words(f"p{n}", 40, 100) for n in range(people)]
    for request in requests:
        client.send(request)
    client.run()
    engine.check_integrity()
    found = [request.timeline.tpot_s or 0.0 for request in requests]
    return sum(found) / len(found)
