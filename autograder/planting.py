"""Faults: comment lines in a source notebook that the build uncomments for the learner.

    ### BEGIN SOLUTION
    right lines
    ### END SOLUTION
    ### BEGIN FAULT a
    # wrong lines of variant a
    ### END FAULT

A SOLUTION region followed by FAULT regions is one site. Building variant `a` replaces the
solution by its lines; a variant that has no fault at a site keeps the solution's lines there, and
a FAULT without a label belongs to every variant. A FAULT region may also stand alone.
"""

from __future__ import annotations

import re

from minserve.errors import ConfigError

MARK = re.compile(r"^\s*### (BEGIN|END) (SOLUTION|FAULT)\s*(\w*)\s*$")
COMMENT = re.compile(r"^(\s*)# ?(.*)$")


def has_faults(source: str) -> bool:
    return "### BEGIN FAULT" in source


def plant(source: str, variant: str | None) -> str:
    """`source` with the faults of `variant`; with None, the solution without its markers."""
    return _plant(source, variant)[0]


def replaced(source: str, variant: str) -> list[str]:
    """The pieces of solution that `variant` replaces by faults that do not contain them."""
    return _plant(source, variant)[1]


def _plant(source: str, variant: str | None) -> tuple[str, list[str]]:
    pieces: list[str] = []
    lines: list[str] = []
    site: list[str] = []  # the solution's lines, kept back until we know of no fault for it
    region, label = "", ""
    fault: list[str] = []
    is_replaced = False

    def close_site() -> None:
        nonlocal site, is_replaced
        if is_replaced:
            piece = "\n".join(site)
            pieces.extend([piece] if piece and piece not in "\n".join(fault) else [])
        else:
            lines.extend(site)
        site, is_replaced = [], False

    for number, line in enumerate(source.split("\n"), start=1):
        mark = MARK.match(line)
        if mark is None:
            if region == "SOLUTION":
                site.append(line)
            elif region == "FAULT":
                fault.append(_uncommented(line, number))
            else:
                close_site()
                lines.append(line)
            continue
        begins, kind, name = mark[1] == "BEGIN", mark[2], mark[3]
        if begins == bool(region) or (not begins and kind != region):
            raise ConfigError(f"line {number}: {line.strip()!r} does not belong here")
        if begins and kind == "SOLUTION":
            close_site()
        if begins:
            region, label, fault = kind, name, []
            continue
        if region == "FAULT" and variant is not None and label in ("", variant):
            lines.extend(fault)
            is_replaced = True
        region = ""
    if region:
        raise ConfigError(f"a {region} region is never closed", "add its ### END line")
    close_site()
    return "\n".join(lines), pieces


def _uncommented(line: str, number: int) -> str:
    comment = COMMENT.match(line)
    if comment is None:
        raise ConfigError(f"line {number} of a FAULT is no comment: {line.strip()!r}")
    return (comment[1] + comment[2]).rstrip()
