"""The handler's side: a child process that runs handlers and asks its parent for everything else.

A handler is `handler(payload, ctx) -> result`. It may block, compute without ever letting go of the
interpreter, leak or crash: its parent, who renews the lease and alone may write to the store, does
not notice. The child has no connection to the database, so one that outlives its lease can do no
harm.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
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

    def __init__(self, job: Job, tools: Any, pipe: Connection) -> None:
        self.job, self.tools = job, tools
        self.effects: dict[str, Any] = {}
        self._pipe = pipe

    def progress(self, completed: int, total: int) -> None:
        """Say how far it is; also a point at which a cancelled handler stops (`Stopped`)."""
        self._pipe.send(("progress", completed, total))
        self.check()

    def check(self) -> None:
        """Raise `Stopped` if the work is of no use any more. Cheap: call it often."""
        while self._pipe.poll():
            self._receive()

    def effect(self, key: str, value: Any = None) -> None:
        """Have an effect enter the ledger together with the result, or not at all."""
        self.effects.setdefault(key, value)

    def effect_now(self, key: str, value: Any = None) -> Any:
        """Commit an effect at once, ahead of the result; returns the value that stands.

        If an earlier attempt got this far, that is its value: a checkpoint.
        """
        self._pipe.send(("effect", key, value))
        while True:
            answer = self._receive()
            if answer[0] == "refused":
                raise JobFailed(f"effect {key!r} could not be recorded: {answer[1]}")
            if answer[0] == "stands":
                return answer[1]

    def _receive(self) -> tuple:
        message = self._pipe.recv()
        if message[0] == "stop":
            raise Stopped
        return message


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
    while True:
        try:
            order = pipe.recv()
            if order[0] == "run":
                pipe.send(_run(order[1], handlers, tools, pipe))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _run(job: Job, handlers: Mapping[str, str], tools: Any, pipe: Connection) -> tuple:
    context = Context(job, tools, pipe)
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
