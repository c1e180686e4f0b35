"""`minserve cache`: what separates two requests, what may be cached, and events that invalidate."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError, DataNotFound

cache = typer.Typer(
    name="cache",
    help="Look into the response cache: keys, the policy table, invalidation.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@cache.command()
def explain(a: Path, b: Path, json: Json = False) -> None:
    """Say which fields separate two requests, or that they share one answer.

    Each file is a JSON object with identity, scope, answer_class, messages and model, and what
    else `minserve.reuse.key.Query` has.

    Example: `minserve cache explain a.json b.json`
    """
    from minserve.reuse.key import CanonicalKey, explain, from_dict, partition_of

    one, other = (from_dict(_read(path)) for path in (a, b))
    key_of, fields = CanonicalKey().of, explain(one, other)
    say = out().print
    if not fields:
        say(f"Nothing separates them: both have the key {key_of(one)}.", markup=False)
    for path, x, y in fields:
        say(f"{path}: {_shown(x)} and {_shown(y)}", markup=False)
    if partition_of(one) != partition_of(other):
        say("They live in different partitions: neither ever sees the other's answers.")
    if json:
        report = {
            "same_key": not fields,
            "same_partition": partition_of(one) == partition_of(other),
            "keys": [key_of(one), key_of(other)],
            "fields": [{"field": path, "a": _plain(x), "b": _plain(y)} for path, x, y in fields],
        }
        print_json(report)


@cache.command()
def policy(json: Json = False) -> None:
    """Print the table of what may be cached, for whom and how long.

    Example: `minserve cache policy`
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.northstar.caching import policy_table

    policies = policy_table()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (
        "class",
        "scope",
        "fresh for",
        "evidence",
        "semantic",
        "sampled",
        "check",
        "why",
    ):
        table.add_column(column, no_wrap=column != "why")
    for p in policies:
        never = "[bold]never[/bold]"
        fresh = f"{p.freshness_s:,.0f} s" if p.freshness_s else never
        evidence = f"{p.evidence_s:,.0f} s" if p.evidence_s else "-"
        yes = {True: "yes", False: "no"}
        may = yes[p.semantic], yes[p.sampled]
        table.add_row(p.name, p.scope.value, fresh, evidence, *may, p.check or "-", p.why)
    out().print(table)
    if json:
        print_json({"classes": policies.as_dict()})


@cache.command()
def invalidate(
    event: Annotated[str, typer.Argument(help="A JSON object with the kind of the event.")],
    store: Annotated[str, typer.Option(help="sqlite:PATH or redis://HOST:PORT.")],
    json: Json = False,
) -> None:
    """Report a change to a shared cache: what rests on it is removed, on every server.

    Kinds: policy_changed, source_changed, permission_changed, data_deleted, model_changed,
    template_changed. A server's own memory is reached by its /admin/cache/events instead.

    Example: `minserve cache invalidate '{"kind": "source_changed", "source": "faq/7"}' --store
    sqlite:cache.db`
    """
    from minserve.reuse.invalidation import from_dict
    from minserve.reuse.stores import open_store

    try:
        told = from_dict(jsonlib.loads(event))
    except ValueError as error:
        raise ConfigError(f"the event is not JSON: {error}", "quote it for the shell") from None
    opened = open_store(store)
    if opened is None or store == "memory":
        raise ConfigError(f"{store} is nobody else's", "give sqlite:PATH or redis://HOST:PORT")
    try:
        num_removed = opened.invalidate(told.tags())
    finally:
        opened.close()
    out().print(f"{told.kind}: {num_removed} entries removed.")
    if json:
        print_json({"kind": told.kind, "removed": num_removed})


def _read(path: Path) -> Any:
    try:
        return jsonlib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataNotFound(f"cannot read {path}: {error.strerror}", "check the path") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return jsonlib.dumps(_plain(value), ensure_ascii=False, default=str)
