"""The engines that a learner's regression test meets: right ones and faulty ones.

They run in the grader's process, behind the same proxies as everything else, so a test cannot
tell them apart by reading them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder import planting
from autograder.harness import ChildMisbehaved, RemoteError
from autograder.notebooks import source_cells
from minserve.errors import ConfigError
from minserve.kv.blocks import BlockPool

LAB = "lab3_cancellation_leak"
MAX_SUBJECTS = 200  # engines that one test may make
MAX_CALLS = 10_000
METHODS = {
    "engine": {
        "submit": ["request_id", "num_prompt_tokens", "max_tokens"],
        "begin_step": ["token_budget"],
        "finish_step": ["token_ids"],
        "cancel": ["request_id"],
    },
    "pool": {"blocks_for": ["num_tokens"]},
    "events": {"__call__": []},
}
PROPERTIES = {"pool": ["num_free", "num_used", "num_blocks", "block_size"]}
MAKE = {
    "name": "make_engine",
    "methods": {"__call__": ["num_blocks", "block_size"]},
    "properties": [],
    "emptied": {},
}

# Each edit turns the solution into one fault: (text of the solution, its replacement)
AT_CANCEL = """\
        if request_id not in self.step:  # else finish_step releases, once the device is done
            self.pool.release(list(request.blocks))
"""
FAULTY = {
    "a prompt's leak": (
        "strands the blocks of a prompt that is being read",
        AT_CANCEL,
        AT_CANCEL.replace("self.step:", "self.step and request.num_output:"),
    ),
    "an answer's leak": (
        "strands the blocks of an answer that is being written",
        AT_CANCEL,
        AT_CANCEL.replace("self.step:", "self.step and not request.num_output:"),
    ),
    "an early release": (
        "gives back blocks that the step in flight still uses",
        AT_CANCEL + "        return True",
        "        self.pool.release(list(request.blocks))\n        request.blocks = ()\n"
        "        return True",
    ),
}


def solution() -> str:
    """The engine cell of the solution, without markers."""
    return planting.plant(source_cells(LAB)["lab3-engine"], None)


def build(source: str) -> type:
    """The class that a trusted source defines."""
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(source_cells(LAB)["lab3-setup"], "<setup>", "exec"), namespace)
    exec(compile(source, "<engine>", "exec"), namespace)
    return namespace["CancellableEngine"]


@lru_cache
def right() -> tuple[tuple[str, type], ...]:
    """Correct engines, written differently."""
    from autograder.bank import right_sources

    return (
        ("the solution", build(solution())),
        *((name, build(source)) for name, source in right_sources(LAB).items()),
    )


@lru_cache
def faulty() -> dict[str, tuple[type, str]]:
    """name -> (engine with that one fault, what it does in words)."""
    made = {}
    for name, (words, old, new) in FAULTY.items():
        source = solution()
        if source.count(old) != 1:
            raise ConfigError(f"the solution of {LAB} changed: cannot plant {name!r}")
        made[name] = (build(source.replace(old, new)), words)
    return made


class Host:
    """Serves `make_engine` and the engines it makes to the learner's test."""

    def __init__(self, subject: type) -> None:
        self._subject = subject
        self._made: list[dict[str, Any]] = []
        self._num_calls = 0

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        self._num_calls += 1
        if self._num_calls > MAX_CALLS:
            raise RemoteError("RuntimeError", f"a test may make {MAX_CALLS} calls")
        if name == "make_engine":
            return self._make(*args)
        kind, _, number = name.partition(" ")
        if not number.isdecimal() or int(number) >= len(self._made) or kind not in METHODS:
            raise ChildMisbehaved(f"asked for {name[:40]!r}")
        subject = self._made[int(number)][kind]
        if method in PROPERTIES.get(kind, ()):
            return getattr(subject, method)
        if method not in METHODS[kind]:
            raise ChildMisbehaved(f"asked for {kind}.{method[:40]}")
        try:
            return (subject if method == "__call__" else getattr(subject, method))(*args)
        except Exception as error:  # whatever it is, the learner's test should see it
            raise RemoteError(type(error).__name__, str(error)) from None

    def _make(self, num_blocks: Any = None, block_size: Any = 4) -> list[dict[str, Any]]:
        for value in (num_blocks, block_size):
            if type(value) is not int or not 1 <= value <= 4096:
                raise RemoteError("ValueError", f"between 1 and 4096, not {str(value)[:40]}")
        if len(self._made) >= MAX_SUBJECTS:
            raise RemoteError("RuntimeError", f"a test may make {MAX_SUBJECTS} engines")
        log: list[list[Any]] = []
        pool = BlockPool(num_blocks, block_size)
        engine = self._subject(pool, lambda *event: log.append(list(event)))
        number = len(self._made)
        self._made.append(
            {"engine": engine, "pool": pool, "events": lambda: [list(event) for event in log]}
        )
        return [
            {
                "remote": {
                    "name": f"{kind} {number}",
                    "methods": METHODS[kind],
                    "properties": PROPERTIES.get(kind, []),
                    "emptied": {},
                }
            }
            for kind in ("engine", "pool", "events")
        ]
