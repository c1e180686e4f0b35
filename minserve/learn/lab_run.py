"""Runs a notebook's cells in a process of their own, for `labs.check`.

NOTE: the parent starts it isolated (`python -I`), in an empty folder, and stops it in the end. One
line of JSON per cell goes to a file as soon as the cell has ended, so that whoever hangs or ends
the process is known.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import sys
import types
from pathlib import Path
from typing import Any

PRINT_LIMIT = 2_000


def main(job: str) -> None:
    """Run the cells that the file `job` lists, in order, and tell of each in told.jsonl."""
    path = Path(job)
    module = types.ModuleType("__main__")
    module.__dict__["display"] = lambda *values: None
    sys.modules["__main__"] = module  # dataclasses look their module up
    with (path.parent / "told.jsonl").open("w", encoding="utf-8") as file:
        for name, source in json.loads(path.read_text("utf-8")):
            file.write(json.dumps({"starts": name}) + "\n")
            file.flush()
            printed, error = _run(name, source, module.__dict__)
            file.write(json.dumps({"ends": name, "printed": printed, "error": error}) + "\n")
            file.flush()


def _run(name: str, source: str, namespace: dict[str, Any]) -> tuple[str, Any]:
    printed, error = io.StringIO(), None
    try:
        compile(source, name, "exec")
    except SyntaxError:  # notebook magics (%time, !pip) mean nothing here
        source = re.sub(r"(?m)^([ \t]*)(%|!).*$", r"\1pass", source)
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(compile(source, file, "exec"), namespace)
        except BaseException as caught:  # SystemExit too: the next cell may still be right
            error = _describe(caught)
    return printed.getvalue()[:PRINT_LIMIT], error


def _describe(error: BaseException) -> dict[str, Any]:
    places, frame = [], error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file in linecache.cache and file.startswith("<"):
            line = linecache.getline(file, frame.tb_lineno).strip()
            places.append([file.strip("<>"), frame.tb_lineno, line])
        frame = frame.tb_next
    if isinstance(error, SyntaxError) and error.lineno:
        places = [[str(error.filename).strip("<>"), error.lineno, (error.text or "").strip()]]
    try:
        message = str(error)
    except Exception:
        message = ""
    return {"kind": type(error).__name__, "message": message[:500], "places": places}
