"""The handler's side: a child process that runs handlers and asks its parent for everything else.

A handler is `handler(payload, ctx) -> result`. It may block, compute without ever letting go of the
interpreter, leak or crash: its parent, who renews the lease and alone may write to the store, does
not notice. The child has no connection to the database, so one that outlives its lease can do no
harm.

The parent says `run` (jobs), `recall` (forget those not started), `stop` (a job's id), and answers
with `stands` or `refused`. The child says `ready` or `broken`, and of a job, by its id: `progress`,
`effect`, `ledger`, `end` (seconds taken, and done, failed or stopped with details).
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from minserve.jobs.job import Job, JobFailed

Handler = Callable[[Any, "Context"], Any]


class Stopped(BaseException):
    """The job was cancelled, has expired or is another worker's: stop, nothing can be committed.

    A `BaseException`, so that a handler's `except Exception` does not swallow it.
    """


class Context:
    """What a handler may ask about its job.

    `job` is the job as it was claimed. `tools` is what the worker's `setup` returned, for example
    an engine's client. For effects outside the store pass `job.id` along as their idempotency key:
    it is the same in every attempt.
    """

    def __init__(self, job: Job, tools: Any, inbox: Inbox) -> None:
        self.job, self.tools = job, tools
        self.effects: dict[str, Any] = {}
        self._inbox = inbox

    def progress(self, completed: int, total: int) -> None:
        """Say how far it is; also a point at which a cancelled handler stops (`Stopped`)."""
        self._inbox.pipe.send(("progress", self.job.id, completed, total))
        self.check()

    def check(self) -> None:
        """Raise `Stopped` if the work is of no use any more. Cheap: call it often."""
        while self._inbox.pipe.poll():
            self._inbox.receive(self.job.id)

    def effect(self, key: str, value: Any = None) -> None:
        """Have an effect enter the ledger together with the result, or not at all."""
        self.effects.setdefault(key, value)

    def effect_now(self, key: str, value: Any = None) -> Any:
        """Commit an effect at once, ahead of the result; returns the value that stands.

        If an earlier attempt got this far, that is its value: a checkpoint.
        """
        return self._ask("effect", key, value)

    def recorded(self) -> dict[str, Any]:
        """The effects that earlier attempts have left in the ledger, by key: where to go on."""
        return self._ask("ledger") if self.job.token > 1 else {}

    def _ask(self, what: str, *more: Any) -> Any:
        self._inbox.pipe.send((what, self.job.id, *more))
        while True:
            answer = self._inbox.receive(self.job.id)
            if answer[0] == "refused":
                raise JobFailed(f"{' '.join([what, *map(repr, more[:1])])} is refused: {answer[1]}")
            if answer[0] == "stands":
                return answer[1]


class Inbox:
    """What the parent has sent: jobs to run one after another, and word about the one at work."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._waiting: deque[Job] = deque()

    def next_job(self) -> Job:
        """The next job, when there is one."""
        while not self._waiting or self.pipe.poll():
            self.receive()
        return self._waiting.popleft()

    def receive(self, at_work: str = "") -> tuple:
        """Take in one message; returns it. Raises `Stopped` if it ends the job `at_work`."""
        message = self.pipe.recv()
        match message:
            case ("run", jobs):
                self._waiting.extend(jobs)
            case ("recall",):
                self._waiting.clear()
            case ("stop", job_id) if job_id == at_work:
                raise Stopped
        return message


def start(*arguments: Any) -> tuple[subprocess.Popen, Connection]:
    """A child that calls `serve` with `arguments`, and the parent's end of its pipe.

    It is a fresh interpreter with this one's import path, and imports nothing of the program that
    runs here: that is quicker than `multiprocessing`, and the program needs no guard.
    """
    ours, theirs = multiprocessing.Pipe()
    command = [sys.executable, "-c", _CHILD, str(theirs.fileno()), json.dumps(sys.path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.send(arguments)
    return process, ours


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from minserve.jobs.handler import Connection, serve
pipe = Connection(int(sys.argv[1]))
serve(pipe, *pipe.recv())
"""


def serve(
    pipe: Connection,
    parent: int,
    handlers: Mapping[str, str],
    setup: str | None,
    settings: Mapping[str, Any],
) -> None:
    """The child's life: set up, say `ready`, then one job after another until the pipe closes."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        tools = load(setup)(settings) if setup else None
    except Exception as error:
        pipe.send(("broken", f"{setup} failed: {_say(error)}"))
        return
    pipe.send(("ready",))
    inbox = Inbox(pipe)
    try:
        while True:
            job, began_s = inbox.next_job(), time.monotonic()
            outcome = _run(job, handlers, tools, inbox)
            pipe.send(("end", job.id, time.monotonic() - began_s, outcome))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _run(job: Job, handlers: Mapping[str, str], tools: Any, inbox: Inbox) -> tuple:
    context = Context(job, tools, inbox)
    try:
        result = load(handlers[job.kind])(job.payload, context)
        return "done", result, context.effects
    except Stopped:
        return ("stopped",)
    except JobFailed as failed:
        return "failed", failed.reason, failed.retry_after_s, failed.is_permanent
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        return "failed", _say(error), 0.0, False


def load(path: str) -> Callable:
    """The function that `module:function` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _say(error: Exception) -> str:
    """The error and the line it came from, for whoever inspects a dead letter."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"


def _die_with(parent: int) -> None:
    """On Linux the kernel kills the child when its parent dies, whatever the child is doing.

    Elsewhere it goes on to the end of its job and finds the pipe closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
