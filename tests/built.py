"""A workspace filled with the answers of the lessons, without running the notebooks."""

from __future__ import annotations

import itertools
import linecache
import re
import runpy
from pathlib import Path

from minserve.learn.source import source_of
from minserve.learn.workspace import MINE, Workspace

ROOT = Path(__file__).resolve().parents[1]
LESSONS = runpy.run_path(str(ROOT / "lessons" / "build.py"))
NUMBERS = itertools.count()
PART = re.compile(r'^part\("(\w+)", (\w+)', re.M)


def answers() -> dict[str, tuple[str, str]]:
    """(name in the cell, cell) of every part that a lesson builds, answered."""
    answered, parse = LESSONS["answered"], LESSONS["parse"]
    found = {}
    for source in sorted((ROOT / "solutions").glob("[0-9][0-9]_*.md")):
        for cell in parse(source.read_text(encoding="utf-8")):
            if cell.cell_type == "code" and (match := PART.search(cell.source)):
                found[match[1]] = match[2], answered(cell.source)
    return found


def build(*names: str) -> None:
    """Keep and install the lessons' answers as a learner's own; all of them without names."""
    for part, (name, text) in answers().items():
        if not names or part in names:
            keep(part, name, text)


def keep(part: str, name: str, text: str) -> None:
    """Keep and install `name` of `text` as `part`, unchecked."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("part("))
    file = f"<built-{part}-{next(NUMBERS)}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    scope = {"__name__": "__main__"}
    exec(compile(code, file, "exec"), scope)
    source = source_of(scope[name])
    workspace = Workspace(part)
    workspace.keep(source.name, source.compact)
    workspace.use = MINE
