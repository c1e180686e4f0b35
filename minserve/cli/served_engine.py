"""A model, its engine and its caches, put together behind a server that is still to be started."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minserve.errors import ConfigError
from minserve.execution.passing_thread import on_a_passing_thread

if TYPE_CHECKING:
    from minserve.cached_service import CachedService
    from minserve.cascaded_service import CascadedService
    from minserve.clock import EventLoop
    from minserve.execution.precision import Precision
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.learn.serving.install import ServingParts
    from minserve.reuse.key import ModelTuple
    from minserve.service import Service
    from minserve.serving.embeddings import Embeddings
    from minserve.serving.identity import KeyRing, Salts
    from minserve.serving.server import Limits, Server

log = logging.getLogger("minserve.cache")

BLOCK_SIZE = 16
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    cascade_to: str | None = None


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
    from minserve.reuse.key import ModelTuple
    from minserve.serving.calls import ServedModel
    from minserve.serving.identity import Salts
    from minserve.serving.server import Limits, Server

    _check(settings, parts)
    make_cache = cache_maker(settings, parts)
    executor, precision = _load(settings, settings.model, parts)
    dearer = _load(settings, settings.cascade_to)[0] if settings.cascade_to else None
    tokenizer, folder = executor.tokenizer, executor.tokenizer.folder
    names = names_of(folder, settings)

    def make_service(loop) -> Service | CachedService | CascadedService:
        service: Service | CachedService | CascadedService
        service = plain = _service(settings, executor, loop, parts)
        # The fingerprint covers weights, tokenizer and chat template.
        model = ModelTuple(folder.name, executor.cache_namespace, precision=str(precision))
        if dearer:
            from minserve.cli.served_cascade import cascaded

            other = _service(settings, dearer, loop)
            service = cascaded(plain, names[0], other, dearer)
            model = replace(model, revision=f"{model.revision} or {dearer.cache_namespace}")
        if make_cache:
            service = make_cache(service, model)
        return parts.service(service) if parts else service

    served = ServedModel(
        names=names,
        root=str(folder),
        tokenizer=tokenizer,
        vocab_size=executor.config.vocab_size,
        max_model_len=min(executor.max_model_len, executor.num_blocks * BLOCK_SIZE),
        created=int((folder / "config.json").stat().st_mtime),
        precision=str(precision),
    )
    return Server(served, make_service, keys, salts or Salts(), limits or Limits())


def _check(settings: EngineSettings, parts: ServingParts | None) -> None:
    """Raises `ConfigError` for what can be found out before a model is loaded."""
    from minserve.cli import choices
    from minserve.models.registry import resolve

    if settings.ordering not in choices.ORDERINGS:
        raise ConfigError(f"ordering {settings.ordering!r}", f"use {', '.join(choices.ORDERINGS)}")
    if settings.policy not in choices.POLICIES:
        raise ConfigError(f"policy {settings.policy!r}", f"use {', '.join(choices.POLICIES)}")
    if settings.cascade_to is None:
        return
    if parts:
        raise ConfigError("--cascade-to with --parts", "serve your parts without a cascade")
    if resolve(settings.cascade_to) == resolve(settings.model):
        raise ConfigError(
            f"--cascade-to {settings.cascade_to} is the model that is served", "name another one"
        )


def _load(
    settings: EngineSettings, model: str, parts: ServingParts | None = None
) -> tuple[TorchExecutor, Precision]:
    from minserve.execution.precision import Precision, choose_dtype
    from minserve.execution.torch_executor import TorchExecutor, num_blocks_for
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve

    folder = resolve(model)
    config = ModelConfig.from_folder(folder)
    dtype = choose_dtype(settings.dtype, settings.device)
    precision = Precision(dtype, settings.quantization, settings.kv_cache_dtype)
    num_blocks = settings.num_blocks
    if num_blocks is None:
        memory, kv_dtype = parse_size(settings.kv_memory), precision.kv_dtype
        num_blocks = parts.num_blocks(config, memory, BLOCK_SIZE, kv_dtype) if parts else None
        num_blocks = num_blocks or num_blocks_for(config, memory, BLOCK_SIZE, kv_dtype)
    executor = TorchExecutor(
        folder,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        quantization=settings.quantization,
        device=settings.device,
        max_model_len=settings.max_model_len,
    )
    return executor, precision


def _service(
    settings: EngineSettings,
    executor: TorchExecutor,
    loop: EventLoop,
    parts: ServingParts | None = None,
) -> Service:
    """An engine on `loop`, and what lets requests into it."""
    from minserve.cli import choices
    from minserve.client import LocalClient
    from minserve.engine import Engine
    from minserve.events import EventLog
    from minserve.scheduling.admission import Admission
    from minserve.scheduling.batching import BatchingPolicy, DynamicBatching, StaticBatching
    from minserve.scheduling.rates import Rates
    from minserve.scheduling.reservation import OnlineFirst, ReservedBatching
    from minserve.service import Service

    rates, ordering = Rates(), choices.ORDERINGS[settings.ordering]
    policies: dict[str, Callable[[], BatchingPolicy]] = {
        "static": lambda: StaticBatching(settings.max_running),
        "dynamic": lambda: DynamicBatching(settings.max_running),
        "continuous": lambda: ReservedBatching(
            settings.token_budget,
            settings.max_running,
            block_size=BLOCK_SIZE,
            reserved_blocks=executor.num_blocks // 8,
            step_cap_s=settings.step_cap_s,
            rates=rates,
        ),
    }
    policy = policies[settings.policy]
    engine: Engine
    if parts:
        engine = parts.engine(executor, settings, policy, ordering, loop.clock)
    else:
        engine = Engine(
            executor,
            policy(),
            prefix_caching=settings.prefix_caching,
            ordering=OnlineFirst(ordering()),
            log=EventLog(keep=False),
        )
    admission = Admission(engine.log, rates=rates)
    return Service(LocalClient(engine, loop), executor.tokenizer.detokenizer, admission)


def names_of(folder: Path, settings: EngineSettings) -> tuple[str, ...]:
    """What the model in `folder` answers to; the first is its own name, or the one given."""
    from minserve.models.registry import ALIASES

    aliases = [alias for alias, name in ALIASES.items() if name == folder.name]
    given = [settings.served_name] if settings.served_name else []
    return tuple(dict.fromkeys([*given, folder.name, *aliases, settings.model, str(folder)]))


def cache_maker(
    settings: EngineSettings, parts: ServingParts | None = None
) -> Callable[[Service | CascadedService, ModelTuple], CachedService] | None:
    """Puts the response caches that the settings ask for before a service."""
    from minserve.cached_service import CachedService
    from minserve.cli.bench_cache import make_embedder
    from minserve.northstar import caching
    from minserve.northstar.checks import CHECKS
    from minserve.northstar.prompts import split_user
    from minserve.reuse.response import ExactCache
    from minserve.reuse.stores import open_store
    from minserve.reuse.validation import Validation

    if parts:
        settings = parts.cache_settings(settings)
    if settings.semantic_examples and settings.semantic_cache == "off":
        raise ConfigError(
            "--semantic-examples without --semantic-cache",
            "they teach it what questions mean: add --semantic-cache default",
        )
    store = open_store(settings.response_cache)
    if store is None:
        if settings.semantic_cache != "off":
            raise ConfigError(
                "--semantic-cache without --response-cache",
                "it finds answers in the response cache: add --response-cache memory",
            )
        return None
    try:
        store.size()
    except Exception as error:  # as at every look-up: a store that fails is a miss
        log.warning(
            "the response cache %s does not answer (%s): nothing is reused until it does",
            settings.response_cache,
            error,
        )
    policies, semantic = caching.policy_table(), None
    if parts:
        exact = parts.exact_cache(store, policies)
    else:
        exact = ExactCache(store, policies, validate=Validation(policies, CHECKS).is_right)
    if settings.semantic_cache != "off":
        file = settings.semantic_examples
        examples = caching.read_examples(file) if file else None
        semantic = caching.semantic_cache(exact, make_embedder(settings.semantic_cache), examples)
        if parts:
            parts.semantic_cache(semantic)

    def make(service: Service | CascadedService, model: ModelTuple) -> CachedService:
        return CachedService(service, exact, model, semantic=semantic, split=split_user)

    return make


@on_a_passing_thread
def embeddings_of(name: str) -> Embeddings:
    """The encoder behind /v1/embeddings: a name or a folder."""
    import tokenizers

    from minserve.execution.side_thread import compute_aside
    from minserve.models import minilm
    from minserve.serving.embeddings import Embeddings

    embedder = minilm.MiniLM(name)
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm.resolve(name) / "tokenizer.json"))
    tokenizer.no_truncation()  # NOTE: the file may say to cut, and then every count is too low
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    return Embeddings(name, embedder, count, max_tokens=256, prepare=compute_aside)


def parse_size(text: str) -> int:
    """`512MB`, `2GiB` or plain bytes, in bytes. Raises `ConfigError`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if not found or found[2].upper() not in _UNITS:
        raise ConfigError(f"size {text!r}", "write it as 512MB, 2GiB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].upper()])
