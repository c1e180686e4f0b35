"""The sandbox holds, and the harness believes nothing but plain values."""

import ctypes
import os
import platform
import time
from pathlib import Path

import psutil
import pytest

from autograder import sandbox
from autograder.child import plain
from autograder.harness import (
    Child,
    ChildCrashed,
    ChildMisbehaved,
    ChildTimedOut,
    Raised,
    RemoteError,
    refuse,
)

LEVELS = ["plain", sandbox.best_level()]
REMOTE = {
    "remote": {
        "name": "it",
        "methods": {"give": ["table"]},
        "properties": ["size"],
        "emptied": {"give": 0},
    }
}


def child(source, level=None, **limits):
    return Child([("cell", source)], sandbox.Limits(**limits), level or sandbox.best_level())


@pytest.fixture
def bubblewrap(require_debian):
    require_debian("bubblewrap", "bwrap")
    if sandbox.best_level() != "bubblewrap":
        pytest.skip("bubblewrap is installed but may not make namespaces here")


@pytest.mark.parametrize("level", LEVELS)
def test_calls_go_in_and_plain_values_come_out(level):
    source = (
        "class T:\n    def __init__(self, a): self.a = a\n    def add(self, b): return (self.a, b)"
    )
    with child(source, level) as session:
        session.new("T", [1], refuse)
        assert session.call("add", ["x"], refuse) == [1, "x"]


def test_an_exception_comes_out_as_name_message_and_place():
    with child("class T:\n    def f(self):\n        return 1 / 0") as session:
        session.new("T", [], refuse)
        with pytest.raises(Raised) as caught:
            session.call("f", [], refuse)
    assert (caught.value.kind, caught.value.place) == ("ZeroDivisionError", "cell, line 3")
    assert str(caught.value) == "ZeroDivisionError" and "division" in caught.value.message


@pytest.mark.parametrize(
    "smuggle",
    [
        "raise ValueError(value)",
        "raise type(f'Seen{value}', (Exception,), {})()",
        "exec(compile('1 / 0', f'<cell {value}>', 'exec'))",
        "exec(compile('1 / 0', f'<{value}, line 3>', 'exec'))",
        "exec(compile('\\n' * value + '1 / 0', '<cell>', 'exec'))",
        "raise ValueError('x' * 10 ** 7)",
    ],
)
def test_what_reaches_a_learner_of_an_exception_carries_no_hidden_value(smuggle):
    with child(f"class T:\n    def f(self, value):\n        {smuggle}") as session:
        session.new("T", [], refuse)
        with pytest.raises(Raised) as caught:
            session.call("f", [4711], refuse)
    told = f"{caught.value}, {caught.value.place}"
    assert "4711" not in told and len(told) < 80


def test_a_remote_object_asks_the_grader_and_sees_its_errors():
    asked = []

    def serve(name, method, args):
        asked.append((name, method, args))
        if args == [[2]]:
            raise RemoteError("BlockError", "no")
        return 7

    source = (
        "from minserve.errors import BlockError\n"
        "class T:\n"
        "    def __init__(self, it): self.it = it\n"
        "    def f(self):\n"
        "        table = [1]\n"
        "        self.it.give(table=table)\n"
        "        try:\n            self.it.give([2])\n"
        "        except BlockError as error:\n"
        "            return [self.it.size, table, str(error)]\n"
    )
    with child(source) as session:
        session.new("T", [REMOTE], serve)
        assert session.call("f", [], serve) == [7, [], "no"]
    assert asked == [("it", "give", [[1]]), ("it", "give", [[2]]), ("it", "size", [])]


@pytest.mark.parametrize(
    "value, told",
    [
        (True, True),
        ((1, {2}), [1, [2]]),
        ({"a": (None,)}, {"a": [None]}),
        (type("Liar", (int,), {"__eq__": lambda self, other: True})(3), {"not plain": "Liar"}),
        ({1: 2}, {"not plain": "dict"}),
        (object, {"not plain": "type"}),
    ],
)
def test_only_plain_builtin_values_are_told(value, told):
    assert plain(value) == told and type(plain(value)) is type(told)


@pytest.mark.parametrize("level", LEVELS)
def test_an_endless_loop_is_stopped_by_its_processor_time(level):
    with pytest.raises(ChildTimedOut, match="processor time"):
        child("while True: pass", level, cpu_s=1)


def test_the_processor_time_of_ended_helpers_counts():
    source = (
        "import os\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(10**6): pass\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    with pytest.raises(ChildTimedOut, match="processor time"):
        child(source, cpu_s=1)


def test_sleeping_is_stopped_by_the_clock():
    with pytest.raises(ChildTimedOut, match="no answer"):
        child("import time\ntime.sleep(60)", wall_s=1.0)


@pytest.mark.parametrize(
    "code",
    [
        "[(time.sleep(0.1), self.it.size) for _ in range(600)]",
        "[(time.sleep(0.1), [write(fd) for fd in range(3, 12)]) for _ in range(600)]",
    ],
)
def test_always_sending_something_does_not_stop_the_clock(code):
    source = (
        "import os, time\n"
        "def write(fd):\n"
        "    try: os.write(fd, b' ')\n"
        "    except OSError: pass\n"
        "class T:\n    def __init__(self, it): self.it = it\n"
        f"    def f(self): {code}"
    )
    with child(source, session_s=2.0, wall_s=1.0) as session:
        session.new("T", [REMOTE], refuse)
        with pytest.raises(ChildTimedOut, match=r"in all|no answer"):
            session.call("f", [], lambda *asked: 1)


def test_what_one_child_may_make_the_grader_keep_is_bounded():
    source = (
        "class T:\n    def __init__(self, it): self.it = it\n"
        "    def f(self):\n"
        "        for _ in range(100): self.it.give(['x' * 2_000_000])\n"
    )
    with child(source, cpu_s=20) as session:
        session.new("T", [REMOTE], refuse)
        with pytest.raises(ChildTimedOut, match="more than 16777216 bytes"):
            session.call("f", [], lambda *asked: None)


def test_processes_share_the_memory_that_one_may_use(bubblewrap):
    source = "import os, time\nos.fork(); os.fork()\nx = bytearray(40 * 2**20); time.sleep(9)"
    with pytest.raises(ChildCrashed, match="100 MB"):
        child(source, memory_mb=100)


def test_a_child_cannot_tell_the_how_manyth_it_is_nor_leave_the_next_one_a_note(bubblewrap):
    """By its user id, or a key in the keyring of the session that the grader runs in."""
    number = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine())
    if number is None:
        pytest.skip("no numbers of system calls for this machine")
    add, keyctl = number
    ctypes.CDLL(None).syscall(keyctl, 1, None)  # as a login does: a keyring that is inherited
    source = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        f"found = libc.syscall({keyctl}, 10, -3, b'user', b'note', 0)\n"
        f"libc.syscall({add}, b'user', b'note', b'x', 1, -3)\n"
        "print(found, os.getuid() % 64)\n"
    )
    told = []
    for _ in range(4):
        with child(source) as session:
            told.append(session.cells["cell"]["printed"].split())
    assert [found for found, _ in told] == ["-1"] * 4
    uids = [int(uid) for _, uid in told]
    assert os.getuid() != 0 or uids != [(uids[0] + n) % 64 for n in range(4)]


def test_sleeping_a_little_at_every_call_is_stopped_too():
    with child("import time\nclass T:\n    def f(self): time.sleep(0.4)", session_s=1.0) as session:
        session.new("T", [], refuse)
        with pytest.raises(ChildTimedOut, match="in all"):
            for _ in range(20):
                session.call("f", [], refuse)


@pytest.mark.parametrize("source", ["import os\nos._exit(0)", "import os\nos.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_process_that_ends_is_told_apart_from_one_that_is_slow(source, level):
    with pytest.raises(ChildCrashed):
        child(source, level)


@pytest.mark.parametrize("line", [b"[1]\n", b'{"score": 17}\n', b"nonsense\n", b"[" * 3_000_000])
def test_forged_lines_are_tampering(line):
    source = (
        "import os\nfor fd in range(3, 12):\n"
        f"    try: os.write(fd, {line[:1]!r} * {len(line)} if {len(line) > 99} else {line!r})\n"
        "    except OSError: pass"
    )
    with pytest.raises(ChildMisbehaved):
        child(source)


def test_a_child_that_asks_and_never_reads_cannot_block_the_grader():
    source = (
        "import os, json\n"
        "class T:\n"
        "    def f(self):\n"
        "        line = json.dumps({'ask': 'x' * 90, 'method': 'm', 'args': []})\n"
        "        line = line.encode() + b'\\n'\n"
        "        for fd in range(3, 12):\n"
        "            try:\n                while True: os.write(fd, line)\n"
        "            except OSError: pass\n"
    )
    with child(source, cpu_s=2, wall_s=3.0) as session:
        session.new("T", [], refuse)
        started_s = time.monotonic()
        with pytest.raises((ChildTimedOut, ChildMisbehaved)):
            session.call("f", [], lambda *asked: "answer " * 50)
        assert time.monotonic() - started_s < 60


def test_cells_after_a_failing_one_still_run_and_magics_are_skipped():
    cells = [("a", "1 / 0"), ("b", "%matplotlib inline\nx = 1"), ("c", "print('seen', x)")]
    with Child(cells, sandbox.Limits(), sandbox.best_level()) as session:
        assert session.cells["a"]["error"] == "ZeroDivisionError: division by zero (a, line 1)"
        assert session.cells["c"] == {"printed": "seen 1\n", "error": None}


def test_inside_there_is_no_repository_no_home_no_network_and_no_root(bubblewrap):
    source = (
        "import os, socket\n"
        f"print(os.path.exists({str(sandbox.REPOSITORY / 'solutions')!r}))\n"
        "print(sorted(set(os.listdir('/')) & {'home', 'root', 'work', 'etc', 'var'}))\n"
        "print(os.getuid() == 0)\n"
        "print(os.path.exists('/proc'), os.uname().nodename)\n"
        "for name in os.listdir('/site'):\n"
        "    for path in (f'/site/{name}', f'/site/{name}/direct_url.json'):\n"
        "        if path.endswith(('.pth', '.json')) and os.path.exists(path):\n"
        "            try:\n                print(open(path).read())\n"
        "            except OSError:\n                pass\n"
        "try:\n    socket.create_connection(('1.1.1.1', 53), 1)\n"
        "except OSError:\n    print('no network')\n"
        "for path in ('/child.py', '/shared/minserve/errors.py', '/usr/x', '/x', '/dev/shm/x'):\n"
        "    try:\n        open(path, 'a')\n        print('wrote', path)\n"
        "    except OSError:\n        pass\n"
        "try:\n    import minserve.scheduling\n"
        "except ImportError:\n    print('no reference')\n"
    )
    with child(source) as session:
        assert session.cells["cell"]["error"] is None
        told = session.cells["cell"]["printed"].split("\n")
    assert told == ["False", "[]", "False", "False sandbox", "no network", "no reference", ""]


def test_an_installed_copy_of_ours_and_pips_notes_of_it_are_covered(
    bubblewrap, tmp_path, monkeypatch
):
    tmp_path.chmod(0o755)
    for name in ("minserve/scheduling.py", "autograder/bank.py", "x.pth", "x/direct_url.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("ours")
    monkeypatch.setattr(sandbox, "_site_packages", lambda: str(tmp_path))
    monkeypatch.setattr(sandbox, "_covers", sandbox._covers.__wrapped__)
    source = (
        "import os\n"
        "for name in ('minserve', 'autograder', 'x'):\n    print(os.listdir('/site/' + name))\n"
        "for name in ('x.pth', 'x/direct_url.json'):\n"
        "    try:\n        print(open('/site/' + name).read())\n"
        "    except OSError:\n        print('covered')\n"
    )
    with child(source) as session:
        told = session.cells["cell"]
    assert told["error"] is None
    assert told["printed"].split() == ["[]", "[]", "['direct_url.json']", "covered", "covered"]
    monkeypatch.setattr(sandbox, "REPOSITORY", Path("/usr/src/minserve"))
    assert "/usr/src/minserve" in sandbox._covers()


def test_a_process_left_running_dies_with_the_sandbox(bubblewrap):
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(987)\n"
        "    os._exit(0)\n"
    )
    me = psutil.Process()
    before = {p.pid for p in me.children(recursive=True)}
    with child(source):
        inside = {p.pid for p in me.children(recursive=True)} - before
        assert len(inside) >= 3
    gone_s = time.monotonic() + 5
    while any(map(psutil.pid_exists, inside)) and time.monotonic() < gone_s:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, inside))


def test_forking_and_writing_stop_at_their_limits(bubblewrap):
    source = (
        "import os, time\nn = 0\n"
        "try:\n    while n < 500:\n"
        "        if os.fork() == 0:\n            time.sleep(30)\n        n += 1\n"
        "except OSError:\n    print('forks stopped', n < 20)\n"
        "try:\n    open('/tmp/big', 'wb').write(b'x' * 10**8)\n"
        "except OSError:\n    print('file stopped')\n"
        "try:\n    bytearray(2 * 10**9)\n"
        "except MemoryError:\n    print('memory stopped')\n"
    )
    with child(source) as session:
        printed = session.cells["cell"]["printed"]
    assert printed == "forks stopped True\nfile stopped\nmemory stopped\n"


def test_no_descriptor_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with child("x = 1"):
            pass
        with pytest.raises(ChildCrashed):
            child("import os\nos._exit(1)")
    assert len(os.listdir("/proc/self/fd")) == before
