"""`minserve gateway`: the course's server before somebody else's engine."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minserve.cli import server_options as opt
from minserve.errors import ConfigError

if TYPE_CHECKING:
    from minserve.cli.served_engine import EngineSettings
    from minserve.serving.calls import ServedModel
    from minserve.serving.identity import KeyRing, Salts
    from minserve.serving.server import Limits
    from minserve.serving.upstream_client import Upstream
    from minserve.serving.upstream_gateway import UpstreamGateway

KEY_VARIABLE = "MINSERVE_UPSTREAM_KEY"


def gateway(
    upstream: Annotated[
        str, typer.Option(help="Where the engine is: http://HOST:PORT, with or without /v1.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Whose tokenizer and chat template to use: `nano`, `smollm2`, a folder or a hub "
            "id (of which no weights are fetched). The same model that the engine serves."
        ),
    ],
    upstream_model: Annotated[
        str | None,
        typer.Option(help="What the engine calls it; by default the only one that it lists."),
    ] = None,
    dialect: Annotated[
        str,
        typer.Option(help="vllm, sglang, minserve or openai; auto asks the engine what it is."),
    ] = "auto",
    upstream_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the gateway's own key there; or set {KEY_VARIABLE}."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait at start for the engine to come up; 0: none.")
    ] = 300.0,
    stall_timeout: Annotated[
        float, typer.Option(help="Seconds that the engine may say nothing while it owes an answer.")
    ] = 120.0,
    tokens_per_s: Annotated[
        float,
        typer.Option(
            help="Tokens a second that the engine computes at least, for the times that admission "
            "tells; more is believed once it is seen. See `minserve loadtest`."
        ),
    ] = 1000.0,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest sequence; by default what the engine says.")
    ] = None,
    served_name: Annotated[
        str | None, typer.Option(help="What clients call the model; by default the engine's name.")
    ] = None,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8080,
    keys: opt.Keys = None,
    demo_keys: opt.DemoKeys = False,
    prefix_scope: Annotated[
        str, typer.Option(help="Who shares cached prefixes: user, tenant, application, global.")
    ] = "tenant",
    response_cache: opt.ResponseCache = "off",
    semantic_cache: Annotated[
        str, typer.Option(help="Answer other wordings too; see `minserve serve`.")
    ] = "off",
    jobs: opt.Jobs = None,
    request_timeout: opt.RequestTimeout = 600.0,
    drain_timeout: opt.DrainTimeout = 30.0,
    log_format: opt.LogFormat = "text",
) -> None:
    """Put identity, field checks, salts, caches, admission, jobs and metrics before an engine.

    The engine may be any that speaks OpenAI's /v1/completions and takes token ids. Let only the
    gateway reach it: whoever talks to it directly goes past all of this.

    Examples:

    - vLLM: `vllm serve Qwen/Qwen2.5-0.5B-Instruct --port 8001 --enable-prompt-tokens-details` and
    then `minserve gateway --upstream http://127.0.0.1:8001 --model Qwen/Qwen2.5-0.5B-Instruct
    --keys keys.json`

    - SGLang: `python -m sglang.launch_server --model-path Qwen/Qwen2.5-0.5B-Instruct --port 30000
    --enable-cache-report` and then `minserve gateway --upstream http://127.0.0.1:30000
    --model Qwen/Qwen2.5-0.5B-Instruct --keys keys.json --response-cache memory`

    - try it at once: `minserve serve --port 8001` and then
    `minserve gateway --upstream http://127.0.0.1:8001 --model nano --demo-keys`
    """
    from minserve.cli.callers import key_ring
    from minserve.cli.served_engine import EngineSettings
    from minserve.serving import logs, upstream_start
    from minserve.serving.app import create_app
    from minserve.serving.identity import Salts, Scope
    from minserve.serving.run import bind, run, url_of
    from minserve.serving.server import Limits

    if prefix_scope not in tuple(Scope):
        raise ConfigError(f"prefix scope {prefix_scope!r}", f"use one of {', '.join(Scope)}")
    for name, value in (
        ("request-timeout", request_timeout),
        ("drain-timeout", drain_timeout),
        ("stall-timeout", stall_timeout),
        ("tokens-per-s", tokens_per_s),
    ):
        if not 0 < value < 1e9:
            raise ConfigError(f"--{name} {value:g}", "give a positive number")
    logs.set_up(log_format)
    log = logging.getLogger("minserve.gateway")
    ring = key_ring(keys, demo_keys)
    listener = bind(host, port, ring is not None)
    key = _key(upstream_key_file)
    found, card = upstream_start.find(
        upstream, key, upstream_model, dialect, wait, stall_timeout, say=log.info
    )
    served = _served(model, found, card, served_name, max_model_len)
    settings = EngineSettings(model, response_cache=response_cache, semantic_cache=semantic_cache)
    server = make_gateway(
        served,
        found,
        settings,
        ring,
        Salts(Scope(prefix_scope)),
        Limits(request_s=request_timeout, drain_s=drain_timeout),
        tokens_per_s,
    )
    store = None
    if jobs is not None:
        from minserve.cli.jobs import open_store

        store = open_store(jobs)

    def listening() -> None:
        for warning in _warnings(found, ring, prefix_scope, demo_keys):
            log.warning(warning)
        fields = {
            "url": url_of(listener),
            "model": served.names[0],
            "upstream": found.url,
            "dialect": found.dialect.name,
        }
        log.info("listening", extra={"fields": fields})

    run(create_app(server, store), server, listener, listening)


def make_gateway(
    served: ServedModel,
    upstream: Upstream,
    settings: EngineSettings,
    keys: KeyRing | None = None,
    salts: Salts | None = None,
    limits: Limits | None = None,
    tokens_per_s: float = 1000.0,
) -> UpstreamGateway:
    """A gateway that is still to be started; of `settings` it takes what is about caches."""
    from minserve.cli.served_engine import cache_maker
    from minserve.reuse.key import ModelTuple
    from minserve.serving.upstream_gateway import UpstreamGateway

    make_cache = cache_maker(settings)
    # NOTE: whether the weights there are still the same, nobody here can see.
    model = ModelTuple(upstream.model, upstream.url, tokenizer=served.root)
    with_cache = (lambda service: make_cache(service, model)) if make_cache else None
    return UpstreamGateway(served, upstream, keys, salts, limits, tokens_per_s, with_cache)


def _key(path: Path | None) -> str:
    if path is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        return path.expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--upstream-key-file {path}: {error}", "put the key into it") from None


def _served(
    name: str, upstream: Upstream, card: dict[str, Any], served_name: str | None, most: int | None
) -> ServedModel:
    """The model as clients are to see it. Raises `ConfigError` if it is another than upstream's."""
    from minserve.models.registry import words_of
    from minserve.models.tokenizer import Tokenizer
    from minserve.serving.calls import ServedModel
    from minserve.serving.upstream_start import check_tokens

    folder = words_of(name)
    tokenizer = Tokenizer(folder)
    if check_tokens(upstream, tokenizer) is False:
        raise ConfigError(
            f"--model {name} has other tokens than {upstream.model} at {upstream.url}",
            "give the model that the engine serves",
        )
    told = json.loads((folder / "config.json").read_text("utf-8"))
    told = told.get("text_config", told)
    most = most or card.get("max_model_len") or told.get("max_position_embeddings")
    if not isinstance(most, int) or most < 2:
        raise ConfigError("how long a sequence may be is unknown", "say it with --max-model-len")
    vocab_size = max(tokenizer.vocab_size, told.get("vocab_size") or 0)
    names = dict.fromkeys([served_name or upstream.model, upstream.model, name])
    return ServedModel(tuple(names), str(folder), tokenizer, vocab_size, most)


def _warnings(
    upstream: Upstream, ring: KeyRing | None, prefix_scope: str, demo_keys: bool
) -> list[str]:
    from minserve.cli.callers import warnings_of

    warnings = warnings_of(ring, demo_keys, prefix_scope)
    if not upstream.dialect.keeps_apart:
        warnings.append(
            "this engine takes no cache salt: if it caches prefixes, tenants can tell from timing "
            "what others have sent"
        )
    return warnings
