"""The hostile table of GRADING.md: whatever a notebook does, an honest score and a plain status.

Where the engine in the notebook is right, the attack beside it must neither cost nor earn a point;
where it is the untouched one, no trick may earn any. The one that ends or stalls the process
loses what did not run, and the report says why.
"""

from __future__ import annotations

import json
from pathlib import Path

from autograder.bank.base import Notebook, Submission, append, as_file, cell, set_source
from autograder.bank.lab3 import (
    AT_CANCEL,
    BANK,
    FULL,
    LAB,
    NONE,
    edited,
    own_cell,
    released,
    row,
    solved,
)

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = BANK.notebook_name


def in_cancel(code: str) -> Notebook:
    """The right engine, with a line of mischief in `cancel`."""
    return edited((AT_CANCEL, f"        {code}\n{AT_CANCEL}"))


def without_cell(name: str) -> Notebook:
    notebook = solved()
    notebook["cells"].remove(cell(notebook, name))
    return notebook


def copied_cell() -> Notebook:
    notebook = solved()
    for name in ("lab3-engine", "lab3-storm"):
        copy = json.loads(json.dumps(cell(notebook, name))) | {"id": f"{name}-copy"}
        notebook["cells"].append(copy)
    return notebook


def stripped() -> Notebook:
    notebook = solved()
    for each in notebook["cells"]:
        each["metadata"] = {}
    return notebook


def more_points() -> Notebook:
    notebook = released()
    cell(notebook, "lab3-storm")["metadata"]["nbgrader"]["points"] = 100
    return notebook


def printed_script() -> Notebook:
    script = "<script>alert('minserve')</script>"
    notebook = own_cell(solved(), f"print({script!r})")
    set_source(notebook, "lab3-explanation", f"My answer {script} <img src=x onerror=alert(1)>")
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": script}}
    cell(notebook, "lab3-storm")["outputs"] = [output]
    return notebook


def huge_output() -> Notebook:
    notebook = own_cell(solved(), "print('x' * 50_000_000)\nimport os\nos.write(1, b'y' * 10**7)")
    text = [{"output_type": "stream", "name": "stdout", "text": "z" * 4_000_000}]
    cell(notebook, "lab3-storm")["outputs"] = text
    return notebook


# -- tricks that try to earn points for the untouched engine

ALWAYS_EQUAL = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
    def __bool__(self): return True

_cancel = CancellableEngine.cancel
CancellableEngine.cancel = lambda self, request_id: (_cancel(self, request_id), Always(1))[1]
"""
PATCHED = """
import builtins, json, sys, unittest
builtins.all = builtins.any = lambda *a: True
builtins.len = lambda x: 8
builtins.isinstance = lambda *a: True
json.dumps = lambda *a, **k: '{"return": true}'
sys.modules["__main__"].describe = lambda error: {"return": None}
"""
HOOK = """
import sys
try:
    get_ipython().input_transformers_cleanup.append(lambda lines: ["pass\\n"])
except NameError:
    pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        seen.append(name)
seen = []
sys.meta_path.insert(0, Finder())
sys.settrace(lambda frame, event, arg: None)
"""
READ_SOLUTION = f"""
import glob, json, os
found = []
for root in ("{ROOT}", "{ROOT.parent}", "/home", "/root", "/proc/1/root", "/proc/1/cwd", "..", ""):
    found += glob.glob(root + "/solutions/{LAB}/*.ipynb")
    found += glob.glob(root + "/*/solutions/{LAB}/*.ipynb")
for path in found:
    for c in json.load(open(path))["cells"]:
        if c["id"] == "lab3-engine":
            lines = "".join(c["source"]).split("\\n")
            lines = [line for line in lines if not line.lstrip().startswith("#")]
            exec("\\n".join(lines))
"""
GRADER = """
import sys
for name in ("autograder", "autograder.scoring.lab3", "minserve.scheduling", "minserve.engine"):
    try:
        __import__(name)
        raise SystemExit("the grader is importable")
    except ImportError:
        pass
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "Server":
        thing.handle = lambda message: True
        thing.load = lambda cells: {"cells": {}, "names": ["CancellableEngine"]}
"""
FORGED_LINES = """
import os
for descriptor in range(3, 16):
    try:
        os.write(descriptor, b'{"score": 17, "points": 17}\\n')
    except OSError:
        pass
"""
FORGED_RETURNS = """
import os
for descriptor in range(3, 16):
    try:
        os.write(descriptor, b'{"return": true}\\n' * 100)
    except OSError:
        pass
"""
FLOOD = """
import os
for descriptor in range(3, 16):
    try:
        while True:
            os.write(descriptor, b'[' * 65536)
    except OSError:
        pass
"""
FAKE_POOL = """
_init = CancellableEngine.__init__
class FakePool:
    num_free = num_blocks = 99
    def allocate(self, n): return list(range(n))
    def release(self, blocks): pass
def init(self, pool, emit):
    _init(self, FakePool(), emit)
CancellableEngine.__init__ = init
"""
BACKGROUND = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(0)
"""
MEMORY = """
def hog():
    held = []
    while True:
        held.append(bytearray(10**7))
hog()
"""


COUNTING = """
calls = []
def test_cancellation(make_engine):
    calls.append(1)
    with open("/tmp/calls", "a") as file:
        file.write("x")
    assert max(len(calls), len(open("/tmp/calls").read())) < 4
"""
NOTHING = """
class CancellableEngine:
    def __init__(self, pool, emit): pass
    def submit(self, *a): pass
    def begin_step(self, budget): return []
    def finish_step(self, tokens): pass
    def cancel(self, request_id): return True
"""


def untouched(text: str) -> Notebook:
    return append(released(), "lab3-engine", text)


HOSTILE = [
    row(
        "hostile: noise on stderr, warnings and logs",
        lambda: append(
            in_cancel("print('noise', file=sys.stderr)"),
            "lab3-engine",
            "import logging, sys, warnings\nwarnings.warn('torch says so')\nlogging.error('no')",
        ),
        FULL,
        through_nbgrader=True,
    ),
    row(
        "hostile: forged last expression",
        lambda: append(append(released(), "lab3-engine", "100.0"), "lab3-storm", "float(3)"),
        NONE,
        through_nbgrader=True,
    ),
    row(
        "hostile: printed and displayed points",
        lambda: append(released(), "lab3-storm", "print(3.0)\nFalse"),
        NONE,
        through_nbgrader=True,
    ),
    row(
        "hostile: partial credit above the maximum",
        lambda: append(solved(), "lab3-storm", "1e9"),
        FULL,
        through_nbgrader=True,
    ),
    row(
        "hostile: more points in the metadata",
        more_points,
        NONE,
        status="tampered",
        through_nbgrader=True,
    ),
    row(
        "hostile: infinite loop when loaded",
        lambda: append(solved(), "lab3-engine", "while True: pass"),
        NONE,
        status="timed_out",
        contains="processor time",
        through_nbgrader=True,
    ),
    row(
        "hostile: infinite loop in an experiment",
        lambda: own_cell(solved(), "while True: pass"),
        FULL,
        contains="answer cells alone",
    ),
    row(
        "hostile: infinite loop in cancel",
        lambda: in_cancel("while True: pass"),
        (0, 0, 0, 0, 3),
        status="partly",
        contains="processor time",
    ),
    row(
        "hostile: a loop that ignores signals",
        lambda: append(
            released(),
            "lab3-engine",
            "import signal\nfor s in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):\n"
            "    signal.signal(s, signal.SIG_IGN)\n"
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ),
        NONE,
        status="timed_out",
    ),
    row(
        "hostile: os._exit",
        lambda: append(solved(), "lab3-engine", "import os\nos._exit(0)"),
        NONE,
        status="crashed",
        through_nbgrader=True,
    ),
    row(
        "hostile: os._exit in an experiment",
        lambda: own_cell(solved(), "import os\nos._exit(0)"),
        FULL,
        contains="answer cells alone",
    ),
    row(
        "hostile: kills itself in cancel",
        lambda: in_cancel("__import__('os').kill(__import__('os').getpid(), 9)"),
        (0, 0, 0, 0, 3),
        status="partly",
        contains="ended the process",
        through_nbgrader=True,
    ),
    row(
        "hostile: kills its parent",
        lambda: append(
            solved(),
            "lab3-engine",
            "import os\ntry:\n    os.kill(os.getppid(), 9)\nexcept PermissionError:\n    pass",
        ),
        FULL,
    ),
    row(
        "hostile: out of memory",
        lambda: in_cancel("bytearray(10**12)"),
        (0, 0, 0, 0, 3),
        contains="MemoryError",
    ),
    row(
        "hostile: out of memory in an experiment",
        lambda: own_cell(solved(), MEMORY),
        FULL,
    ),
    row("hostile: sys.exit in cancel", lambda: in_cancel("raise SystemExit(0)"), (0, 0, 0, 0, 3)),
    row(
        "hostile: a copied cell",
        copied_cell,
        FULL,
        contains="more than once",
        through_nbgrader=True,
    ),
    row(
        "hostile: stripped metadata", stripped, None, status="unreadable", contains="grading marks"
    ),
    Submission(
        "hostile: corrupt JSON",
        lambda: {NOTEBOOK: as_file(solved, NOTEBOOK)()[NOTEBOOK][:-200]},
        None,
        "unreadable",
        contains="no readable notebook",
    ),
    Submission("hostile: no text at all", lambda: {NOTEBOOK: b"\xff\xfe\x00"}, None, "unreadable"),
    Submission("hostile: JSON, but no notebook", lambda: {NOTEBOOK: b"[1, 2]"}, None, "unreadable"),
    Submission("hostile: deeply nested JSON", lambda: {NOTEBOOK: b"[" * 10**6}, None, "unreadable"),
    Submission(
        "hostile: renamed file",
        as_file(solved, "final_v2.ipynb"),
        None,
        "missing",
        contains="rename",
    ),
    Submission("hostile: nothing handed in", dict, None, "missing"),
    row(
        "hostile: deleted test cell",
        lambda: without_cell("lab3-storm"),
        FULL,
        contains="deleted",
        through_nbgrader=True,
    ),
    row(
        "hostile: deleted first answer cell",
        lambda: without_cell("lab3-engine"),
        (0, 0, 0, 0, 3),
        status="crashed",
        contains="deleted",
        through_nbgrader=True,
    ),
    row("hostile: always-equal object", lambda: untouched(ALWAYS_EQUAL), NONE),
    row(
        "hostile: always-equal answers from a right engine",
        lambda: append(solved(), "lab3-engine", ALWAYS_EQUAL),
        (2, 2, 3, 3, 3),
    ),
    row("hostile: patched builtins and json", lambda: untouched(PATCHED), NONE, status="tampered"),
    row(
        "hostile: transformer and import hooks", lambda: append(solved(), "lab3-engine", HOOK), FULL
    ),
    row("hostile: hooks beside the untouched engine", lambda: untouched(HOOK), NONE),
    row(
        "hostile: reads the solution by its path",
        lambda: untouched(READ_SOLUTION),
        NONE,
        through_nbgrader=True,
    ),
    row(
        "hostile: looks for the grader in its process",
        lambda: untouched(GRADER),
        NONE,
        status="graded",
    ),
    row("hostile: forged score lines", lambda: untouched(FORGED_LINES), NONE, status="tampered"),
    row("hostile: forged answers", lambda: untouched(FORGED_RETURNS), NONE, status="tampered"),
    row("hostile: floods the line", lambda: untouched(FLOOD), NONE, status="tampered"),
    row(
        "hostile: a test that counts its calls",
        lambda: set_source(solved(), "lab3-regression", COUNTING),
        (4, 4, 3, 3, 0),
    ),
    row("hostile: an engine that does nothing", lambda: untouched(NOTHING), NONE),
    row("hostile: a pool of its own", lambda: untouched(FAKE_POOL), NONE),
    row(
        "hostile: leaves a process running",
        lambda: own_cell(solved(), BACKGROUND),
        FULL,
        through_nbgrader=True,
    ),
    row(
        "hostile: forks without end",
        lambda: own_cell(
            solved(),
            "import os\ntry:\n    while os.fork(): pass\n    os._exit(0)\n"
            "except OSError:\n    pass",
        ),
        FULL,
    ),
    row("hostile: script in text and output", printed_script, FULL, through_nbgrader=True),
    row("hostile: huge output", huge_output, FULL, through_nbgrader=True),
    Submission(
        "hostile: modules that shadow the grader's",
        lambda: (
            as_file(released, NOTEBOOK)()
            | {
                name: b"raise SystemExit\n"
                for name in (
                    "autograder.py",
                    "json.py",
                    "minserve.py",
                    "sitecustomize.py",
                    "nbgrader.py",
                )
            }
        ),
        NONE,
        through_nbgrader=True,
    ),
    Submission(
        "hostile: the notebook is a link to the solution",
        lambda: {NOTEBOOK: f"{ROOT}/solutions/{LAB}/{NOTEBOOK}"},
        None,
        "unreadable",
        contains="symbolic link",
    ),
    Submission(
        "hostile: a link beside the notebook",
        lambda: as_file(solved, NOTEBOOK)() | {"secret.txt": "/etc/passwd"},
        FULL,
        through_nbgrader=True,
    ),
    row(
        "hostile: a foreign kernel",
        lambda: (
            solved()
            | {"metadata": {"kernelspec": {"name": "evil", "display_name": "x", "language": "sh"}}}
        ),
        FULL,
        through_nbgrader=True,
    ),
    row(
        "hostile: asks without end",
        lambda: in_cancel("while True: self.pool.num_free"),
        (0, 0, 0, 0, 3),
        status="partly",
    ),
    row(
        "hostile: nested lists without end",
        lambda: in_cancel("x = []; x.append(x); self.emit('token', request_id, x)"),
        (0, 0, 0, 0, 3),
    ),
]
