"""`minserve loadtest`: load a server, or an engine in this process, and report what is true."""

from __future__ import annotations

import asyncio
import json as jsonlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, Model, out, print_json
from minserve.cli.server_url import KEY, KEY_VARIABLE, URL
from minserve.errors import ConfigError

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@opt.takes_traffic()
def loadtest(
    context: typer.Context,
    asked: opt.Traffic,
    base_url: Annotated[
        str | None,
        typer.Option(
            *URL, help="An OpenAI-compatible server; without it an engine in this process."
        ),
    ] = None,
    model: Model = "",
    backend: Annotated[str, typer.Option(help="openai (completions) or openai-chat.")] = "openai",
    num_warmups: Annotated[
        int, typer.Option(help="Requests sent before, and not counted; 0 is cold.")
    ] = 4,
    goodput: opt.Goodput = None,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Find the highest rate at which --target meet --goodput."),
    ] = False,
    target: Annotated[float, typer.Option(help="Share that must be good, in a sweep.")] = 0.99,
    timeout: Annotated[
        float, typer.Option(help="Seconds from the intended time until a request is given up.")
    ] = 600.0,
    api_key: Annotated[
        str,
        typer.Option(*KEY, envvar=[KEY_VARIABLE, "OPENAI_API_KEY"], help="API key for the server."),
    ] = "",
    tenant_keys: Annotated[
        Path | None,
        typer.Option(help="JSON of tenant name to API key, for traffic of several tenants."),
    ] = None,
    blocks: Annotated[int, typer.Option(help="KV blocks, in process.")] = 2048,
    max_running: Annotated[int, typer.Option(help="Most requests in a step, in process.")] = 16,
    token_budget: Annotated[int, typer.Option(help="Most tokens in a step, in process.")] = 512,
    prefix: Annotated[str, typer.Option(help="Prefix reuse in process: on or off.")] = "on",
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write JSON, requests and a page.")
    ] = False,
    result_dir: Annotated[Path, typer.Option(help="Where to write them.")] = Path(
        "artifacts/loadtest"
    ),
    json: Json = False,
) -> None:
    """Send requests at their own times, and count every latency from when it was meant to start.

    A report begins with whether it is valid: enough samples, a steady state, few failures, and a
    client that kept up. The latency from the actual sending stands beside, as "uncorrected".

    Examples:

    - `minserve loadtest --url http://127.0.0.1:8000 --request-rate 5 --num-prompts 300`

    - `minserve loadtest --url ... --goodput ttft:500 tpot:50 --save-result`

    - `minserve loadtest --model nano --dataset-name northstar --request-rate 20`: in process

    - `minserve loadtest --url ... --max-concurrency 8`: closed loop, eight users

    - `minserve loadtest --url ... --num-prompts 300 --sweep --goodput ttft:500`: how much it bears
    """
    objectives = opt.objectives(goodput, context.args)
    if backend not in ENDPOINTS:
        raise ConfigError(f"backend {backend!r}", "use openai or openai-chat")
    if num_warmups < 0:
        raise ConfigError(f"{num_warmups} warm-ups", "use 0 or more")
    traffic = asked.workload()
    pace = asked.pace(1.0 if sweep else traffic.rate_per_s, timeout)
    how = {"pace": pace, "objectives": objectives, "num_warmups": num_warmups, "keeps": save_result}
    run: Callable[..., Any]
    if base_url is not None:
        from minserve.loadtest.generator import Target

        server = Target(base_url, model, ENDPOINTS[backend], api_key)
        run = partial(_over_http, target=server, keys=_keys(tenant_keys), **how)
    else:
        run = partial(
            _in_process, model=model or "nano", blocks=blocks, max_running=max_running,
            token_budget=token_budget, prefix=prefix, **how,
        )  # fmt: skip
    if sweep:
        found = _sweep(run, traffic, objectives, target, result_dir)
        return print_json(found) if json else None
    report, records = run(traffic)
    show(report)
    if save_result:
        for path in save(report, records, result_dir):
            out().print(f"Wrote {path}")
    if json:
        print_json(report.as_dict())


def _sweep(run, traffic, objectives, target: float, folder: Path) -> dict:
    """The highest rate that is met, each tried with prompts that no rate before has sent."""
    from minserve.cli.capacity import tell_rates
    from minserve.cli.picture import make_folder
    from minserve.loadtest.sweep import capacity, with_enough

    if objectives.is_empty or not 0 < target <= 1:
        raise ConfigError(
            f"a sweep for {objectives} and a share of {target}",
            "say what is good, as --goodput ttft:500 tpot:50, and a --target up to 1",
        )
    make_folder(folder)
    seeds, late_per_s = count(traffic.seed + 1), []

    def serve(rate_per_s: float, num_prompts: int):
        fresh = replace(traffic.at_rate(rate_per_s, num_prompts), seed=next(seeds))
        report, _ = run(fresh)
        if any(f.name == "client keeps up" and not f.is_ok for f in report.verdict):
            late_per_s.append(rate_per_s)
        return report.tally

    enough = with_enough(serve, traffic.num_prompts, target, doublings=2)
    first_per_s = traffic.rate_per_s if math.isfinite(traffic.rate_per_s or math.inf) else 1.0
    say = out().print
    found = tell_rates(capacity(enough, first_per_s, target=target), folder / "sweep.png", say)
    best = found["best_per_s"]
    said = f"It bears {best:.3g} requests/s" if best else "It bears no rate"
    say(f"[bold]{said} with {target:.0%} within {objectives}.[/bold]")
    if late_per_s:
        say(f"From {min(late_per_s):.3g}/s on requests were sent late: that may be our own limit.")
    say("A server's cache is as the rates before left it; each rate sends other prompts.")
    return {"objectives": str(objectives), "target": target} | found


def show(report) -> None:
    """The table and the words below it."""
    say = out().print
    say(report.table())
    for line in report.lines():
        say(line, style="bold" if line.startswith("NOT VALID") else None)
    say("; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in report.conditions.items()) + ".")


def save(report, records, folder: Path) -> list[Path]:
    """Write result.json, requests.jsonl and report.html. Raises `ConfigError`."""
    from minserve.cli.picture import make_folder
    from minserve.loadtest.report import as_json_line

    make_folder(folder)
    lines = "".join(as_json_line(record.as_dict()) + "\n" for record in records)
    files = {
        "result.json": as_json_line(report.as_dict()) + "\n",
        "requests.jsonl": lines,
        "report.html": report.html(),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _keys(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        keys = jsonlib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}", "give JSON of tenant to key") from None
    return {str(tenant): str(key) for tenant, key in keys.items()}


def _over_http(traffic, *, target, pace, objectives, num_warmups, keeps, keys):
    from minserve.cli import machine
    from minserve.cli.live import Watch
    from minserve.loadtest import datasets
    from minserve.loadtest.generator import look_up, send_over_http
    from minserve.loadtest.measures import Tally
    from minserve.loadtest.record import ERROR
    from minserve.loadtest.report import Report, judge

    server = asyncio.run(look_up(target))
    if not target.model:
        if not server["models"]:
            raise ConfigError("the server lists no model", "name one with --model")
        target = replace(target, model=server["models"][0])
    is_chat = target.endpoint.endswith("chat/completions")
    encode = _tokenizer(target.model) if traffic.dataset in ("northstar", "sharegpt") else None

    def calls(workload):
        for call in workload.calls(encode):
            if is_chat:
                call = replace(call, sample=next(datasets.words([call.sample])))
            yield call

    warm = replace(traffic, num_prompts=max(1, num_warmups), seed=traffic.seed + 1_000_003)
    if num_warmups:  # one after the other, which also shows whether the server understands us
        found: list = []
        ask = [replace(call, at_s=0.0) for call in calls(warm)]
        one_by_one = replace(pace, max_concurrency=1, is_closed=True)
        asyncio.run(send_over_http(ask, target, found.append, one_by_one, api_keys=keys))
        if all(record.outcome == ERROR for record in found):
            if "continuous_usage_stats" not in found[0].error:
                raise ConfigError(f"the server answers: {found[0].error}", "try one with curl")
            target = replace(target, chunk_usage=False)
    use = machine.CpuUse()
    label = f"{target.base_url}, {traffic.dataset}"
    with Watch(traffic.num_prompts, label, Tally(objectives), keeps) as watch:
        asyncio.run(send_over_http(calls(traffic), target, watch.add, pace, api_keys=keys))
    conditions = {
        "server": target.base_url,
        "model": target.model,
        "precision": server["precision"].get(target.model) or "the server does not tell",
        "endpoint": target.endpoint,
        "loop": _loop(pace),
        "warm": f"{num_warmups} requests of other seeds before" if num_warmups else "cold start",
        "prefix cache": "whatever the server kept: repeat with another --seed to compare",
        "hardware": "of the sender" if _is_elsewhere(target.base_url) else "of both",
        **machine.describe(),
    }
    measures = watch.tally.measures()
    if not measures.num_requests:
        raise ConfigError("nothing was sent", "give traffic with at least one request")
    others = use.others_share() if _is_elsewhere(target.base_url) else None
    found = judge(watch.tally, measures, is_open=not pace.is_closed, others_share=others)
    title = f"{target.model} at {target.base_url}: {traffic.num_prompts:,} x {traffic.dataset}"
    return Report(title, watch.tally, traffic.describe(), conditions, found), watch.records


def _loop(pace) -> str:
    if pace.is_closed:
        return f"closed, {pace.max_concurrency} users: a slow server is asked less"
    held = f", at most {pace.max_concurrency} in flight" if pace.max_concurrency else ""
    return f"open{held}"


def _is_elsewhere(base_url: str) -> bool:
    """A server on this machine is an 'other program' too: its CPU use is no disturbance."""
    return not any(name in base_url for name in ("127.0.0.1", "localhost", "[::1]"))


def _tokenizer(model: str):
    from minserve.models.registry import resolve
    from minserve.models.tokenizer import Tokenizer

    tokenizer = Tokenizer(resolve(model))
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _in_process(
    traffic, *, model, pace, objectives, num_warmups, keeps,
    blocks, max_running, token_budget, prefix,
):  # fmt: skip
    from minserve.cli import choices, machine
    from minserve.cli.live import Watch
    from minserve.client import LocalClient
    from minserve.clock import EventLoop, WallClock
    from minserve.engine import Engine
    from minserve.events import EventLog
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.loadtest.generator import send_in_process
    from minserve.loadtest.measures import Tally
    from minserve.loadtest.report import Report, judge

    if prefix not in ("on", "off"):
        raise ConfigError(f"prefix is {prefix!r}", "use on or off")
    executor = TorchExecutor(model, num_blocks=blocks)
    limit = min(executor.max_model_len, traffic.max_total_tokens or executor.max_model_len)
    traffic = replace(traffic, max_total_tokens=limit)
    vocab = executor.config.vocab_size

    def encode(text: str) -> list[int]:
        return executor.tokenizer.encode(text, add_special_tokens=False)

    def run(workload, on_record, paced) -> None:
        engine = Engine(
            executor,
            choices.make_policy("continuous", max_running, token_budget),
            prefix_caching=prefix == "on",
            log=EventLog(keep=False),
        )
        calls = list(workload.calls(encode, vocab))  # made before the clock starts
        loop = EventLoop(WallClock())
        send_in_process(calls, LocalClient(engine, loop), loop, on_record, paced, encode)

    if num_warmups:
        warm = replace(traffic, num_prompts=num_warmups, seed=traffic.seed + 1_000_003)
        warm = replace(warm, rate_per_s=float("inf"), arrivals="gamma")
        run(warm, lambda record: None, replace(pace, max_concurrency=None, is_closed=False))
    use = machine.CpuUse()
    label = f"{model}, {traffic.dataset}"
    with Watch(traffic.num_prompts, label, Tally(objectives), keeps) as watch:
        run(traffic, watch.add, pace)
    conditions = {
        "engine": "in process: a step in progress delays who arrives meanwhile",
        "model": model,
        "precision": executor.dtype,
        "loop": _loop(pace),
        "warm": f"{num_warmups} requests before; prefix cache {prefix} and empty at the start",
        "KV": f"{blocks:,} blocks of {executor.block_size} tokens",
        "steps": f"at most {max_running} requests and {token_budget} tokens",
        **machine.describe(),
    }
    found = judge(
        watch.tally,
        watch.tally.measures(),
        is_open=not pace.is_closed,
        is_simulated=True,  # nothing is sent anywhere
        others_share=use.others_share(),
    )
    title = f"{model} in process: {traffic.num_prompts:,} x {traffic.dataset}"
    return Report(title, watch.tally, traffic.describe(), conditions, found), watch.records
