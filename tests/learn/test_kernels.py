"""Real kernels and real installs: a breakpoint, a restart, two at once, nothing writable."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path

import pytest
from variants.block_pool import POOL
from variants.kv_bytes_per_token import ESTIMATE

from minserve.execution.simulated import SimulatedExecutor
from minserve.learn import parts as learn_parts
from minserve.learn.experiments import lesson3
from minserve.learn.experiments.common import words
from minserve.learn.parts import part
from minserve.learn.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = count()


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    home = tmp_path / "Élève 学习 home"
    monkeypatch.setenv("MINSERVE_HOME", str(home))
    monkeypatch.setattr(learn_parts, "_live", {})
    return home


def test_a_breakpoint_in_a_part_is_hit_at_its_line_when_the_engine_runs_it(monkeypatch):
    import linecache

    text = textwrap.dedent(POOL).lstrip()
    first = "def allocate(self, num_tokens):"
    assert "def append(" in text and first in text
    head, tail = text.split("def append(", 1)
    signature, body = tail.split("\n", 1)
    indent = " " * (len(body) - len(body.lstrip()))
    text = f"{head}def append({signature}\n{indent}breakpoint()\n{body}"
    file = f"<ipython-input-breakpoint-{next(NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), scope)
    hit = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: hit.append((sys._getframe(1).f_code.co_filename,
                                                   sys._getframe(1).f_lineno))
    )  # fmt: skip
    assert part("block_pool", scope["Pool"], mine=True).is_green
    assert hit == []  # nobody could answer the debugger in the check
    lesson3.serve(SimulatedExecutor(14, 16), [words("r", 20, 4)], mine=True)
    lines = text.splitlines()
    assert hit and {(f, lines[n - 1].strip()) for f, n in hit} == {(file, "breakpoint()")}


KEEPS = """
import sys, time
from pathlib import Path
from minserve.learn.workspace import Workspace
name, folder = sys.argv[1:]
Path(folder, name).touch()
while not all(Path(folder, other).exists() for other in "ab"):
    time.sleep(0.001)
for number in range(20):
    Workspace("block_pool").keep(f"{name}{number}", f"class {name}{number}: pass\\n")
    Workspace("block_pool").use = "mine"
    assert Workspace("block_pool").current() is not None
"""


def test_two_kernels_that_keep_parts_at_the_same_time_lose_none(tmp_path):
    kernels = [
        subprocess.Popen([sys.executable, "-c", KEEPS, name, str(tmp_path)], cwd=ROOT)
        for name in "ab"
    ]
    assert [kernel.wait(120) for kernel in kernels] == [0, 0]
    workspace = Workspace("block_pool")
    kept = {version.name for version in workspace.versions()}
    assert kept == {f"{name}{number}" for name in "ab" for number in range(20)}
    assert workspace.current().name in kept and workspace.use == "mine"


@pytest.mark.slow
def test_a_kernel_that_is_restarted_goes_on_with_what_was_green(tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))

    def run(code: str) -> str:
        told = []

        def hear(message) -> None:
            content = message["content"]
            told.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        reply = client.execute_interactive(code, output_hook=hear, timeout=120)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(told)

    try:
        cell = textwrap.dedent(ESTIMATE)
        ask = "from minserve.learn import get, part\n"
        assert "green" in run(f"{ask}{cell}\npart('kv_bytes_per_token', estimate, mine=True)")
        assert "__main__" in run(f"{ask}print(get('kv_bytes_per_token').__module__)")
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=120)
        assert "minserve_part_estimate" in run(f"{ask}print(get('kv_bytes_per_token').__module__)")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_an_install_that_nobody_can_write_to_serves_a_lesson(require_debian, workspace, tmp_path):
    """Everything is read-only but the learner's home: parts are checked and kept, nano answers."""
    bwrap = require_debian("bubblewrap", "bwrap")
    workspace.mkdir(parents=True)
    script = tmp_path / "lesson.py"
    script.write_text(
        textwrap.dedent(ESTIMATE)
        + textwrap.dedent(
            """
            import tempfile
            from minserve.learn import get, part
            part("kv_bytes_per_token", estimate, mine=True)
            from minserve.execution.torch_executor import TorchExecutor
            from minserve.learn.experiments.lesson1 import engine_tokens
            nano = TorchExecutor("nano", num_blocks=64)
            print("wrote", len(engine_tokens(nano, [[5, 6, 7]], 4)[0]), get("kv_bytes_per_token"))
            """
        ),
        encoding="utf-8",
    )
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [
            *(bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *("--bind", str(workspace), str(workspace), "--setenv", "TMPDIR", str(workspace)),
            *(sys.executable, str(script)),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        env=env | {"MINSERVE_HOME": str(workspace)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "green" in done.stdout and "wrote 4" in done.stdout
    assert Workspace("kv_bytes_per_token").use == "mine"
