"""`minserve keys`: make, list and revoke the API keys of a server."""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError
from minserve.request import WorkloadClass

keys = typer.Typer(
    help="Make, list and revoke API keys. A running server takes changes of its file in by itself.",
    no_args_is_help=True,
)
File = Annotated[Path, typer.Argument(help="The key file, as `minserve serve --keys` reads it.")]


@keys.command()
def create(
    file: File,
    tenant: Annotated[str, typer.Option(help="Who is billed and kept apart from others.")],
    subject: Annotated[str, typer.Option(help="Which person or program of the tenant it is.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="May be given several times; `operator` may read metrics and traces."),
    ] = None,
    workload_class: Annotated[
        WorkloadClass, typer.Option("--class", help="The kind of work that it sends.")
    ] = WorkloadClass.STANDARD,
    application: Annotated[
        str, typer.Option(help="What it is used by, for prefix scope `application`.")
    ] = "",
    answer_class: Annotated[
        list[str] | None,
        typer.Option(
            help="May be given several times: a class of `minserve cache policy` that requests may "
            "claim, which says who shares their answers; * is all."
        ),
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, help="Most unfinished requests of the tenant.")
    ] = None,
    tokens_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Most tokens a second of the tenant.")
    ] = None,
    max_priority: Annotated[
        int | None, typer.Option(help="Highest priority that a request may ask for.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a key, print it once, and add what is kept of it to FILE.

    Example:

    - `minserve keys create keys.json --tenant kestrel --subject thora --class interactive`
    """
    from minserve.serving.identity import (
        ApiKey,
        Quota,
        hash_of,
        new_secret,
        read_keys,
        write_keys,
    )

    for name, value in (("tenant", tenant), ("subject", subject)):
        if not re.fullmatch(r"[\w.@ -]{1,64}", value):
            raise ConfigError(f"--{name} {value!r}", "use 1 to 64 letters, digits, spaces, .@_-")
    secret = new_secret()
    key = ApiKey(
        f"key-{secrets.token_hex(4)}",
        hash_of(secret),
        tenant,
        subject,
        tuple(role or ()),
        workload_class,
        application,
        Quota(max_concurrent, tokens_per_s, max_priority),
        tuple(answer_class or ()),
    )
    write_keys(file, [*(read_keys(file) if file.exists() else []), key])
    if json:
        return print_json({"id": key.id, "key": secret})
    print(secret)
    print(f"{key.id} for {subject} of {tenant} is in {file}; the key is shown only now",
          file=sys.stderr)  # fmt: skip


@keys.command("list")
def list_keys(file: File, json: Json = False) -> None:
    """Show whom the keys of FILE stand for. The keys themselves are not in it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.serving.identity import read_keys

    found = read_keys(file)
    table = Table("id", "tenant", "subject", "class", "roles", "quota", box=SIMPLE_HEAD)
    for key in found:
        quota = [
            f"{key.quota.max_concurrent} at once" if key.quota.max_concurrent else "",
            f"{key.quota.tokens_per_s:g} tokens/s" if key.quota.tokens_per_s else "",
        ]
        table.add_row(
            key.id,
            key.tenant,
            key.subject,
            key.workload_class,
            ", ".join(key.roles),
            ", ".join(filter(None, quota)) or "none",
        )
    out().print(table)
    if json:
        names = (
            ("id", "tenant", "subject", "workload_class", "roles", "application")
            + ("answer_classes",)
        )  # fmt: skip
        print_json({"keys": [{name: getattr(key, name) for name in names} for key in found]})


@keys.command()
def revoke(
    file: File, id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")]
) -> None:
    """Take a key out of FILE. Requests that are being served are finished."""
    from minserve.serving.identity import read_keys, write_keys

    found = read_keys(file)
    left = [key for key in found if key.id != id]
    if len(left) == len(found):
        raise ConfigError(f"there is no key {id!r} in {file}", "see `minserve keys list`")
    write_keys(file, left)
    print(f"{id} is revoked")
