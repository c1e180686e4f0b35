"""`minserve simulate`: the same traffic and scheduler on a virtual clock, at any size.

Without `--dataset-name` it compares policies on Northstar's traffic, as `replay` does; with it,
one fleet serves any traffic and is reported as `loadtest` reports a real one.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from minserve.cli import workload as opt
from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError

FLEET = "Fleet"


@opt.takes_traffic("ignore_eos", dataset_name="", request_rate="1")
def simulate(
    context: typer.Context,
    asked: opt.Traffic,
    requests: Annotated[int, typer.Option(help="Requests of the timing set.")] = 1000,
    policies: opt.Policies = "static,dynamic,continuous",
    prefix: opt.Prefix = "on",
    ordering: opt.OrderingName = "fifo",
    blocks: Annotated[int, typer.Option(help="KV blocks in the pool.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per block.")] = 16,
    max_running: opt.MaxRunning = 16,
    batch_size: opt.BatchSize = None,
    token_budget: Annotated[
        int, typer.Option(help="Most tokens that a step of continuous batching computes.")
    ] = 512,
    load: opt.Load = 0.9,
    rate: Annotated[float | None, typer.Option(help="Arrivals per second instead.")] = None,
    step_ms: Annotated[float, typer.Option(help="Fixed cost of a step, milliseconds.")] = 2.0,
    token_us: Annotated[float, typer.Option(help="Cost of each computed token, us.")] = 40.0,
    row_us: Annotated[float, typer.Option(help="Cost of each request in a step, us.")] = 50.0,
    context_us: Annotated[float, typer.Option(help="Cost of each token attended to, us.")] = 0.02,
    profile: Annotated[
        str | None,
        typer.Option(help="A named machine: nano, h100-llama-3.1-8b.", rich_help_panel=FLEET),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model calibrated on this machine.", rich_help_panel=FLEET),
    ] = None,
    replicas: Annotated[int, typer.Option(help="Engines.", rich_help_panel=FLEET)] = 1,
    router: Annotated[
        str, typer.Option(help="least-loaded, prefix or cached-prefix.", rich_help_panel=FLEET)
    ] = "least-loaded",
    admission: Annotated[
        bool,
        typer.Option("--admission", help="Turn away what cannot be met.", rich_help_panel=FLEET),
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Percentiles from histograms: memory does not grow with the requests.",
            rich_help_panel=FLEET,
        ),
    ] = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Run it on the real --model too, and compare.", rich_help_panel=FLEET
        ),
    ] = False,
    goodput: opt.Goodput = None,
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write JSON, requests and a page.")
    ] = False,
    result_dir: Annotated[Path, typer.Option(help="Where to write them.")] = Path(
        "artifacts/simulation"
    ),
    json: Json = False,
) -> None:
    """Replay Northstar traffic on a simulated executor, several times faster than real time.

    The scheduler, the policies and the traffic are the real ones; only the duration of a step comes
    from a cost model instead of a computation. The result is the same on every machine. The costs
    are round figures, not calibrated to yours: compare policies with it, do not forecast.

    Examples:

    - `minserve simulate --requests 2000`

    - `minserve simulate --ordering deadline --load 1.2 --policies continuous`

    - `minserve simulate --blocks 256 --prefix both`: what a small pool does

    - `minserve simulate --dataset-name azure --num-prompts 2000 --request-rate 20 --replicas 2
      --profile h100-llama-3.1-8b`: any traffic, on a machine you do not have

    - `minserve simulate --validate --model nano`: how far it is from the real engine
    """
    from minserve.cli import choices, replay_rows
    from minserve.cli.loadtest import save, show
    from minserve.clock import VirtualClock
    from minserve.execution.simulated import CostModel, SimulatedExecutor
    from minserve.northstar.traffic import at_rate, make_traffic
    from minserve.simulator.fleet import Setup

    objectives = opt.objectives(goodput, context.args)
    names = choices.choose("policy", policies, choices.POLICIES)
    if prefix not in replay_rows.PREFIX:
        raise ConfigError(f"prefix is {prefix!r}", "use on, off or both")
    if ordering not in choices.ORDERINGS:
        raise ConfigError(f"ordering {ordering!r}", f"use {', '.join(choices.ORDERINGS)}")
    if min(step_ms, token_us, row_us, context_us) < 0 or step_ms + token_us + row_us <= 0:
        raise ConfigError("a step must cost some time", "use costs of 0 or more, not all 0")
    if not 0 < load < 1000:
        raise ConfigError(f"a load of {load}", "1 is what can just be served; use more than 0")
    if rate is not None and rate <= 0:
        raise ConfigError(f"a rate of {rate} per second", "use more than 0")
    if asked.dataset_name or asked.dataset_path or validate:
        if not asked.dataset_name:
            asked = replace(asked, dataset_name="northstar" if validate else "random")
        traffic = asked.workload()
        if validate:
            return _validate(
                model or "nano", traffic, max_running, token_budget, blocks, load, json
            )
        name = names[0] if len(names) == 1 else "continuous"
        costs = CostModel(step_ms / 1e3, token_us / 1e6, row_us / 1e6, context_us / 1e6)
        setup = Setup(
            profile_of(profile, model, costs, blocks, block_size),
            lambda: choices.make_policy(name, batch_size or max_running, token_budget),
            choices.ORDERINGS[ordering],
            prefix != "off",
            admission,
            replicas,
            router,
        )
        paced = asked.pace(traffic.rate_per_s)
        report, records = simulated(
            setup, traffic, paced, objectives, name, exact=not stream, keeps=save_result
        )
        show(report)
        if save_result:
            for path in save(report, records, result_dir):
                out().print(f"Wrote {path}")
        if json:
            print_json(report.as_dict())
        return
    static_sizes = choices.sizes_up_to(max_running, batch_size)
    began_s = time.perf_counter()
    cost = CostModel(step_ms / 1e3, token_us / 1e6, row_us / 1e6, context_us / 1e6)
    traffic = make_traffic(
        "timing", requests, encoder(), rate_per_s=1.0, seed=asked.seed, max_total_tokens=2048
    )

    def run(arrivals, name: str, size: int | None, on: bool):
        return replay_rows.serve(
            arrivals,
            SimulatedExecutor(blocks, block_size, cost=cost),
            VirtualClock(),
            choices.make_policy(name, size or max_running, token_budget),
            prefix=on,
            ordering=ordering,
        )

    if rate is None:
        on = replay_rows.PREFIX[prefix][-1]
        at_once = run(at_rate(traffic, 1.0, 1e6), "continuous", None, on).summarise()
        if not at_once.requests_per_s:
            raise ConfigError("no request fits", "give --blocks more")
        rate = load * at_once.requests_per_s
    arrivals = at_rate(traffic, 1.0, rate)
    rows = []
    for on in replay_rows.PREFIX[prefix]:
        best = batch_size
        for name in names:
            sizes = [None] if name == "continuous" else [best] if best else static_sizes
            tried = []
            for size in sizes:
                replay = run(arrivals, name, size, on)
                kinds = replay.summarise_by_kind()
                tried.append(replay_rows.Row(name, size, on, replay.summarise(), kinds))
            rows.append(max(tried, key=lambda row: row.timing.tokens_per_s or 0.0))
            best = rows[-1].batch_size or best
    took_s = time.perf_counter() - began_s
    simulated_s = sum(row.timing.duration_s for row in rows)
    report = {
        "settings": {
            "requests": requests,
            "rate_per_s": rate,
            "ordering": ordering,
            "kv_blocks": blocks,
            "block_size": block_size,
            "token_budget": token_budget,
            "max_running": max_running,
            "seed": asked.seed,
            "cost_model": {
                "step_ms": step_ms,
                "token_us": token_us,
                "row_us": row_us,
                "context_us": context_us,
            },
            "clock": "virtual",
            "warm": "prefix cache cold at the start of each run",
        },
        "rows": [row.as_dict() for row in rows],
        "comparison": replay_rows.compare(rows),
    }
    say = out().print
    say(
        replay_rows.table(
            rows, f"Simulated: {requests:,} requests at {rate:.1f}/s, {blocks:,} blocks"
        )
    )
    say(
        f"Virtual clock, order {ordering}, seed {asked.seed}; {simulated_s:,.0f} s of the runs "
        f"shown took {took_s:.1f} s. Costs are stated, not measured; answers are not computed."
    )
    for comparison in report["comparison"]:
        say(f"{replay_rows.say_comparison(comparison)}.")
    if trouble := replay_rows.troubles(rows):
        say(f"[bold]Not all went well:[/bold] {trouble}.")
    if json:
        print_json(report)


def simulated(setup, traffic, pace, objectives, policy: str, *, exact=True, keeps=False):
    """A `Report` of one simulated run, and its records, where it `keeps` them."""
    from minserve.cli.live import Watch
    from minserve.clock import EventLoop, VirtualClock
    from minserve.loadtest.generator import send_in_process
    from minserve.loadtest.measures import Tally
    from minserve.loadtest.report import Report, judge

    tally, loop = Tally(objectives, exact), EventLoop(VirtualClock())
    fleet = setup.fleet(loop)
    encode = encoder() if traffic.dataset in ("northstar", "sharegpt") else None
    began_s = time.perf_counter()
    with Watch(traffic.num_prompts, f"simulating {traffic.dataset}", tally, keeps) as watch:
        send_in_process(traffic.calls(encode), fleet, loop, watch.add, pace, encode)
    took_s = time.perf_counter() - began_s
    profile = setup.profile
    conditions = {
        "clock": f"virtual: {loop.clock.now_s():,.0f} s took {took_s:.1f} s",
        "profile": f"{profile.name}, {profile.source}",
        "replicas": f"{setup.num_replicas}, {setup.router}",
        "policy": policy + (", behind admission" if setup.has_admission else ""),
        "prefix cache": "on, empty at the start" if setup.prefix_caching else "off",
        "KV": f"{profile.num_blocks:,} blocks of {profile.block_size} tokens each",
        "answers": "not computed: tokens are made up",
        "percentiles": "exact" if exact else "from histograms with buckets of 1 %",
    }
    found = judge(tally, tally.measures(), is_open=not pace.is_closed, is_simulated=True)
    title = f"Simulated: {setup.num_replicas} x {profile.name}, {traffic.dataset}"
    cost = {"cost_model": asdict(profile.cost), "simulated_in_s": took_s}
    report = Report(title, tally, traffic.describe(), conditions, found, cost)
    return report, watch.records


def profile_of(
    name: str | None, model: str | None, costs=None, blocks: int = 2048, block_size: int = 16
):
    """The named machine, the calibrated one, or the stated costs."""
    from minserve.simulator.profile import PROFILES, Profile

    if name is not None and model is not None:
        raise ConfigError("a profile and a model", "give one of them")
    if name is not None:
        if name not in PROFILES:
            raise ConfigError(f"profile {name!r}", f"use {', '.join(PROFILES)}, or --model")
        found = PROFILES[name]
        ratio = block_size / found.block_size  # the same memory in other blocks
        return found.resized(int(found.num_blocks / ratio), block_size)
    if model is not None:
        found = _calibration(model)
        return Profile(
            found.model, found.fit.cost, found.num_blocks, found.block_size, found.max_model_len,
            found.load_s, f"calibrated here, median step off by {found.fit.median_error:.1%}",
        )  # fmt: skip
    return Profile("stated costs", costs, blocks, block_size, source="stated, not measured")


def _calibration(model: str, dtype: str = "float32"):
    from minserve.cli import machine
    from minserve.execution.calibration import load
    from minserve.execution.torch_executor import fingerprint
    from minserve.models.registry import resolve

    return load(fingerprint(resolve(model), dtype), machine.describe())


def _validate(
    model: str, traffic, max_running: int, token_budget: int, blocks: int, load: float, json: bool
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.cli import machine
    from minserve.cli.live import stage
    from minserve.cli.validate import run_real, validate
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.loadtest.report import as_json_line

    found = _calibration(model)
    executor = TorchExecutor(model, num_blocks=blocks)
    use = machine.CpuUse()
    with stage(f"running {traffic.num_prompts} requests on {model}, four times"):
        warm = replace(traffic, num_prompts=min(32, traffic.num_prompts), seed=9_999_991)
        run_real(executor, replace(warm, rate_per_s=float("inf")), max_running, token_budget)
        result = validate(executor, found, traffic, max_running, token_budget, load)
    others = use.others_share()
    table = Table(box=SIMPLE_HEAD, title=f"Predicted and measured: {model}", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("measured", "predicted", "off by", "two real runs differ by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        floor = "-" if row["floor"] is None else f"{row['floor']:.1%}"
        values = (f"{row['measured']:.4g}", f"{row['predicted']:.4g}", f"{row['error']:+.1%}")
        table.add_row(row["figure"], *values, floor)
    say = out().print
    say(table)
    say(
        f"Held-out traffic: {traffic.num_prompts:,} x {traffic.dataset}, seed {traffic.seed}. "
        f"{result['num_steps']:,} steps: half are off by less than "
        f"{result['step_median_error']:.1%}, all together by {result['step_total_error']:.1%}. "
        "Seconds, unless it says otherwise."
    )
    if others is not None and others > machine.QUIET_SHARE:
        say(f"Other programs used {others:.0%} of the CPU: repeat on a quiet machine.")
    if json:
        about = {"machine": machine.describe(), "other_cpu_share": others}
        print(as_json_line(result | about | {"traffic": traffic.describe()}), flush=True)


def encoder():
    """Northstar-nano's tokenizer: text to token ids."""
    from minserve.models.registry import resolve
    from minserve.models.tokenizer import Tokenizer

    return Tokenizer(resolve("nano")).encode
