"""`minserve cluster`: more than one replica, on Ray Serve."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minserve.cli import server_options as opt
from minserve.cli.console import Json, Model, out, print_json
from minserve.errors import ConfigError

if TYPE_CHECKING:
    from minserve.benchmarks.cluster import Cluster
    from minserve.cli.served_engine import EngineSettings
    from minserve.routing.cluster import ClusterSettings
    from minserve.serving.cluster_engine import ClusterEngine
    from minserve.serving.cluster_gateway import ClusterGateway
    from minserve.serving.identity import KeyRing
    from minserve.serving.server import Limits

cluster = typer.Typer(
    help="Several replicas behind one address, on Ray Serve (pip install minserve[cluster]).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_numbers = itertools.count()
OBJECT_STORE_BYTES = 100 * 2**20


@cluster.command()
def up(
    model: Model = "nano",
    replicas: Annotated[int, typer.Option(help="Replicas; the fewest, if they are scaled.")] = 2,
    max_replicas: Annotated[
        int, typer.Option(help="Scale up to this many by queued tokens, queue age, KV pressure.")
    ] = 0,
    warm: Annotated[
        int, typer.Option(help="Replicas beyond what the load needs, kept ready for a burst.")
    ] = 0,
    tokens_per_s: Annotated[
        float, typer.Option(help="What one replica computes, for scaling; see `minserve bench`.")
    ] = 500.0,
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster to deploy to, such as `auto`; by default this machine."),
    ] = None,
    cpus_each: Annotated[float, typer.Option(help="CPUs that Ray reserves per replica.")] = 0.5,
    routing: Annotated[str, typer.Option(help="prefix or random.")] = "prefix",
    num_blocks: Annotated[int, typer.Option(help="KV blocks of 16 tokens, per replica.")] = 1024,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    keys: opt.Keys = None,
    demo_keys: opt.DemoKeys = False,
    response_cache: Annotated[
        str, typer.Option(help="A store that all replicas reach: redis://HOST:PORT, or off.")
    ] = "off",
    jobs: Annotated[
        str | None, typer.Option(help="Store of durable jobs: postgresql://... for many machines.")
    ] = None,
) -> None:
    """Start replicas and one gateway before them, until Ctrl-C or SIGTERM.

    The gateway speaks the API of `minserve serve`: keys, limits and errors are the same.

    Examples:

    - `minserve cluster up --replicas 2`

    - `minserve cluster up --replicas 2 --max-replicas 8 --warm 1`

    - on a running Ray cluster: `minserve cluster up --address auto --replicas 16 --keys keys.json
    --host 0.0.0.0 --response-cache redis://cache:6379 --jobs postgresql://app@db/minserve`
    """
    from minserve.cli.callers import key_ring
    from minserve.cli.served_engine import EngineSettings
    from minserve.serving import logs
    from minserve.serving.app import create_app
    from minserve.serving.run import bind, run, url_of

    _check(replicas, max_replicas, routing, response_cache)
    logs.set_up("text", "info")
    ring = key_ring(keys, demo_keys)
    listener = bind(host, port, ring is not None)
    engine_settings = EngineSettings(model, num_blocks=num_blocks, response_cache=response_cache)
    from minserve.routing.cluster import ClusterSettings

    settings = ClusterSettings(
        replicas, max_replicas, warm, tokens_per_s, routing=routing, num_cpus=cpus_each
    )
    console = out()
    with ray_running(address, max(replicas, max_replicas) * cpus_each):
        console.print(f"starting {replicas} replicas of {model} ...")
        server, _ = make_gateway(engine_settings, settings, ring)
        store = None
        if jobs is not None:
            from minserve.cli.jobs import open_store

            store = open_store(jobs)
        run(
            create_app(server, store),
            server,
            listener,
            lambda: console.print(f"listening on [bold]{url_of(listener)}[/]; Ctrl-C stops it"),
        )


@cluster.command()
def demo(
    model: Model = "nano",
    rounds: Annotated[int, typer.Option(help="Rounds over the prefixes, for routing.")] = 20,
    as_json: Json = False,
) -> None:
    """Show on real replicas what a cluster keeps to: routing, death, scale-in, isolation.

    Starts Ray with two replicas on this machine, a gateway, and Redis if it is installed; needs a
    minute or two. Exit code 1 if a property does not hold.

    Example: `minserve cluster demo --json`
    """
    from minserve.benchmarks import cluster as measured
    from minserve.cli.callers import demo_keys
    from minserve.cli.temporary_redis import temporary_redis
    from minserve.northstar.corpus import load_demo_keys
    from minserve.serving.identity import KeyRing

    _require_ray()
    told = (lambda text: None) if as_json else out().print
    secrets = load_demo_keys()
    owner, colleague = [name for name in secrets if name.startswith("kestrel-")][:2]
    stranger = next(name for name in secrets if name.startswith("alder-"))
    keys = {
        "owner": secrets[owner], "colleague": secrets[colleague], "stranger": secrets[stranger],
    }  # fmt: skip
    figures: dict[str, Any] = {}
    with ray_running(None, 2.0), temporary_redis() as redis_url:
        told("routing: one replica, two by prefix, two at random ...")
        start = functools.partial(running, model)
        figures |= measured.routing(start, rounds=rounds)
        told("two tenants on two replicas ...")
        ring = KeyRing(demo_keys())
        store = redis_url or "off"
        with running(model, num_replicas=2, keys=ring, response_cache=store) as two:
            figures |= measured.isolation(two, keys)
            if redis_url:
                figures |= measured.response_cache(two, keys)
        told("a replica is killed, then one is taken away ...")
        with running(model, num_replicas=2, num_blocks=512) as two:
            figures |= measured.death(two)
            figures |= measured.scale_in(two)
    figures["redis"] = bool(redis_url)
    holds = [name for name, value in figures.items() if value is True]
    fails = [name for name, value in figures.items() if value is False and name != "redis"]
    if not as_json:
        for name, value in figures.items():
            told(f"{name.replace('_', ' '):36} {value}")
    print_json(figures | {"model": model, "holds": holds, "fails": fails})
    if fails:
        raise typer.Exit(1)


def _check(replicas: int, max_replicas: int, routing: str, response_cache: str) -> None:
    if replicas < 1:
        raise ConfigError(f"--replicas {replicas}", "use 1 or more")
    if 0 != max_replicas < replicas:
        raise ConfigError(
            f"--max-replicas {max_replicas} is below --replicas {replicas}",
            "leave it out for a fixed number",
        )
    if routing not in ("prefix", "random"):
        raise ConfigError(f"routing {routing!r}", "use prefix or random")
    if response_cache == "memory" or response_cache.startswith("sqlite:"):
        raise ConfigError(
            f"--response-cache {response_cache} is each replica's own", "use redis://HOST:PORT"
        )
    _require_ray()


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("Ray is not installed", 'pip install "minserve[cluster]"')


@contextlib.contextmanager
def ray_running(address: str | None, num_cpus: float) -> Iterator[None]:
    """Ray on this machine, or a client of the cluster at `address`; Serve without its proxy.

    SIGTERM ends it as Ctrl-C does.
    """
    for name, value in (
        ("RAY_USAGE_STATS_ENABLED", "0"),
        ("RAY_AUTH_MODE", "disabled"),
        ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
    ):
        os.environ.setdefault(name, value)
    import logging

    import ray
    from ray import serve

    for name in ("ray", "ray.serve"):  # what matters of a replica's death, the gateway says itself
        logging.getLogger(name).setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        options |= {"address": address}
    else:
        options |= {
            "num_cpus": max(4, int(num_cpus) + 2),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    with _sigterm_as_ctrl_c() as take_again:
        ray.init(**options)
        try:
            take_again()  # NOTE: Ray has taken the signal, to print a trace of its native code
            serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
            yield
        finally:
            serve.shutdown()
            ray.shutdown()


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[Callable[[], Any]]:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def take() -> Any:
        return signal.signal(signal.SIGTERM, stop)

    if threading.current_thread() is not threading.main_thread():  # no signal arrives there
        yield lambda: None
        return
    before = take()
    try:
        yield take
    finally:
        signal.signal(signal.SIGTERM, before)


def make_gateway(
    engine: EngineSettings,
    settings: ClusterSettings,
    keys: KeyRing | None = None,
    limits: Limits | None = None,
) -> tuple[ClusterGateway, ClusterEngine]:
    """Deploy the replicas and make the gateway before them, to be run. Ray must be running."""
    from dataclasses import replace

    from minserve.cli.served_engine import BLOCK_SIZE, make_server, names_of
    from minserve.models.config import ModelConfig
    from minserve.models.registry import resolve
    from minserve.models.tokenizer import Tokenizer
    from minserve.routing.cluster import deploy
    from minserve.serving.calls import ServedModel
    from minserve.serving.cluster_engine import ClusterEngine
    from minserve.serving.cluster_gateway import ClusterGateway

    folder = resolve(engine.model)
    blocks = engine.num_blocks or settings.num_blocks
    settings = replace(settings, num_blocks=blocks, block_size=BLOCK_SIZE)
    handle = deploy(functools.partial(make_server, engine), settings)
    told = handle.options(method_name="describe").remote().result(timeout_s=120)
    served = ServedModel(
        names=names_of(folder, engine),
        root=str(folder),
        tokenizer=Tokenizer(folder),
        vocab_size=ModelConfig.from_folder(folder).vocab_size,
        max_model_len=told["max_model_len"],
    )
    cluster_engine = ClusterEngine(handle, told["namespace"], told["block_size"])
    return ClusterGateway(served, cluster_engine, keys, limits=limits), cluster_engine


@contextlib.contextmanager
def running(
    model: str,
    num_replicas: int,
    num_blocks: int = 256,
    routing: str = "prefix",
    keys: KeyRing | None = None,
    response_cache: str = "off",
    jobs: Any = None,
) -> Iterator[Cluster]:
    """A cluster with its gateway on a free port of this machine. Ray must be running."""
    from ray import serve

    from minserve.benchmarks.cluster import gateway
    from minserve.cli.served_engine import EngineSettings
    from minserve.routing import cluster as deployed
    from minserve.routing import wire

    engine = EngineSettings(model, num_blocks=num_blocks, response_cache=response_cache)
    # NOTE: Ray keeps a handle and its router for each name: another name, another router.
    settings = deployed.ClusterSettings(
        num_replicas, routing=routing, name=f"minserve-{next(_numbers)}"
    )
    server, cluster_engine = make_gateway(engine, settings, keys)
    try:
        scale_to = functools.partial(_scale_to, engine, settings)
        with gateway(server, cluster_engine, keys is not None, scale_to, jobs) as made:
            made.await_replicas(num_replicas)
            yield made
    finally:
        wire.routers.clear()
        serve.delete(settings.name)


def _scale_to(engine: EngineSettings, settings: ClusterSettings, count: int) -> None:
    from dataclasses import replace

    from minserve.cli.served_engine import make_server
    from minserve.routing.cluster import deploy

    deploy(functools.partial(make_server, engine), replace(settings, num_replicas=count))
