"""The shape of the house: who may import whom, how light the core starts, how small it stays."""

from __future__ import annotations

import ast
import io
import json
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "minserve"

NOT_CORE = (
    *("admission.py", "overload.py", "quota.py", "rates.py", "reservation.py"),
    *("estimate.py", "expected.py"),
)
"""An engine runs without them: what guards a service, and the arithmetic of memory."""
CORE_FILES = sorted(
    [
        *(PACKAGE / name for name in ("request.py", "events.py", "clock.py", "engine.py")),
        *(p for p in (PACKAGE / "kv").rglob("*.py") if p.name not in NOT_CORE),
        *(p for p in (PACKAGE / "scheduling").rglob("*.py") if p.name not in NOT_CORE),
        PACKAGE / "execution" / "executor.py",
        PACKAGE / "execution" / "simulated.py",
    ]
)
MAX_CORE_LINES = 1_500

LIGHT_MODULES = [
    "minserve",
    "minserve.engine",
    "minserve.scheduling.admission",
    "minserve.scheduling.reservation",
    "minserve.scheduling.scheduler",
    "minserve.execution.simulated",
]
HEAVY = ["torch", "transformers", "tokenizers", "matplotlib", "httpx", "requests", "starlette"]
MAX_IMPORT_S = 0.3


def import_afresh(module: str) -> tuple[float, list[str]]:
    """Import `module` in a new process: seconds it took, and which heavy packages it pulled in."""
    program = (
        "import importlib, json, sys, time\n"
        "began = time.perf_counter()\n"
        f"importlib.import_module({module!r})\n"
        "took_s = time.perf_counter() - began\n"
        f"print(json.dumps([took_s, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    took_s, heavy = json.loads(done.stdout)
    return took_s, heavy


def test_import_contracts_hold():
    lint_imports = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert lint_imports, "lint-imports is not installed beside this Python: run `make test`"
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_core_starts_without_torch_or_http(module):
    _, heavy = import_afresh(module)
    assert heavy == [], f"importing {module} also imports {', '.join(heavy)}"


def test_import_minserve_takes_under_300_ms():
    # NOTE: the best of three, because another process may hold the core for a moment.
    fastest_s = min(import_afresh("minserve")[0] for _ in range(3))
    assert fastest_s < MAX_IMPORT_S, f"import minserve takes {fastest_s:.3f} s"


LAYOUT = {
    tokenize.ENCODING,
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(source: str) -> int:
    """Lines that hold code: without blank lines, comments and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            # NOTE: a string alone is a docstring, of a module, class, function or field.
            if isinstance(child, ast.Expr) and isinstance(getattr(child.value, "value", 0), str):
                lines -= set(range(child.lineno, child.end_lineno + 1))
    return len(lines)


def test_lines_of_code_leave_out_blank_lines_comments_and_docstrings():
    source = '"""Doc\nof a module."""\n\n# why\nx = """a\n\nb"""  # how\n\n\n'
    source += 'def f(\n    a,\n):\n    """Doc."""\n    return lambda: a\n'
    assert lines_of_code(source) == 3 + 4


def test_core_can_be_read_in_an_evening(record_property, capsys):
    lines = {
        str(path.relative_to(ROOT)): lines_of_code(path.read_text(encoding="utf-8"))
        for path in CORE_FILES
    }
    total = sum(lines.values())
    record_property("core_lines", total)
    print("\n".join(f"{count:6,}  {name}" for name, count in lines.items()))
    with capsys.disabled():
        print(f"[the core has {total:,} lines of code, at most {MAX_CORE_LINES:,}] ", end="")
    assert total <= MAX_CORE_LINES
