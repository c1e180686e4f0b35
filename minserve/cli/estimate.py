"""`minserve estimate`: how much memory a KV cache takes, and how many requests fit."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError
from minserve.kv.estimate import Capacity, KVShape, parse_bytes

SMOLLM2 = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
"""SmolLM2-135M-Instruct's shape (from its config.json), for machines that do not have it yet."""


def estimate(
    bytes_per_token: Annotated[
        str | None, typer.Option(help="KV bytes of one token, such as `128KB` or `128KiB`.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens that one request keeps: prompt and output.")
    ] = None,
    free: Annotated[
        str | None, typer.Option(help="Memory left for the KV cache, such as `24GB` or `24GiB`.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Take the shape from a model's config; no weights load.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="KV heads of one layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Values in one head.")] = None,
    dtype: Annotated[
        str, typer.Option(help="KV precision: float32, bfloat16, float16 or int8 (with scales).")
    ] = "float16",
    devices: Annotated[int, typer.Option(help="Devices that split the KV heads.")] = 1,
    block_size: Annotated[
        int, typer.Option(help="Tokens per block; the last block of a request may be part empty.")
    ] = 1,
    json: Json = False,
) -> None:
    """How many requests fit? Estimate the KV cache, from numbers or from a model.

    bytes per token = 2 x layers x KV heads x head dim x bytes per value,
    one key and one value each. A request keeps that for every token of its context.

    Examples:

    - `minserve estimate --bytes-per-token 128KB --context 3000 --free 24GB`

    - `minserve estimate --model smollm2 --dtype float32`

    - `minserve estimate --layers 32 --kv-heads 8 --head-dim 128 --context 8192 --free 40GiB`

    - the same with `--devices 4`: a quarter of the heads, and so of the bytes, on each
    """
    shape = _shape(bytes_per_token, model, layers, kv_heads, head_dim)
    given = bytes_per_token or ""
    per_token = shape.bytes_per_token(dtype, devices) if shape else parse_bytes(given)
    report: dict[str, Any] = {
        "bytes_per_token": per_token,
        "context_tokens": context,
        "free_bytes": None,
    }
    if shape:
        report |= {"dtype": dtype, "devices": devices, "layers": shape.num_layers}
        report |= {"kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    if context is not None:
        free_bytes = parse_bytes(free or "0")
        fits = Capacity(per_token, context, free_bytes, block_size)
        report["bytes_per_request"] = fits.bytes_per_request
        if free is not None:
            report |= {"free_bytes": free_bytes, "total_tokens": fits.total_tokens}
            report["concurrent_requests"] = fits.concurrent_requests
            for units in ("decimal", "binary"):
                per = per_token if shape else parse_bytes(_in_units(given, units))
                room = parse_bytes(_in_units(free, units))
                concurrent = Capacity(per, context, room, block_size).concurrent_requests
                report[units] = {
                    "bytes_per_token": per,
                    "free_bytes": room,
                    "concurrent_requests": concurrent,
                }
    _explain(report, bytes_per_token, free)
    if json:
        print_json(report)


def _shape(
    bytes_per_token: str | None,
    model: str | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
) -> KVShape | None:
    """The shape asked for, or None if bytes per token were given outright."""
    by_hand = [value for value in (layers, kv_heads, head_dim) if value is not None]
    ways = (bytes_per_token is not None) + (model is not None) + bool(by_hand)
    if ways != 1 or len(by_hand) not in (0, 3):
        raise ConfigError(
            "the size of one token must come from exactly one place",
            "give --bytes-per-token, or --model, or --layers with --kv-heads and --head-dim",
        )
    if bytes_per_token is not None:
        return None
    return _shape_of_model(model) if model is not None else KVShape(*by_hand)


def _shape_of_model(name: str) -> KVShape:
    """From config.json alone: nothing is fetched for a known name, only the config for a hub id."""
    from minserve.models.registry import ALIASES, config_of, known_models

    short = ALIASES.get(name.lower(), name.lower())
    for known in known_models():
        if known.name == short and known.folder is None and short == "smollm2":
            return SMOLLM2
    config = config_of(name)
    return KVShape(config.num_hidden_layers, config.num_kv_heads, config.head_dim)


def _in_units(text: str, units: str) -> str:
    """The same number with the same letter, read as decimal (KB) or binary (KiB) units."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", text)
    if not match or not match[2]:
        return text
    return match[1] + match[2] + ("iB" if units == "binary" else "B")


def _explain(report: dict, bytes_per_token: str | None, free: str | None) -> None:
    """The figures, each with where it comes from."""
    say = out().print
    per_token = report["bytes_per_token"]
    if "layers" in report:
        shape = " x ".join(f"{report[name]}" for name in ("layers", "kv_heads", "head_dim"))
        on_each = f", on each of {report['devices']} devices" if report["devices"] > 1 else ""
        say(f"One token:    {per_token:,} bytes   (2 x {shape}, {report['dtype']}{on_each})")
    else:
        say(f"One token:    {per_token:,} bytes")
    if report.get("bytes_per_request") is None:
        return say(
            f"Add --context{' and --free' if free is None else ''} to see how many requests fit."
        )
    context = f"{report['context_tokens']:,} tokens"
    say(f"One request:  {report['bytes_per_request']:,} bytes   ({context})")
    if free is None:
        return say("Add --free to see how many fit.")
    say(f"Memory:       {report['free_bytes']:,} bytes, {report['total_tokens']:,} tokens in all")
    say(f"[bold]Concurrent:   {report['concurrent_requests']:,} requests[/bold]")
    decimal, binary = report["decimal"], report["binary"]
    if decimal["concurrent_requests"] == binary["concurrent_requests"]:
        return None
    say("")
    say(f"Read in decimal units (KB = 10^3, GB = 10^9):   {decimal['concurrent_requests']:,}")
    say(f"Read in binary units (KiB = 2^10, GiB = 2^30):  {binary['concurrent_requests']:,}")
    if bytes_per_token is not None and _in_units(bytes_per_token, "binary") != bytes_per_token:
        why = "GiB is 7.4 % more than GB, but KiB only 2.4 % more than KB: memory grows faster."
    else:
        why = "GiB is 7.4 % more than GB. Tools disagree on which one they mean: check yours."
    return say(why)
