"""`minserve worker`: runs the handlers of durable jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from minserve.cli.jobs import DEFAULT_STORE, Store, open_store
from minserve.cli.server_url import http_client
from minserve.errors import ConfigError


def worker(
    store: Store = DEFAULT_STORE,
    concurrency: Annotated[int, typer.Option(help="Handlers at a time, a process each.")] = 1,
    lease: Annotated[
        float, typer.Option(help="Seconds after a worker's death until its jobs are taken over.")
    ] = 30.0,
    kinds: Annotated[str | None, typer.Option(help="Only these kinds, with commas.")] = None,
    model: Annotated[
        str, typer.Option(help="The engine in each handler's process; `none` for no engine.")
    ] = "nano",
    url: Annotated[str | None, typer.Option(help="A server to use instead of --model.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="MINSERVE_API_KEY", help="API key for --url.")
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds that running jobs get at the end.")] = 30.0,
    metrics_port: Annotated[int, typer.Option(help="Prometheus metrics here; 0 for none.")] = 0,
) -> None:
    """Work on durable jobs until Ctrl-C or SIGTERM; then let what runs finish.

    Start as many as you like, on as many machines as reach the store. Kill one, and its jobs are
    taken over when their leases run out.

    Examples:

    - `minserve worker`

    - `minserve worker --store postgresql://app@db/jobs --concurrency 4 --metrics-port 9100`

    - `minserve worker --kinds nap --model none`
    """
    import signal
    import sys

    from minserve.jobs.worker import Worker

    if url is not None:
        http_client(url, key, 1).close()  # says at once what is wrong with them
    opened = open_store(store)
    needs_engine = model != "none" or url is not None
    made = Worker(
        opened,
        concurrency=concurrency,
        lease_s=lease,
        drain_s=drain,
        kinds=kinds.split(",") if kinds else None,
        setup="minserve.cli.engines:connect" if needs_engine else None,
        settings={"model": model, "url": url, "api_key": key},
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: made.stop())
    if metrics_port:
        _serve_metrics(made, metrics_port)
    print(f"worker {made.name} waits for jobs in {opened.safe_url}", file=sys.stderr)
    made.run()
    print(f"worker {made.name}: {dict(made.tally)}", file=sys.stderr)


def _serve_metrics(worker, port: int) -> None:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Figures:
        """Read when asked for; no tenant is ever a label."""

        def collect(self):
            ended = CounterMetricFamily(
                "minserve_jobs", "What this worker's jobs came to.", labels=["outcome"]
            )
            for outcome, count in worker.tally.items():
                ended.add_metric([outcome], count)
            yield ended
            yield GaugeMetricFamily("minserve_jobs_running", "At work.", worker.num_running)
            counts = worker.store.counts(open_only=True)
            depth = GaugeMetricFamily("minserve_jobs_open", "In the store.", labels=["state"])
            for state, count in counts.by_state.items():
                depth.add_metric([state], count)
            yield depth
            yield GaugeMetricFamily(
                "minserve_jobs_oldest_seconds", "Age of the oldest queued.", counts.oldest_queued_s
            )

    registry = CollectorRegistry()
    registry.register(Figures())
    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot show metrics on port {port}: {error}", "choose another --metrics-port"
        ) from None
