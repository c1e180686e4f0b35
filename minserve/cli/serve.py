"""`minserve serve`: a model behind an OpenAI-compatible API."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minserve.cli import server_options as opt
from minserve.cli.callers import key_ring, warnings_of
from minserve.cli.console import Dtype, KvCacheDtype, Model, Quantization
from minserve.cli.served_engine import EngineSettings, embeddings_of, make_server, parse_size
from minserve.errors import ConfigError

if TYPE_CHECKING:
    from minserve.learn.serving.install import ServingParts
    from minserve.serving.identity import KeyRing
    from minserve.serving.server import Server


def serve(
    model: Model = "nano",
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    keys: opt.Keys = None,
    demo_keys: opt.DemoKeys = False,
    prefix_scope: Annotated[
        str,
        typer.Option(help="Who shares cached prefixes: user, tenant, application, global, off."),
    ] = "tenant",
    policy: Annotated[
        str | None,
        typer.Option(
            help="static, dynamic or continuous (default); with --parts of yours, by default the "
            "one last kept."
        ),
    ] = None,
    ordering: Annotated[
        str, typer.Option(help="fifo, deadline, priority, fair or shortest.")
    ] = "fair",
    max_running: Annotated[int, typer.Option(help="Most requests in a step.")] = 64,
    token_budget: Annotated[int, typer.Option(help="Most tokens in a step.")] = 512,
    step_cap: Annotated[
        float, typer.Option(help="Milliseconds a step may take while there is offline work.")
    ] = 100.0,
    kv_memory: Annotated[
        str, typer.Option(help="Memory for the KV cache, such as 512MB or 2GiB.")
    ] = "512MB",
    num_blocks: Annotated[
        int | None, typer.Option(help="KV blocks of 16 tokens, instead of --kv-memory.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest sequence; by default what the model knows.")
    ] = None,
    dtype: Dtype = "float32",
    kv_cache_dtype: KvCacheDtype = "auto",
    quantization: Quantization = "none",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    served_name: Annotated[
        str | None, typer.Option(help="What clients call the model; by default its own name.")
    ] = None,
    response_cache: opt.ResponseCache = "off",
    semantic_cache: Annotated[
        str,
        typer.Option(
            help="Answer other wordings of a question too, where its class allows that (see "
            "`minserve cache policy`): default, minilm, or the folder of an embedder; or off."
        ),
    ] = "off",
    semantic_examples: Annotated[
        Path | None,
        typer.Option(help="CSV of text and category: labelled questions for --semantic-cache."),
    ] = None,
    cascade_to: Annotated[
        str | None,
        typer.Option(
            help="Ask this dearer model where an answer fails the check that its request brings "
            "(response_format, or a class with a check: `minserve cache policy`)."
        ),
    ] = None,
    max_body: Annotated[str, typer.Option(help="Largest request body.")] = "1MiB",
    request_timeout: opt.RequestTimeout = 600.0,
    drain_timeout: opt.DrainTimeout = 30.0,
    jobs: opt.Jobs = None,
    parts: Annotated[
        bool,
        typer.Option(
            "--parts",
            help="Serve through the parts that you have built and installed in the lessons; see "
            "`minserve parts`.",
        ),
    ] = False,
    embedding_model: Annotated[
        str | None, typer.Option(help="Serve /v1/embeddings with this encoder: minilm, a folder.")
    ] = None,
    region: Annotated[
        str, typer.Option(help="Where this server stands, told in GET /admin/usage alone.")
    ] = "",
    log_format: opt.LogFormat = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model to any OpenAI client, until Ctrl-C or SIGTERM.

    Without keys only this machine can call it. Who a caller is, how much it may use and whose
    cached prefixes it shares come from its key; nothing in a request can change that.

    Examples:

    - `minserve serve`

    - `minserve serve --model smollm2 --port 8080`

    - `minserve keys create keys.json --tenant kestrel --subject thora` and then
    `minserve serve --keys keys.json --host 0.0.0.0`

    - `minserve serve --demo-keys`: Northstar's tenants, with the keys of data/northstar

    - `minserve serve --cascade-to smollm2`: what can be checked is checked, and asked again

    - `minserve serve --parts`: through your own parts; then `minserve parts --trace`
    """
    from minserve.serving import logs
    from minserve.serving.identity import Salts, Scope
    from minserve.serving.run import bind, run, url_of
    from minserve.serving.server import Limits
    from minserve.serving.watch import Watch

    if prefix_scope not in ("off", *Scope):
        raise ConfigError(f"prefix scope {prefix_scope!r}", f"use off or one of {', '.join(Scope)}")
    if log_level.lower() not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log level {log_level!r}", "use debug, info, warning or error")
    for name, value in (
        ("request-timeout", request_timeout),
        ("drain-timeout", drain_timeout),
        ("step-cap", step_cap),
    ):
        if not 0 < value < 1e6:
            raise ConfigError(f"--{name} {value:g}", "give a positive number")
    logs.set_up(log_format, log_level)
    ring = key_ring(keys, demo_keys)
    listener = bind(host, port, ring is not None)
    max_body_bytes = parse_size(max_body)
    if max_body_bytes < 1024:
        raise ConfigError(f"--max-body {max_body} takes no request", "give at least 1KiB")
    limits = Limits(max_body_bytes=max_body_bytes, request_s=request_timeout, drain_s=drain_timeout)
    mine = None
    if parts:
        from minserve.learn.serving.install import ServingParts

        mine = ServingParts(policy)
        policy = mine.policy_part.removesuffix("_batching")
    engine = EngineSettings(
        model, policy or "continuous", ordering, max_running, token_budget, kv_memory, num_blocks,
        max_model_len, dtype, device, prefix_scope != "off", served_name, step_cap / 1000,
        response_cache, semantic_cache, semantic_examples, kv_cache_dtype, quantization, cascade_to,
    )  # fmt: skip
    began_s = time.perf_counter()
    scope = Scope.TENANT if prefix_scope == "off" else Scope(prefix_scope)
    salts = mine.salts(scope) if mine else Salts(scope)
    server = make_server(engine, ring, salts, limits, mine)
    server.region = region
    if embedding_model:
        server.embeddings = embeddings_of(embedding_model)
    load_s = time.perf_counter() - began_s
    if isinstance(server.watch, Watch):  # a cluster's replicas tell it themselves
        server.watch.metrics.model_load_s.set(load_s)

    from minserve.serving.app import create_app

    warnings = warnings_of(ring, demo_keys, prefix_scope)

    def listening() -> None:
        url = url_of(listener)
        if log_format == "text":
            _panel(url, server, ring, prefix_scope, load_s, warnings, mine)
        log = logging.getLogger("minserve.server")
        for warning in warnings if log_format == "json" else ():
            log.warning(warning)
        fields = {
            "url": url,
            "model": server.model.names[0],
            "precision": server.model.precision,
            "load_s": round(load_s, 2),
        }
        log.info("listening", extra={"fields": fields})

    store = None
    if jobs is not None:
        from minserve.cli.jobs import open_store

        store = open_store(jobs)
        if mine:
            store = mine.store(store, url_of(listener), ring is None)
    app = create_app(server, store)
    if mine:
        mine.attach(app, server)
    run(app, server, listener, listening)


def _panel(
    url: str,
    server: Server,
    ring: KeyRing | None,
    prefix_scope: str,
    load_s: float,
    warnings: list[str],
    parts: ServingParts | None = None,
) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from minserve.cascaded_service import cascade_of

    model, console = server.model, Console(file=sys.stderr, highlight=False)
    cascade = cascade_of(server.engine.service)
    text = Text()
    for name, value in (
        ("model", f"{model.names[0]}, loaded in {load_s:.1f} s"),
        ("precision", model.precision),
        *([("cascade", " then ".join(cascade.models))] if cascade else []),
        ("context", f"{model.max_model_len:,} tokens"),
        ("prefixes", f"shared by {prefix_scope}" if prefix_scope != "off" else "not reused"),
        ("keys", "none" if ring is None else str(len(ring.keys))),
        *([("parts", parts.summary)] if parts else []),
    ):
        text.append(f"{name:11}", "bold").append(f"{value}\n")
    for warning in warnings:
        text.append(f"\nwarning: {warning}", "bold yellow")
    text.rstrip()
    console.print(Panel(text, title=f"minserve is listening on {url}", expand=False))
    for line in parts.shelf.lines() if parts else ():
        console.print(line, soft_wrap=True, markup=False)
    # Outside the frame, so that they can be copied.
    key = "not needed" if ring is None else "$KEY"
    header = "" if ring is None else ' -H "authorization: Bearer $KEY"'
    body = '{"messages": [{"role": "user", "content": "Hello"}]}'
    for name, line in (
        ("shell", f"curl {url}/v1/chat/completions -H 'content-type: application/json'{header}"),
        ("", f"  -d '{body}'"),
        ("Python", f'OpenAI(base_url="{url}/v1", api_key="{key}")'),
        ("terminal", f"minserve chat --url {url}" + ("" if ring is None else " --key $KEY")),
    ):
        end = " \\" if name == "shell" else ""
        console.print(f"{name:9}{line}{end}", soft_wrap=True, markup=False)
