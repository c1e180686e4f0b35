"""`minserve serve`: a model behind an OpenAI-compatible API."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minserve.cli.console import Model
from minserve.errors import ConfigError
from minserve.execution.passing_thread import on_a_passing_thread

if TYPE_CHECKING:
    from minserve.cached_service import CachedService
    from minserve.learn.serving.install import ServingParts
    from minserve.reuse.key import ModelTuple
    from minserve.service import Service
    from minserve.serving.identity import ApiKey, KeyRing, Salts
    from minserve.serving.server import Limits, Server

BLOCK_SIZE = 16
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def serve(
    model: Model = "nano",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of API keys; see `minserve keys`.")
    ] = None,
    demo_keys: Annotated[
        bool, typer.Option("--demo-keys", help="Take the demo keys of Northstar's users too.")
    ] = False,
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
    ordering: Annotated[str, typer.Option(help="fifo, deadline, priority or fair.")] = "fair",
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
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    served_name: Annotated[
        str | None, typer.Option(help="What clients call the model; by default its own name.")
    ] = None,
    response_cache: Annotated[
        str,
        typer.Option(
            help="Answer the same greedy request of the same caller again, for a few minutes: "
            "memory, sqlite:PATH, redis://HOST:PORT, or off."
        ),
    ] = "off",
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
    max_body: Annotated[str, typer.Option(help="Largest request body.")] = "1MiB",
    request_timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that open requests get once asked to stop.")
    ] = 30.0,
    jobs: Annotated[
        str | None,
        typer.Option(help="Store of durable jobs: sqlite:///jobs.db; then run `minserve worker`."),
    ] = None,
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
    log_format: Annotated[str, typer.Option(help="text or json, on standard error.")] = "text",
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

    - `minserve serve --parts`: through your own parts; then `minserve parts --trace`
    """
    from minserve.serving import logs
    from minserve.serving.identity import Salts, Scope
    from minserve.serving.run import bind, run, url_of
    from minserve.serving.server import Limits

    if prefix_scope not in ("off", *Scope):
        raise ConfigError(f"prefix scope {prefix_scope!r}", f"use off or one of {', '.join(Scope)}")
    if log_level.lower() not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log level {log_level!r}", "use debug, info, warning or error")
    for name, value in (("request", request_timeout), ("drain", drain_timeout)):
        if not 0 < value < 1e6:
            raise ConfigError(f"--{name}-timeout {value:g}", "give a positive number of seconds")
    logs.set_up(log_format, log_level)
    ring = _keys(keys, demo_keys)
    listener = bind(host, port, ring is not None)
    limits = Limits(
        max_body_bytes=parse_size(max_body), request_s=request_timeout, drain_s=drain_timeout
    )
    mine = None
    if parts:
        from minserve.learn.serving.install import ServingParts

        mine = ServingParts(policy)
        policy = mine.policy_part.removesuffix("_batching")
    engine = EngineSettings(
        model, policy or "continuous", ordering, max_running, token_budget, kv_memory, num_blocks,
        max_model_len, dtype, device, prefix_scope != "off", served_name, step_cap / 1000,
        response_cache, semantic_cache, semantic_examples,
    )  # fmt: skip
    began_s = time.perf_counter()
    scope = Scope.TENANT if prefix_scope == "off" else Scope(prefix_scope)
    salts = mine.salts(scope) if mine else Salts(scope)
    server = make_server(engine, ring, salts, limits, mine)
    if embedding_model:
        server.embeddings = _embeddings(embedding_model)
    load_s = time.perf_counter() - began_s
    server.watch.metrics.model_load_s.set(load_s)

    from minserve.serving.app import create_app

    warnings = _warnings(ring, demo_keys, prefix_scope)

    def listening() -> None:
        url = url_of(listener)
        if log_format == "text":
            _panel(url, server, ring, prefix_scope, load_s, warnings, mine)
        log = logging.getLogger("minserve.server")
        for warning in warnings if log_format == "json" else ():
            log.warning(warning)
        fields = {"url": url, "model": server.model.names[0], "load_s": round(load_s, 2)}
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


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is served, and how; see the options of `minserve serve`."""

    model: str = "nano"
    policy: str = "continuous"
    ordering: str = "fair"
    max_running: int = 64
    token_budget: int = 512
    kv_memory: str = "512MB"
    num_blocks: int | None = None
    max_model_len: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    prefix_caching: bool = True
    served_name: str | None = None
    step_cap_s: float = 0.1
    response_cache: str = "off"
    semantic_cache: str = "off"
    semantic_examples: Path | None = None


@on_a_passing_thread
def make_server(
    settings: EngineSettings,
    keys: KeyRing | None = None,
    salts: Salts | None = None,
    limits: Limits | None = None,
    parts: ServingParts | None = None,
) -> Server:
    """Load the model and put it behind a server that is still to be started.

    `parts` of a learner's stand where they are built; their salts are to be given as `salts`.
    Raises `ConfigError` for a bad setting, and whatever loading a model raises.
    """
    from minserve.cli import bench
    from minserve.client import LocalClient
    from minserve.engine import Engine
    from minserve.events import EventLog
    from minserve.execution.torch_executor import TorchExecutor, num_blocks_for
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve
    from minserve.reuse.key import ModelTuple
    from minserve.scheduling.admission import Admission
    from minserve.scheduling.batching import DynamicBatching, StaticBatching
    from minserve.scheduling.rates import Rates
    from minserve.scheduling.reservation import OnlineFirst, ReservedBatching
    from minserve.service import Service
    from minserve.serving.calls import ServedModel
    from minserve.serving.identity import Salts
    from minserve.serving.server import Limits, Server

    if settings.ordering not in bench.ORDERINGS:
        raise ConfigError(f"ordering {settings.ordering!r}", f"use {', '.join(bench.ORDERINGS)}")
    policies = {
        "static": lambda: StaticBatching(settings.max_running),
        "dynamic": lambda: DynamicBatching(settings.max_running),
        "continuous": lambda: ReservedBatching(
            settings.token_budget,
            settings.max_running,
            block_size=BLOCK_SIZE,
            reserved_blocks=num_blocks // 8,
            step_cap_s=settings.step_cap_s,
            rates=rates,
        ),
    }
    if settings.policy not in policies:
        raise ConfigError(f"policy {settings.policy!r}", f"use {', '.join(policies)}")
    make_cache = cache_maker(settings, parts)
    rates = Rates()
    folder = resolve(settings.model)
    config = ModelConfig.from_folder(folder)
    num_blocks = settings.num_blocks
    if num_blocks is None:
        memory = parse_size(settings.kv_memory)
        num_blocks = parts and parts.num_blocks(config, memory, BLOCK_SIZE, settings.dtype)
        num_blocks = num_blocks or num_blocks_for(config, memory, BLOCK_SIZE, settings.dtype)
    executor = TorchExecutor(
        folder,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=settings.dtype,
        device=settings.device,
        max_model_len=settings.max_model_len,
    )
    tokenizer = executor.tokenizer

    def make_engine(loop) -> Engine:
        policy, ordering = policies[settings.policy], bench.ORDERINGS[settings.ordering]
        if parts:
            return parts.engine(executor, settings, policy, ordering, loop.clock)
        return Engine(
            executor,
            policy(),
            prefix_caching=settings.prefix_caching,
            ordering=OnlineFirst(ordering()),
            log=EventLog(keep=False),
        )

    def make_service(loop) -> Service | CachedService:
        engine = make_engine(loop)
        admission = Admission(engine.log, rates=rates)
        service = Service(LocalClient(engine, loop), tokenizer.detokenizer, admission)
        if make_cache:
            # The fingerprint covers weights, tokenizer and chat template.
            name = executor.tokenizer.folder.name
            model = ModelTuple(name, executor.cache_namespace, precision=executor.dtype)
            service = make_cache(service, model)
        return parts.service(service) if parts else service

    served = ServedModel(
        names=names_of(folder, settings),
        root=str(folder),
        tokenizer=tokenizer,
        vocab_size=config.vocab_size,
        max_model_len=min(executor.max_model_len, num_blocks * BLOCK_SIZE),
        created=int((folder / "config.json").stat().st_mtime),
    )
    return Server(served, make_service, keys, salts or Salts(), limits or Limits())


def names_of(folder: Path, settings: EngineSettings) -> tuple[str, ...]:
    """What the model in `folder` answers to; the first is its own name, or the one given."""
    from minserve.models.registry import ALIASES

    aliases = [alias for alias, name in ALIASES.items() if name == folder.name]
    given = [settings.served_name] if settings.served_name else []
    return tuple(dict.fromkeys([*given, folder.name, *aliases, settings.model, str(folder)]))


def cache_maker(
    settings: EngineSettings, parts: ServingParts | None = None
) -> Callable[[Service, ModelTuple], CachedService] | None:
    """Puts the response caches that the settings ask for before a service."""
    from minserve.cached_service import CachedService
    from minserve.cli.bench_cache import make_embedder
    from minserve.northstar import caching
    from minserve.northstar.prompts import split_user
    from minserve.reuse.response import ExactCache
    from minserve.reuse.stores import open_store

    if parts:
        settings = parts.cache_settings(settings)
    store = open_store(settings.response_cache)
    if store is None:
        if settings.semantic_cache != "off":
            raise ConfigError(
                "--semantic-cache without --response-cache",
                "it finds answers in the response cache: add --response-cache memory",
            )
        return None
    policies, semantic = caching.policy_table(), None
    exact = parts.exact_cache(store, policies) if parts else ExactCache(store, policies)
    if settings.semantic_cache != "off":
        file = settings.semantic_examples
        examples = caching.read_examples(file) if file else None
        semantic = caching.semantic_cache(exact, make_embedder(settings.semantic_cache), examples)
        if parts:
            parts.semantic_cache(semantic)

    def make(service: Service, model: ModelTuple) -> CachedService:
        return CachedService(service, exact, model, semantic=semantic, split=split_user)

    return make


@on_a_passing_thread
def _embeddings(name: str):
    import tokenizers

    from minserve.models import minilm
    from minserve.serving.embeddings import Embeddings

    embedder = minilm.MiniLM(name)
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm.resolve(name) / "tokenizer.json"))
    tokenizer.no_truncation()  # NOTE: the file may say to cut, and then every count is too low
    tokenizer.no_padding()
    return Embeddings(name, embedder, lambda text: len(tokenizer.encode(text).ids), max_tokens=256)


def parse_size(text: str) -> int:
    """`512MB`, `2GiB` or plain bytes, in bytes. Raises `ConfigError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if not found or found[2].upper() not in _UNITS:
        raise ConfigError(f"size {text!r}", "write it as 512MB, 2GiB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _keys(path: Path | None, demo: bool) -> KeyRing | None:
    from minserve.serving.identity import KeyFile, KeyRing

    extra = _demo_keys() if demo else []
    if path is not None:
        return KeyFile(path, extra)
    return KeyRing(extra) if demo else None


def _demo_keys() -> list[ApiKey]:
    """A key for each of Northstar's users, whose secrets are in data/northstar/demo_keys.json."""
    from minserve.northstar.corpus import load_corpus
    from minserve.serving.identity import ANY_CLASS, ApiKey

    return [
        ApiKey(
            user.id,
            user.key_sha256,
            user.tenant,
            user.id,
            application="northstar",
            answer_classes=(ANY_CLASS,),
        )
        for user in load_corpus().users
    ]


def _warnings(ring: KeyRing | None, demo_keys: bool, prefix_scope: str) -> list[str]:
    warnings = []
    if ring is None:
        warnings.append("no API keys: anybody on this machine may use it, as one tenant")
    if demo_keys:
        where = "data/northstar/demo_keys.json"
        warnings.append(f"demo keys are published, in {where}: for demonstrations only")
    if prefix_scope in ("application", "global"):
        warnings.append(
            f"prefix scope {prefix_scope}: tenants can tell from timing what others have sent"
        )
    return warnings


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

    model, console = server.model, Console(file=sys.stderr, highlight=False)
    text = Text()
    for name, value in (
        ("model", f"{model.names[0]}, loaded in {load_s:.1f} s"),
        ("context", f"{model.max_model_len:,} tokens"),
        ("prefixes", f"shared by {prefix_scope}" if prefix_scope != "off" else "not reused"),
        ("keys", "none" if ring is None else str(len(ring.keys))),
        *([("parts", parts.summary)] if parts else []),
    ):
        text.append(f"{name:9}", "bold").append(f"{value}\n")
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
