"""Where a learner's code runs: a process that sees little, reaches nobody and dies in time.

Three levels, the best that this machine allows:

    bubblewrap  own files (no repository, no home), network, processes; unprivileged user
    unshare     own network and processes; the machine's files can be read
    plain       limits on time, memory and processes only; it says so

Every level: a time limit counted in CPU seconds, so that a busy machine changes no score, and a
generous one on the clock for code that sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from minserve.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).with_name("child.py")
# What of minserve a lab's code may import. Scheduler and engine are left out: a lab asks for the
# learner's own lifecycle, not for a call of the reference.
SHARED = ("__init__.py", "errors.py", "clock.py", "events.py", "request.py", "kv")
LEVELS = ("bubblewrap", "unshare", "plain")
ACCEPTS_WEAK = "MINSERVE_ACCEPTS_WEAK_ISOLATION"  # in the environment, for a run's jobs
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",  # numpy's threads would count as processes
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Limits:
    """What one child may use."""

    cpu_s: int = 2  # to load the cells, and as much again for all calls
    wall_s: float = 20.0  # per answer: for code that sleeps
    session_s: float = 60.0  # all answers of one child together
    memory_mb: int = 1024  # of each process, and of all together
    file_mb: int = 8
    num_processes: int = 8
    num_files: int = 64
    shared: tuple[str, ...] = SHARED  # files and folders of minserve

    def resources(self) -> dict[str, tuple[int, int]]:
        memory, size = self.memory_mb * 2**20, self.file_mb * 2**20
        return {
            "CPU": (
                2 * self.cpu_s + 1,
                2 * self.cpu_s + 2,
            ),  # the grader stops it first, see `used`
            "AS": (memory, memory),
            "FSIZE": (size, size),
            "NPROC": (self.num_processes, self.num_processes),
            "NOFILE": (self.num_files, self.num_files),
            "CORE": (0, 0),
        }


@lru_cache
def best_level() -> str:
    """The strongest level that works here, found by trying."""
    for level in LEVELS[:-1]:
        if _works(level):
            return level
    return "plain"


def accepted_level() -> str:
    """The level to run learners' code at. Raises `ConfigError` if it is weak and not accepted.

    NOTE: asked for each submission: bubblewrap may be there when a run begins and fail in a job.
    """
    if (level := best_level()) != "bubblewrap" and ACCEPTS_WEAK not in os.environ:
        raise ConfigError(
            f"isolation is only {level!r}: learners' code can read and change your files",
            "install bubblewrap, or add --accept-weak-isolation",
        )
    return level


def _works(level: str) -> bool:
    try:
        process = start(Limits(cpu_s=5), level)
        process.stdin.write(b'{"load": []}\n')
        process.stdin.flush()
        works = b'"return"' in process.stdout.readline()
        stop(process)
    except (OSError, ConfigError):
        return False
    return works


def start(limits: Limits, level: str) -> subprocess.Popen[bytes]:
    """A child that waits for JSON lines on its standard input."""
    prefix, options, paths, child, python = _command(level, limits)
    settings = json.dumps({"resources": limits.resources(), "uid": _own_uid(level), "paths": paths})
    read_end, write_end = os.pipe()
    try:
        if options:  # through a pipe: a command line could be read inside, with the paths on it
            prefix = [*prefix, "--args", str(read_end)]
            os.write(write_end, b"".join(option.encode() + b"\0" for option in options))
        os.close(write_end)
        return subprocess.Popen(
            [*prefix, python, "-I", "-S", child, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
            pass_fds=[read_end],
        )
    finally:
        os.close(read_end)


def used(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """(processor seconds, MB of memory) of the child and of all it started.

    NOTE: memory of what still lives; and time of the dead only where somebody waited for them.
    """
    total_s, total_mb = 0.0, 0.0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        for member in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                total_s += times.user + times.system + times.children_user + times.children_system
                total_mb += member.memory_info().rss / 2**20
    return total_s, total_mb


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and all it started, and close its pipes."""
    if process.returncode is None:
        # NOTE: not yet waited for, so the group id is still its own, even if it has ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()


def _own_uid(level: str) -> int:
    """An unprivileged user id that nobody else uses, so that process limits count per child.

    NOTE: drawn, not counted: a test that knows the how-manyth child it runs in could tell right
    implementations from faulty ones; and the kernel keeps keys for whoever has an id again.
    """
    if os.getuid() != 0 or level != "bubblewrap":
        return 0
    return 10**9 + secrets.randbelow(10**9)


def _site_packages() -> str:
    return sysconfig.get_paths()["purelib"]


@lru_cache
def _covers() -> tuple[str, ...]:
    """bwrap's options that cover what of ours lies in a folder that is shown: this repository, an
    installed copy of it, and pip's notes of where it stands."""
    site, options = Path(_site_packages()), []
    ours = [f"/site/{name}" for name in ("minserve", "autograder") if (site / name).is_dir()]
    for folder in [*ours, *([str(REPOSITORY)] if REPOSITORY.is_relative_to("/usr") else [])]:
        options += ["--perms", "0555", "--size", "4096", "--tmpfs", folder]
    for note in (*site.glob("*.pth"), *site.glob("*/direct_url.json")):
        options += ["--ro-bind", os.devnull, f"/site/{note.relative_to(site)}"]
    return tuple(options)


def _command(level: str, limits: Limits) -> tuple[list[str], list[str], list[str], str, str]:
    """(command, its options, import paths, child program, interpreter), as seen inside."""
    if level == "bubblewrap":
        return _bubblewrap(limits)
    # NOTE: without a file namespace the whole package can be imported, and solutions can be read.
    paths = [str(REPOSITORY), _site_packages()]
    if level == "plain":
        return [], [], paths, str(CHILD), sys.executable
    unshare = shutil.which("unshare")
    if unshare is None or os.getuid() != 0:
        raise ConfigError("unshare needs root", "install bubblewrap")
    command = [unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return command, [], paths, str(CHILD), sys.executable


def _bubblewrap(limits: Limits) -> tuple[list[str], list[str], list[str], str, str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ConfigError("bwrap is not installed", "apt-get install bubblewrap")
    python = Path(os.path.realpath(sys.executable))
    prefix = Path(sys.base_prefix).resolve()
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/lib", "/lib64"):
        if os.path.islink(name):
            options += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            options += ["--ro-bind", name, name]
    if not prefix.is_relative_to("/usr"):
        options += ["--ro-bind", str(prefix), "/python"]
        python = Path("/python") / python.relative_to(prefix)
    for folder in ("/shared", "/shared/minserve"):
        options += ["--perms", "0755", "--dir", folder]
    for name in limits.shared:
        options += ["--ro-bind", str(REPOSITORY / "minserve" / name), f"/shared/minserve/{name}"]
    options += ["--ro-bind", _site_packages(), "/site", "--ro-bind", str(CHILD), "/child.py"]
    options += _covers()
    # NOTE: no /proc: its lists of mounts and processes name the instructor's folders.
    options += ["--dev", "/dev", "--remount-ro", "/dev"]
    options += ["--size", str(limits.file_mb * 2**20), "--perms", "1777", "--tmpfs", "/tmp"]
    options += ["--remount-ro", "/", "--chdir", "/tmp"]
    options += ["--unshare-ipc", "--unshare-pid", "--unshare-net"]
    options += ["--unshare-uts", "--hostname", "sandbox"]
    options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.getuid() == 0:  # real root: the child itself changes to a user id of its own
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user"]
    return [bwrap], options, ["/shared", "/site"], "/child.py", str(python)
