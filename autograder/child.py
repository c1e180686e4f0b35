"""Runs inside the sandbox, beside the learner's code. Standard library only; it keeps no secrets.

It is started as `python -I -S child.py LIMITS_AS_JSON` and speaks JSON lines: the grader sends

    {"load": [[cell id, source], ...]}                run the notebook's cells
    {"new": class name, "args": [...]}                make the object under test
    {"call": method name, "args": [...]}              call one of its methods
    {"test": function name, "args": [...]}            call a function of the notebook

and gets back {"return": value} or {"raise": type name, "message": ...}. In between the child may
send {"ask": remote name, "method": ..., "args": [...]}, which the grader answers. An argument
{"remote": {...}} arrives as a `Remote`: its methods run in the grader's process. Whatever the
learner's code does in here, the grader believes only plain values that come out.
"""

import builtins
import io
import json
import os
import re
import sys
import types

PRINT_LIMIT = 2_000  # characters kept of each cell's printed text
PLAIN = (type(None), bool, int, float, str)


def limit(limits):
    """Give up rights and resources, before a line of the learner's code runs."""
    import resource

    for name, value in limits["resources"].items():
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), tuple(value))
    if limits["uid"]:
        os.setgroups([])
        os.setresgid(limits["uid"], limits["uid"], limits["uid"])
        os.setresuid(limits["uid"], limits["uid"], limits["uid"])
    leave_keyring()


def leave_keyring():
    """Take a keyring of one's own: the one of the instructor's session would outlive this process,
    and what one child puts there another could read."""
    import ctypes
    import platform

    number = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, None)  # keyctl(KEYCTL_JOIN_SESSION_KEYRING)


class Channel:
    """JSON lines to and from the grader, on descriptors that `print` does not reach."""

    def __init__(self):
        self._read, self._write = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)

    def receive(self):
        line = self._read.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    def send(self, message):
        self._write.write(json.dumps(message).encode() + b"\n")
        self._write.flush()


class Remote:
    """An object of the grader's.

    `spec` tells its name, its methods with their parameters, its properties, and which argument a
    method empties, as `BlockPool.release` does.
    """

    def __init__(self, channel, spec):
        self.__dict__.update(_channel=channel, _spec=spec)

    def __getattr__(self, name):
        if name in self._spec["properties"]:
            return self._ask(name, (), {})
        if name in self._spec["methods"]:
            return lambda *args, **named: self._ask(name, args, named)
        raise AttributeError(f"{self._spec['name']} has no {name!r} here")

    def __setattr__(self, name, value):
        raise AttributeError(f"{self._spec['name']} is read-only")

    def __call__(self, *args, **named):
        return self._ask("__call__", args, named)

    def _ask(self, method, args, named):
        parameters = self._spec["methods"].get(method, [])
        args = [*args, *(named.pop(name) for name in parameters[len(args) :] if name in named)]
        if named or len(args) > len(parameters):
            raise TypeError(f"{method} takes {parameters}")
        emptied = self._spec["emptied"].get(method)
        if emptied is not None and not hasattr(args[emptied], "pop"):
            raise AttributeError(f"{type(args[emptied]).__name__!r} object has no attribute 'pop'")
        wire = [plain(arg) for arg in args]
        self._channel.send({"ask": self._spec["name"], "method": method, "args": wire})
        answer = self._channel.receive()
        if "raise" in answer:
            raise named_error(answer["raise"])(answer["message"])
        if emptied is not None:
            args[emptied].clear()
        return from_wire(self._channel, answer["return"])


def named_error(name):
    try:
        from minserve import errors
    except ImportError:
        return RuntimeError
    return getattr(errors, name, None) or getattr(builtins, name, RuntimeError)


def from_wire(channel, value):
    if isinstance(value, dict) and set(value) == {"remote"}:
        return Remote(channel, value["remote"])
    if isinstance(value, list):
        return [from_wire(channel, item) for item in value]
    return value


def plain(value):
    """`value` as plain built-in types; anything else becomes a marker that equals nothing."""
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return [plain(item) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (set, frozenset):
        return [plain(item) for item in sorted(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return plain(value.tolist())
    return {"not plain": type(value).__name__}


class Printed(io.TextIOBase):
    """What the learner prints, up to a limit."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        room = PRINT_LIMIT - len(self.text)
        self.text += str(text)[:room] if room > 0 else ""
        return len(text)


def run_cell(source, name, namespace):
    try:
        code = compile(source, f"<{name}>", "exec")
    except SyntaxError:  # notebook magics (%time, !pip) mean nothing here
        source = re.sub(r"(?m)^([ \t]*)(%|!).*$", r"\1pass", source)
        code = compile(source, f"<{name}>", "exec")
    exec(code, namespace)


def describe(error):
    try:
        text = str(error)
    except BaseException:
        text = ""
    return {"raise": type(error).__name__, "message": text[:500], "line": line_of(error)}


def line_of(error):
    """Where in the notebook it happened: 'cell, line n'; never a path."""
    place, frame = "", error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if name.startswith("<") and name != "<string>":
            place = f"{name.strip('<>')}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


class Server:
    """Answers the grader until it hangs up."""

    def __init__(self, channel):
        self.channel = channel
        self.subject = None
        self.module = types.ModuleType("__main__")
        self.module.display = lambda *values: None
        sys.modules["__main__"] = self.module  # dataclasses look their module up

    def load(self, cells):
        cells_out = {}
        for name, source in cells:
            sys.stdout = sys.stderr = Printed()
            error = None
            try:
                run_cell(source, name, self.module.__dict__)
            except BaseException as caught:
                error = describe(caught)
            cells_out[name] = {"printed": sys.stdout.text, "error": error}
        return {
            "cells": cells_out,
            "names": sorted(k for k in self.module.__dict__ if type(k) is str),
        }

    def handle(self, message):
        if "load" in message:
            return self.load(message["load"])
        args = from_wire(self.channel, message["args"])
        if "new" in message:
            self.subject = None
            self.subject = getattr(self.module, message["new"])(*args)
            return None
        if "test" in message:
            getattr(self.module, message["test"])(*args)
            return None
        return plain(getattr(self.subject, message["call"])(*args))

    def serve(self):
        while True:
            message = self.channel.receive()
            try:
                answer = {"return": self.handle(message)}
            except BaseException as error:  # SystemExit too: only the grader ends this process
                answer = describe(error)
            self.channel.send(answer)


def main():
    limits = json.loads(sys.argv[1])
    limit(limits)
    sys.path[:] = [*sys.path, *limits["paths"]]
    Server(Channel()).serve()


if __name__ == "__main__":
    main()
