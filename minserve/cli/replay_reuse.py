"""The reuse part of `minserve replay`: the same questions in four ways, in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minserve.errors import ConfigError


def measure(
    executor: Any,
    model: str,
    second: str,
    embedder: str,
    count: int,
    seed: int,
    on_column: Callable[[str], object],
) -> dict[str, Any]:
    """Serve `count` questions with no reuse, both caches, and a cascade to `second` ("" is none).

    Raises `ConfigError` for fewer than 2 questions, and what loading a model raises.
    """
    from minserve.cli.bench_cache import make_embedder
    from minserve.client import LocalClient
    from minserve.clock import EventLoop, WallClock
    from minserve.engine import Engine
    from minserve.execution.torch_executor import TorchExecutor
    from minserve.northstar import reuse
    from minserve.scheduling.batching import ContinuousBatching

    if count < 2:
        raise ConfigError(f"{count} questions for reuse", "ask for at least 2")
    loop = EventLoop(WallClock())

    def engine(name: str, loaded: Any) -> reuse.Engine:
        client = LocalClient(Engine(loaded, ContinuousBatching()), loop)
        codec = loaded.tokenizer
        return reuse.Engine(
            name, client, codec.encode_chat, codec.decode, lambda text: len(codec.encode(text))
        )

    engines = [engine(model, executor)]
    columns: Sequence[str] = reuse.COLUMNS
    if second:
        engines.append(engine(second, TorchExecutor(second, num_blocks=256)))
    else:
        columns = columns[:-1]
    return reuse.run_all(
        engines, loop, make_embedder(embedder), count, seed, columns, on_column
    ) | {"embedder": embedder}


ROWS = (
    ("answers qualified", lambda c: f"{c['qualified']} of {c['requests']}"),
    ("model calls", lambda c: f"{c['model_calls']:,}"),
    ("prompt tokens", lambda c: f"{c['prompt_tokens']:,}"),
    ("evidence left out", lambda c: f"{c['lines_left_out']:,}"),
    ("output tokens", lambda c: f"{c['output_tokens']:,}"),
    ("cache hits", lambda c: f"{c['hits']:,}"),
    ("stale hits", lambda c: f"{c['stale_hits']:,}"),
    ("false hits", lambda c: f"{c['false_hits']:,}"),
    ("leaks", lambda c: f"{c['leaks']:,}"),
    ("escalations", lambda c: f"{c['escalations']:,}"),
    ("p50 latency", lambda c: f"{1000 * c['p50_s']:,.1f} ms"),
    ("p95 latency", lambda c: f"{1000 * c['p95_s']:,.1f} ms"),
)


def table(report: dict[str, Any]):
    """A column for each way of reuse."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Reuse, {report['requests']} questions one after another"
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    made.add_column("")
    for name in report["columns"]:
        made.add_column(name, justify="right")
    for name, shown in ROWS:
        made.add_row(name, *(shown(column) for column in report["columns"].values()))
    kinds = next(iter(report["columns"].values()))["by_kind"]
    for kind in kinds:
        cells = (c["by_kind"][kind] for c in report["columns"].values())
        made.add_row(
            f"  {kind} qualified", *(f"{c['qualified']} of {c['requests']}" for c in cells)
        )
    return made
