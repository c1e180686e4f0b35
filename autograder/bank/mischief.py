"""The code that hostile submissions run; CLASS, METHOD and the like are put in by `Hostile`."""

from autograder.notebooks import REPOSITORY

EVIL = {"name": "evil", "display_name": "x", "language": "sh"}
SHADOWS = ("autograder.py", "json.py", "minserve.py", "sitecustomize.py", "nbgrader.py")
IN_METHOD = """
_method = CLASS.METHOD
def mischief(self, *args, **named):
    CODE
    return _method(self, *args, **named)
CLASS.METHOD = mischief
"""
IGNORES_SIGNALS = """
import signal
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
    signal.signal(s, signal.SIG_IGN)
while True:
    try:
        while True: pass
    except BaseException: pass
"""
KILLS_PARENT = """
import os
try:
    os.kill(os.getppid(), 9)
except PermissionError:
    pass
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
FORKS = """
import os
try:
    while os.fork(): pass
    os._exit(0)
except OSError:
    pass
"""
MEMORY = """
def hog():
    held = []
    while True:
        held.append(bytearray(10**7))
hog()
"""
WRITES = """
import os
for descriptor in range(3, 16):
    try:
        WRITE
    except OSError:
        pass
"""
LINES = {
    "forged score lines": WRITES.replace(
        "WRITE", """os.write(descriptor, b'{"score": 17, "points": 17}\\n')"""
    ),
    "forged answers": WRITES.replace(
        "WRITE", """os.write(descriptor, b'{"return": true}\\n' * 100)"""
    ),
    "floods the line": WRITES.replace("WRITE", "while True: os.write(descriptor, b'[' * 65536)"),
}
ALWAYS_EQUAL = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
    def __bool__(self): return True

_method = CLASS.METHOD
CLASS.METHOD = lambda self, *args, **named: (_method(self, *args, **named), Always(1))[1]
"""
NUMBERS = {"not a number": "float('nan')", "10**4000": "10**4000"}
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
NOTHING = """
class CLASS:
    def __init__(self, *args): pass
    def __getattr__(self, name): return lambda *args: None
"""
COUNTING = """
calls = []
def TEST(make):
    calls.append(1)
    with open("/tmp/calls", "a") as file:
        file.write("x")
    assert max(len(calls), len(open("/tmp/calls").read())) < 4
"""
LINKS = """
[my evidence](javascript:alert(1)), [again], $\\href{javascript:alert(1)}{in a formula}$
![who marks this?](https://example.org/x.png)

[again]: javascript:alert(1)
"""
READ_SOLUTION = f"""
import glob, json, os
found = []
places = ("{REPOSITORY}", "{REPOSITORY.parent}", "/home", "/root")
for root in (*places, "/proc/1/root", "/proc/1/cwd", "..", ""):
    found += glob.glob(root + "/solutions/LAB/*.ipynb")
    found += glob.glob(root + "/*/solutions/LAB/*.ipynb")
for path in found:
    for c in json.load(open(path))["cells"]:
        if c["id"] == "CELL":
            lines = "".join(c["source"]).split("\\n")
            lines = [line for line in lines if not line.lstrip().startswith("#")]
            exec("\\n".join(lines))
"""
GRADER = """
import sys
for name in ("autograder", "autograder.scoring.SCORING", "minserve.scheduling", "minserve.engine"):
    try:
        __import__(name)
        raise SystemExit("the grader is importable")
    except ImportError:
        pass
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "Server":
        thing.handle = lambda message: True
        thing.load = lambda cells: {"cells": {}, "names": ["CLASS"]}
"""
MEMORISED = """
Faulty = CLASS
def CLASS(*args):
    return (Right if PUBLIC else Faulty)(*args)
"""
