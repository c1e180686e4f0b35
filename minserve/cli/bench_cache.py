"""`minserve bench cache`: what the caches cost, and how often the semantic one is wrong."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json

MINILM, DEFAULT = "minilm", "default"


def cache(
    embedder: Annotated[
        str,
        typer.Option(help="`minilm` (80 MB, fetched once), `default`, or a folder or hub id."),
    ] = MINILM,
    redis: Annotated[str, typer.Option(help="Measure this Redis too: redis://HOST:PORT.")] = "",
    entries: Annotated[int, typer.Option(help="Entries of the largest memory store.")] = 1_000_000,
    quality: Annotated[bool, typer.Option(help="Ask Banking77 and the authored pairs.")] = True,
    speed: Annotated[bool, typer.Option(help="Time look-ups.")] = True,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw hit rate against false hits here.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure exact and semantic look-ups, and the semantic cache's false hits.

    Speed: the store and its checks, key building apart, with few entries and with a million.
    Quality: Banking77, half cached and half asked, all calibrated on the cached half (its folder
    is named by MINSERVE_BANKING77), and Northstar's authored pairs of near misses.

    Examples:

    - `minserve bench cache`

    - `minserve bench cache --no-speed --embedder default`
    """
    from minserve.cli import machine

    report: dict[str, Any] = {"machine": machine.describe()}
    if speed:
        report["exact"] = _exact(entries, redis)
        report["semantic_lookup"] = _semantic()
    if quality:
        report |= _quality(embedder)
        if picture is not None and report.get("banking77"):
            _draw(report["banking77"]["curve"], embedder, picture)
            report["picture"] = str(picture)
    _print(report)
    if json:
        print_json(report)


def _queries(count: int):
    from minserve.request import Identity
    from minserve.reuse.key import Decoding, Message, ModelTuple, Query, Scope

    one = Query(
        identity=Identity("alder", "anna"),
        scope=Scope.TENANT,
        answer_class="policy",
        messages=(Message("system", "You answer from the evidence."), Message("user", "?")),
        model=ModelTuple("nano", "r1"),
        decoding=Decoding(temperature=0.0, max_tokens=48),
    )
    return [
        replace(one, messages=(one.messages[0], Message("user", f"Question number {number}?")))
        for number in range(count)
    ]


def _per_second(call: Callable[[int], object], count: int, repeats: int = 3) -> float:
    """The best of some rounds of `count` calls: what the code can do undisturbed."""
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        for number in range(count):
            call(number)
        best = max(best, count / (time.perf_counter() - began))
    return best


def _exact(num_entries: int, redis: str) -> dict[str, Any]:
    """Look-ups per second of stored answers, with every check of the exact cache."""
    from minserve.northstar.caching import policy_table
    from minserve.reuse.invalidation import tags_of
    from minserve.reuse.key import CanonicalKey, partition_of
    from minserve.reuse.redis_store import RedisStore
    from minserve.reuse.response import Answer, ExactCache, Source
    from minserve.reuse.stores import MemoryStore, SqliteStore, Store

    count = 2_000
    queries, policies = _queries(count), policy_table()
    keys = [CanonicalKey().of(query) for query in queries]
    by_query = {id(query): key for query, key in zip(queries, keys, strict=True)}
    built = SimpleNamespace(of=lambda query: by_query[id(query)])
    partition = partition_of(queries[0])
    answer = Answer("The refund window is 34 days.", sources=(Source("faq/1", "v1"),))
    tags = tags_of(queries[0], ["faq/1"])

    def fill(store, size: int) -> None:
        filled = ExactCache(store, policies)
        for query in queries:
            if not filled.put(query, answer, 0.0, filled.num_events()):
                raise RuntimeError("an answer was not stored")
        text = store.get(partition, keys[0], 0.0)
        for number in range(size - count):
            key = f"{number:064x}"
            store.put(partition, key, text, tags=tags, expires_s=3600.0, now_s=0.0, since=0)

    def measure(store, size: int) -> dict[str, float]:
        fill(store, size)
        # Keys are built before: their cost stands apart.
        full = ExactCache(store, policies, beta=0.0, key_of=built)
        return {
            "entries": store.size()[0],
            "store_gets_per_s": _per_second(lambda n: store.get(partition, keys[n], 1.0), count),
            "lookups_per_s": _per_second(lambda n: full.look_up(queries[n], 1.0), count),
        }

    found: dict[str, Any] = {
        "keys_per_s": _per_second(lambda n: CanonicalKey().of(queries[n]), count),
        "partitions_per_s": _per_second(lambda n: partition_of(queries[n]), count),
    }
    store: Store
    for size in (count, num_entries):
        store = MemoryStore(max_entries=num_entries, max_bytes=4 << 30)
        found.setdefault("memory", []).append(measure(store, size))
    with tempfile.TemporaryDirectory() as folder:
        for size in (count, min(100_000, num_entries)):
            store = SqliteStore(Path(folder) / f"{size}.db", max_entries=num_entries)
            found.setdefault("sqlite", []).append(measure(store, size))
            store.close()
    if redis:
        store = RedisStore(redis, prefix="{minserve-bench}")
        found["redis"] = [measure(store, count)]
        for key in keys:
            store.remove(partition, key)
        store.close()
    return found


def _semantic(num_entries: int = 100_000, dim: int = 384) -> dict[str, float]:
    """Milliseconds to find the nearest entries on a shelf, the embedding apart."""
    import numpy as np

    from minserve.reuse.embedding import unit
    from minserve.reuse.semantic import CANDIDATES, Entry, Shelf

    rng = np.random.default_rng(0)
    shelf = Shelf(dim, num_entries)
    for number, vector in enumerate(unit(rng.standard_normal((num_entries, dim)).astype("f4"))):
        shelf.add(vector, Entry(str(number), "?", f"intent {number % 77}"))
    asked = unit(rng.standard_normal((20, dim)).astype("f4"))
    rate = _per_second(lambda n: shelf.nearest(asked[n], "intent 5", CANDIDATES), len(asked), 5)
    return {"entries": num_entries, "dim": dim, "lookup_ms": 1000 / rate}


def _quality(name: str) -> dict[str, Any]:
    from minserve.northstar import caching

    embedder = make_embedder(name)
    found: dict[str, Any] = {"embedder": name, "pairs": caching.measure_pairs(embedder)}
    file = caching.banking_file()
    found["banking77"] = caching.measure_banking(embedder, file=file) if file else None
    return found


def make_embedder(name: str):
    """`default`, `minilm`, or the folder or hub id of an embedding model."""
    if name == DEFAULT:
        from minserve.reuse.embedding import HashedNgrams

        return HashedNgrams()
    from minserve.models.minilm import MiniLM

    return MiniLM(name)


def _draw(curve: list[dict[str, float]], name: str, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    hits = [100 * point["hit_rate"] for point in curve]
    # Okabe and Ito's blue and vermillion: told apart with any colour vision, and by line style.
    axes.plot(hits, [100 * p["false_hit_rate"] for p in curve], color="#0072B2", label="measured")
    axes.plot(
        hits,
        [100 * point["false_hit_rate_upper95"] for point in curve],
        color="#D55E00",
        linestyle="--",
        label="95 % upper bound",
    )
    axes.axhline(1, color="#555555", linewidth=0.8, linestyle=":")
    axes.set(
        title=f"Banking77: more hits, more of them wrong ({name})",
        xlabel="questions answered from the cache, %",
        ylabel="of these with another intent, %",
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    about = "False hits rise with the hit rate; at 35 % hits measured and upper bound are shown."
    figure.savefig(file, dpi=110, metadata={"Description": about})
    pyplot.close(figure)


def _print(report: dict[str, Any]) -> None:
    say = out().print
    if exact := report.get("exact"):
        say(f"Keys: {exact['keys_per_s']:,.0f} per second, apart from what follows.")
        for kind in ("memory", "sqlite", "redis"):
            for row in exact.get(kind, ()):
                say(
                    f"Exact look-ups, {kind}, {row['entries']:,} entries: "
                    f"{row['lookups_per_s']:,.0f} per second with all checks "
                    f"({row['store_gets_per_s']:,.0f} of the store alone)."
                )
        lookup = report["semantic_lookup"]
        say(
            f"Semantic look-up, {lookup['entries']:,} entries of {lookup['dim']}: "
            f"{lookup['lookup_ms']:.1f} ms."
        )
    if pairs := report.get("pairs"):
        kinds = pairs["by_kind"]
        told = ", ".join(f"{k} {v['num_hits']} of {v['num_asked']}" for k, v in kinds.items())
        say(f"Northstar pairs, hits: {told}. False hits: {pairs['false_hits']}.")
        if banking := report.get("banking77"):
            for name, row in (
                ("half asked", banking),
                ("halves exchanged", banking["halves_exchanged"]),
                ("both", banking["both"]),
            ):
                say(
                    f"Banking77, {name}: {row['hit_rate']:.1%} hits, of them "
                    f"{row['false_hit_rate']:.2%} wrong (95 % sure: at most "
                    f"{row['false_hit_rate_upper95']:.2%})."
                )
            if drawn := banking["random_halves"]:
                hit, false = drawn["hit_rate"], drawn["false_hit_rate"]
                say(
                    f"Banking77, {drawn['count']} random halves: {hit['mean']:.1%} hits "
                    f"({hit['min']:.1%} to {hit['max']:.1%}), {false['mean']:.2%} wrong "
                    f"({false['min']:.2%} to {false['max']:.2%}); at most 1 % wrong at 35 % "
                    f"hits or more in {drawn['num_both']}."
                )
        else:
            say("Banking77 is not on this machine: name its folder in MINSERVE_BANKING77.")
