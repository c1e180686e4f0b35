"""`minserve bench routing`: what hedging cuts off the tail, and what load it adds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, Model, out, print_json

BURST_EVERY = 40
BURST_SIZE = 8


def routing(
    model: Model = "nano",
    requests: Annotated[int, typer.Option(help="Requests that may be hedged, in each run.")] = 200,
    simulated: Annotated[
        int, typer.Option(help="The same on the simulator; 0 leaves it out.")
    ] = 2000,
    share: Annotated[float, typer.Option(help="Copies, at most, of all requests.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    json: Json = False,
) -> None:
    """Send requests to one of two replicas, with and without hedging to the other.

    Now and then a burst of long work hits the first replica, which a request behind it feels.
    Both replicas are real engines with the model's weights, on one event loop; then simulated ones.

    Example: `minserve bench routing`
    """
    from minserve.clock import VirtualClock, WallClock

    report: dict[str, Any] = {"share": share}
    if simulated:
        report["simulator"] = _both(_simulated, VirtualClock, simulated, share, seed)
    if requests:
        executors = _real(model)
        _run(executors, WallClock(), 20, share, seed, False)  # warm
        report[model] = _both(lambda: executors, WallClock, requests, share, seed)
    say = out().print
    for name, runs in report.items():
        if name == "share":
            continue
        for how, run in runs.items():
            say(
                f"{name}, {how}: TTFT p50 {run['p50_s'] * 1000:.1f} ms, p95 "
                f"{run['p95_s'] * 1000:.1f} ms, p99 {run['p99_s'] * 1000:.1f} ms; "
                f"{run['copies']} copies of {run['requests']} ({run['copies_first']} were first)."
            )
    if json:
        print_json(report)


def _both(make: Callable, clock: Callable, count: int, share: float, seed: int) -> dict[str, Any]:
    return {
        name: _run(make(), clock(), count, share, seed, hedged)
        for name, hedged in (("not hedged", False), ("hedged", True))
    }


def _simulated():
    from minserve.execution.simulated import SimulatedExecutor

    return SimulatedExecutor(2048), SimulatedExecutor(2048)


def _real(model: str):
    from minserve.execution.torch_executor import TorchExecutor

    return TorchExecutor(model, num_blocks=512), TorchExecutor(model, num_blocks=512)


def _run(executors, clock, count: int, share: float, seed: int, hedged: bool) -> dict[str, Any]:
    from minserve.client import LocalClient
    from minserve.clock import EventLoop
    from minserve.engine import Engine
    from minserve.events import TokensProduced
    from minserve.metrics import percentile
    from minserve.request import Request, SamplingParams
    from minserve.routing.hedging import Hedging
    from minserve.scheduling.batching import ContinuousBatching

    loop, rng = EventLoop(clock), random.Random(f"hedging/{seed}")
    first, second = (
        LocalClient(Engine(each, ContinuousBatching(), prefix_caching=False), loop)
        for each in executors
    )
    client = Hedging(first, second, loop, share=share, is_overloaded=lambda: not hedged)
    ttft_s: list[float] = []

    def send(id: str, to, num_prompt: int, num_output: int, at_s: float, listener) -> None:
        prompt = tuple(rng.randrange(5, 200) for _ in range(num_prompt))
        sampling = SamplingParams(max_tokens=num_output, ignore_eos=True)
        to.send(Request(id, prompt, sampling, arrival_s=at_s), listener)

    at_s = 0.05
    for number in range(count):
        at_s += rng.expovariate(1 / 0.06)
        heard: list[float] = []

        def listen(event, at_s=at_s, heard=heard) -> None:
            if isinstance(event, TokensProduced) and not heard:
                heard.append(event.time_s)
                ttft_s.append(event.time_s - at_s)

        send(f"r{number}", client, 48, 4, at_s, listen)
        if number % BURST_EVERY == BURST_EVERY - 1:
            for extra in range(BURST_SIZE):
                send(f"b{number}.{extra}", first, 400, 1, at_s, lambda event: None)
    loop.run()
    return {
        "requests": client.num_requests,
        "copies": client.num_hedges,
        "copies_first": client.num_won,
        "added_load": client.num_hedges / client.num_requests,
        **{f"p{q}_s": percentile(ttft_s, q / 100) for q in (50, 95, 99)},
    }
