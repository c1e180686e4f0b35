"""Checks a part's source in a fresh process, which a time limit stops.

The process is isolated (`python -I`): it sees neither the notebook's folder nor its variables, so
what passes here also works after a restart. The parent reads what it found from a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import linecache
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from minserve.learn.conformance import CRASHED, STOPPED, Verdict, examine, line_in, suite_of

CELL = "<your cell>"
MAX_PRINTED_LINES = 20
MEMORY_BYTES = 4 << 30
PATIENCE = 6  # times as long as it may compute: on a busy machine right code waits, too
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from minserve.learn.checker import main; main(sys.argv[2])"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the check of a source found; `printed` are the lines that the learner's code printed."""

    verdicts: tuple[Verdict, ...]
    printed: tuple[str, ...] = ()


def check_source(
    part: str, name: str, text: str, limit_s: float, needs_torch: bool = False
) -> Finding:
    """Examine `name` of the source `text` by the suite of `part`.

    It is stopped after `limit_s` seconds of processor time, or after `PATIENCE` times as long on
    the clock.
    """
    with tempfile.TemporaryDirectory(prefix="minserve-check-") as folder:
        job = Path(folder) / "job.json"
        job.write_text(
            json.dumps(
                {
                    "part": part,
                    "name": name,
                    "text": text,
                    "limit_s": limit_s,
                    "needs_torch": needs_torch,
                }
            ),
            encoding="utf-8",
        )
        _run(job, PATIENCE * limit_s + (60 if needs_torch else 20))
        return _read(Path(folder), part, text, limit_s)


def _run(job: Path, limit_s: float) -> None:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", "-c", _BOOTSTRAP, str(root), str(job)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=job.parent,
        start_new_session=True,
    )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass  # main() stops itself earlier; this is for code that even that cannot stop
    finally:
        _kill(process)


def _kill(process: subprocess.Popen) -> None:
    """End the process and whatever it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except OSError:
        pass
    process.wait()


def _read(folder: Path, part: str, text: str, limit_s: float) -> Finding:
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        verdicts = (Verdict(**{**v, "example": tuple(v["example"])}) for v in result["verdicts"])
        return Finding(tuple(verdicts), tuple(result["printed"]))
    except (OSError, ValueError):
        return Finding((_stopped(folder, part, text, limit_s),))


def _stopped(folder: Path, part: str, text: str, limit_s: float) -> Verdict:
    """There is no result: say which rule was being tried, and on which line."""
    suite = suite_of(part) if (folder / "rule.txt").exists() else None
    rule = None
    if suite:
        tried = (folder / "rule.txt").read_text(encoding="utf-8")
        rule = next((r for r in suite.rules if r.name == tried), None)
    stack = folder / "stack.txt"
    dump = stack.read_text(encoding="utf-8", errors="replace") if stack.exists() else ""
    match = re.search(rf'File "{re.escape(CELL)}", line (\d+)', dump)
    line = int(match[1]) if match else 0
    lines = text.splitlines()
    code = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    what = (
        f"still running after {limit_s:g} s, so it was stopped: a loop that does not end?"
        if dump
        else "the checking process ended without an answer: did the code end it, or use up memory?"
    )
    return Verdict(
        step=rule.step if rule else "",
        rule=rule.name if rule else "",
        invariant=rule.invariant if rule else "",
        state=STOPPED,
        what=what,
        hint="What makes the loop end? Print it." if dump else "",
        line=line,
        code=code,
    )


def main(job_path: str) -> None:
    """The fresh process: load the source, try every rule, write the result."""
    folder = Path(job_path).parent
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    if job["needs_torch"]:
        import torch

        torch.set_num_threads(1)
    else:
        _limit_memory()
    sys.breakpointhook = lambda *args, **kwargs: None  # nobody could answer the debugger here
    with open(folder / "stack.txt", "w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(PATIENCE * job["limit_s"], exit=True, file=stack)
        _limit_processor(job["limit_s"], stack)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            verdicts = _examine(job, folder)
        faulthandler.cancel_dump_traceback_later()
    lines = printed.getvalue().splitlines()
    if len(lines) > MAX_PRINTED_LINES:
        lines = [*lines[:MAX_PRINTED_LINES], f"... and {len(lines) - MAX_PRINTED_LINES} lines more"]
    result = {"verdicts": [asdict(v) for v in verdicts], "printed": lines}
    temporary = folder / "result.tmp"
    temporary.write_text(json.dumps(result), encoding="utf-8")
    temporary.replace(folder / "result.json")


def _examine(job: dict[str, Any], folder: Path) -> list[Verdict]:
    suite = suite_of(job["part"])
    try:
        candidate = load(job["name"], job["text"])
    except Exception as error:  # the cell ran in the notebook, but does not run alone
        line = line_in(error, CELL)
        code = linecache.getline(CELL, line).strip() if line else ""
        what = f"{type(error).__name__}: {error}"
        return [Verdict("", "", "", CRASHED, what, line=line, code=code)]
    return examine(
        suite,
        candidate,
        CELL,
        lambda rule: (folder / "rule.txt").write_text(rule.name, encoding="utf-8"),
    )


def load(name: str, text: str, file: str = CELL) -> Any:
    """Run a part's source in a module of its own, and return what it calls `name`."""
    module = ModuleType(f"minserve_part_{name}")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up
    exec(compile(text, file, "exec"), vars(module))
    return vars(module)[name]


def _limit_processor(limit_s: float, stack: TextIO) -> None:
    """Write down where the code is, and end, when it has used so much processor time from now."""
    try:
        import resource
    except ImportError:  # Windows
        faulthandler.dump_traceback_later(limit_s, exit=True, file=stack)
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft_s = math.ceil(used.ru_utime + used.ru_stime + limit_s)
    faulthandler.register(signal.SIGXCPU, file=stack, chain=True)  # then the process ends
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft_s, soft_s + 2))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
