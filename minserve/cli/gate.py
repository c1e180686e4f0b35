"""`minserve gate`: may the new one be shipped? Compares two reports, and exits 1 if it may not."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.errors import ConfigError, DataNotFound

BREADTH = {"subject": 0, "tenant": 1, "public": 2}


def gate(
    base: Annotated[Path, typer.Argument(help="Report of what runs now.")],
    new: Annotated[Path, typer.Argument(help="Report of what is to run.")],
    tolerance: Annotated[
        float, typer.Option(help="By how much the share of qualified answers may fall.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Compare two reports of `minserve replay --json`; exit 1 if NEW is worse where it may not be.

    Worse is: a lower share of qualified answers in any row or column, any leak, more stale or
    false hits, a class of answers that more people share or that was never cached and now is, or a
    figure of these that BASE has and NEW lacks. Faster does not make up for any of it.

    Example: `minserve replay --reuse 100 --json | tail -1 > new.json` and then
    `minserve gate base.json new.json`
    """
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance}", "use a share from 0 to below 1")
    reasons = list(compare(_read(base), _read(new), tolerance))
    for reason in reasons:
        out().print(f"[bold]No:[/bold] {reason}.")
    if not reasons:
        out().print("Yes: quality, isolation and authorisation are no worse.")
    if json:
        print_json({"passes": not reasons, "reasons": reasons})
    if reasons:
        raise typer.Exit(1)


def compare(base: dict[str, Any], new: dict[str, Any], tolerance: float = 0.0) -> Iterator[str]:
    """Why `new` may not be shipped; nothing if it may."""
    before, after = _quality(base), _quality(new)
    if not before and not after:
        yield "neither report checked any answer, so nothing is known about quality"
    for name, share in before.items():
        if name not in after:
            yield f"{name}: quality was checked in BASE and is not in NEW"
        elif after[name] < share - tolerance - 1e-12:
            yield f"{name}: {after[name]:.1%} of the answers are qualified, before {share:.1%}"
    for name, column in _columns(new).items():
        leaks = column.get("leaks")
        if leaks != 0:
            yield f"{name}: {leaks} answers leaked to somebody who may not have them"
        for what in ("stale_hits", "false_hits"):
            then = _columns(base).get(name, {}).get(what, 0)
            if column.get(what, 0) > then:
                yield f"{name}: {column[what]} {what.replace('_', ' ')}, before {then}"
    for name in _columns(base).keys() - _columns(new).keys():
        yield f"{name}: leaks were counted in BASE and are not in NEW"
    yield from _authorisation(base, new)


def _authorisation(base: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    before = base.get("reuse", {}).get("policy", {})
    after = new.get("reuse", {}).get("policy", {})
    if before and not after:
        yield "the policy table is in BASE and not in NEW"
    for name, policy in after.items():
        old = before.get(name, {"scope": "subject", "freshness_s": 0, "semantic": False})
        if not before or not policy["freshness_s"]:
            continue
        if BREADTH.get(policy["scope"], 9) > BREADTH[old["scope"]]:
            yield f"class {name}: shared by {policy['scope']}, before by {old['scope']}"
        if not old["freshness_s"]:
            yield f"class {name}: cached, and never was before"
        if policy["semantic"] and not old["semantic"]:
            yield f"class {name}: answers other wordings, and never did before"
        if old.get("check") and not policy.get("check"):
            yield f"class {name}: kept unchecked, before checked as {old['check']}"
    was, now = (r.get("reuse", {}).get("authorisation", {}) for r in (base, new))
    for name, value in was.items():
        if value is True and now.get(name) is not True:
            yield f"authorisation: {name.replace('_', ' ')} no longer holds"


def _quality(report: dict[str, Any]) -> dict[str, float]:
    """The share of qualified answers, by row of the replay and column of reuse."""
    found = {}
    for row in report.get("rows", []):
        checked = row.get("quality") or {}
        if checked.get("num_qualified") is not None and checked.get("num_requests"):
            name = f"{row['policy']}, prefix reuse {'on' if row['prefix_reuse'] else 'off'}"
            found[name] = checked["num_qualified"] / checked["num_requests"]
    for name, column in _columns(report).items():
        found[name] = column["qualified"] / column["requests"] if column["requests"] else 0.0
        for kind, some in column.get("by_kind", {}).items():
            found[f"{name}, {kind}"] = some["qualified"] / some["requests"]
    return found


def _columns(report: dict[str, Any]) -> dict[str, Any]:
    return report.get("reuse", {}).get("columns", {})


def _read(path: Path) -> dict[str, Any]:
    """The report on the last line of a file, or the whole file."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DataNotFound(f"cannot read {path}: {error.strerror}", "check the path") from None
    for candidate in (text, text.splitlines()[-1] if text else ""):
        try:
            report = jsonlib.loads(candidate)
        except ValueError:
            continue
        if isinstance(report, dict):
            return report
    raise ConfigError(f"{path} holds no JSON report", "write one with minserve replay --json")
