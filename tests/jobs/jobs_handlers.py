"""Handlers for the tests. Child processes import this module by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from minserve.jobs.job import JobFailed


def echo(payload, ctx):
    ctx.effect("seen", ctx.job.token)
    return payload


def sleep_in_c(payload, ctx):
    """Holds the interpreter lock the whole time: no other thread of this process runs."""
    note(payload, ctx)
    ctypes.PyDLL(None).usleep(int(payload["seconds"] * 1e6))
    return ctx.job.attempts


def note(payload, ctx):
    with Path(payload["log"]).open("a") as log:
        log.write(f"{ctx.job.attempts}\n")


def die(payload, ctx):
    note(payload, ctx)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_worker(payload, ctx):
    """What an out-of-memory killer may do: the parent goes, and everybody with it."""
    note(payload, ctx)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def die_first(payload, ctx):
    stands = ctx.recorded().get("step") or ctx.effect_now("step", ctx.job.attempts)
    if ctx.job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.effect("end", ctx.job.attempts)
    return stands


def busy(payload, ctx):
    """Two answers of 429, then well."""
    if ctx.job.attempts < 3:
        raise JobFailed("429 from the engine", retry_after_s=payload)
    return "ok"


def wrong(payload, ctx):
    raise ZeroDivisionError("by nought")


def poison(payload, ctx):
    raise JobFailed("cannot be done", is_permanent=True)


def patient(payload, ctx):
    note(payload, ctx)
    for step in range(200):
        ctx.progress(step, 200)
        time.sleep(0.05)


def deaf(payload, ctx):
    note(payload, ctx)
    time.sleep(60)


def hold(payload, ctx):
    note(payload, ctx)
    while not Path(payload["until"]).exists():
        time.sleep(0.02)


def slow(payload, ctx):
    note(payload, ctx)
    time.sleep(payload["seconds"])
    return "finished"


def tooled(payload, ctx):
    return ctx.tools(payload)


def make_tools(settings):
    if settings.get("is_broken"):
        raise RuntimeError("no model here")
    return lambda payload: payload * settings["factor"]
