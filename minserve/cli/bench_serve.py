"""`minserve bench serve`: what HTTP costs, and whether people wait for machines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minserve.cli.console import Model, out, print_json


def serve(
    model: Model = "smollm2",
    parts: Annotated[
        str, typer.Option(help="Which of throughput, ttft, classes, tenants, with commas.")
    ] = "throughput,ttft,classes,tenants",
    streams: Annotated[int, typer.Option(help="Streams at once, of the throughput part.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(help="Of each stream.")] = 32,
    output_tokens: Annotated[int, typer.Option(help="Of each stream.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each way; the median counts.")] = 3,
    requests: Annotated[int, typer.Option(help="Requests of the ttft and classes parts.")] = 150,
    step_cap: Annotated[
        float, typer.Option(help="Milliseconds a step may take beside offline work.")
    ] = 100.0,
    seconds: Annotated[float, typer.Option(help="That the two tenants are counted.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Of prompts and pauses.")] = 0,
) -> None:
    """Measure a real `minserve serve`, each part beside its yardstick in the same run.

    Throughput is of --model; the other parts are of northstar-nano. Bounds: HTTP loses at most 15 %
    of the offline throughput and adds 2 ms to the median time to the first token; interactive p95
    stays within the unloaded one and two step caps; two tenants get the same within 10 %.

    Examples:

    - `minserve bench serve`

    - `minserve bench serve --parts throughput --model nano --output-tokens 32 --repeats 1`
    """
    from minserve.benchmarks import serving
    from minserve.cli.machine import QUIET_SHARE, CpuUse, describe
    from minserve.errors import ConfigError

    names = serving.check_parts(parts)
    counts = (streams, prompt_tokens, output_tokens, repeats, requests)
    if min(counts) < 1 or seconds <= 0 or not 1 <= step_cap < 60_000:
        raise ConfigError("a count, --seconds or --step-cap is too small", "use 1 or more")
    run = {
        "throughput": lambda: _throughput(
            model, streams, prompt_tokens, output_tokens, repeats, seed
        ),
        "ttft": lambda: serving.added_ttft("nano", _vocab("nano"), requests, seed),
        "classes": lambda: serving.classes("nano", _vocab("nano"), step_cap / 1000, requests, seed),
        "tenants": lambda: serving.tenants("nano", _vocab("nano"), seconds, seed),
    }
    cpu, console, report = CpuUse(children=True), out(), {}
    for name in names:
        with console.status(name):
            report[name] = run[name]()
        console.print(WORDS[name](report[name]))
    others = cpu.others_share()
    if others is not None and others > QUIET_SHARE:
        console.print(f"Others used {others:.0%} of the CPU meanwhile: no verdict on times.")
    print_json(
        {
            "benchmark": "serve",
            "model": str(model),
            "seed": seed,
            "machine": describe(),
            "others_cpu_share": others,
            **report,
        }
    )


def _vocab(model: str) -> int:
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve

    return ModelConfig.from_folder(resolve(model)).vocab_size


def _throughput(model, streams, prompt_tokens, output_tokens, repeats, seed) -> dict[str, Any]:
    import random

    import torch

    from minserve.benchmarks import serving
    from minserve.models.registry import resolve

    rng, vocab_size = random.Random(f"throughput {seed}"), _vocab(model)
    prompts = [
        [rng.randrange(100, vocab_size) for _ in range(prompt_tokens)] for _ in range(streams)
    ]
    settings = {
        "model": str(resolve(model)),
        "dtype": "float32",
        "threads": torch.get_num_threads(),  # as `minserve serve` has them
        "token_budget": 512,
        "max_running": streams,
        "kv_tokens": max(4096, 2 * streams * (prompt_tokens + output_tokens)),
    }
    return serving.throughput(settings, prompts, output_tokens, repeats)


def _verdict(part: dict[str, Any]) -> str:
    return "Holds" if part["holds"] else "FAILS"


WORDS = {
    "throughput": lambda p: (
        f"{_verdict(p)}: {p['streams']} streams, {p['http_tokens_per_s']:,.0f} tokens/s over HTTP "
        f"against {p['offline_tokens_per_s']:,.0f} offline: {p['lost']:.1%} lost; the client used "
        f"{max(run['client_cpu'] for run in p['http']):.0%} of a core."
    ),
    "ttft": lambda p: (
        f"{_verdict(p)}: first token after {1000 * p['http_p50_s']:.2f} ms over HTTP against "
        f"{1000 * p['direct_p50_s']:.2f} ms past it (p50): "
        f"{1000 * p['added_p50_s']:.2f} ms added."
    ),
    "classes": lambda p: (
        f"{_verdict(p)}: interactive p95 TTFT {1000 * p['loaded_ttft_p95_s']:.0f} ms beside "
        f"offline work, {1000 * p['unloaded_ttft_p95_s']:.0f} ms without, "
        f"{1000 * p['allowed_ttft_p95_s']:.0f} ms allowed; offline "
        f"{p['offline_tokens_per_s_beside']:,.0f} of {p['offline_tokens_per_s_alone']:,.0f} "
        "tokens/s."
    ),
    "tenants": lambda p: (
        f"{_verdict(p)}: two tenants, one with {p['users']['many'] // p['users']['few']} times "
        f"the requests: {p['served_tokens']['many']:,} and {p['served_tokens']['few']:,} tokens, "
        f"{p['apart']:.1%} apart."
    ),
}
