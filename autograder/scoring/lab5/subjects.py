"""The caches that a learner's regression test of lab 5 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder import bank, planting
from autograder.harness import RemoteError
from autograder.notebooks import source_cells
from autograder.scoring.regression import Interface
from minserve.errors import ConfigError

LAB = "lab5_cache_key"
METHODS = {
    "cache": {
        "key": ["request"],
        "get": ["request", "now_s"],
        "put": ["request", "answer", "now_s"],
        "invalidate": ["event"],
    },
    "model": {"judge": ["question"], "similarity": ["one", "other"], "break_down": []},
}
MAKE = {
    "name": "make_cache",
    "methods": {"__call__": ["freshness_s"]},
    "properties": [],
    "emptied": {},
}

# Each edit turns the solution into one fault: (what it does in words, text, its replacement)
FAULTY = {
    "a shared tenant": (
        "serves a tenant's answer to another tenant",
        "        form = {name: request[name] for name in FIELDS}\n",
        '        form = {name: request[name] for name in FIELDS if name != "tenant"}\n',
    ),
    "a life without end": (
        "keeps an answer alive as long as people ask for it",
        "            return None\n        return entry\n",
        "            return None\n        entry.stored_s = now_s\n        return entry\n",
    ),
    "an order answered": (
        "answers an order with the answer to a question",
        'return one == other and one["act"] == "ask" and least',
        'return (one["intent"], one["sense"]) == (other["intent"], other["sense"]) and least',
    ),
}


@lru_cache
def namespace_of(name: str) -> dict[str, Any]:
    """What a trusted cell of the source notebook defines, after the setup."""
    namespace: dict[str, Any] = {"__name__": __name__}
    for cell in dict.fromkeys(("lab5-setup", name)):
        exec(compile(source_cells(LAB)[cell], f"<{cell}>", "exec"), namespace)
    return namespace


def build(source: str) -> type:
    """The class that a trusted source defines."""
    namespace = dict(namespace_of("lab5-setup"))
    exec(compile(source, "<cache>", "exec"), namespace)
    return namespace["AnswerCache"]


def solution() -> str:
    return planting.plant(source_cells(LAB)["lab5-cache"], None)


@lru_cache
def right() -> tuple[tuple[str, type], ...]:
    """Correct caches, written differently."""
    others = ((name, build(source)) for name, source in bank.right_sources(LAB).items())
    return ("the solution", build(solution())), *others


@lru_cache
def faulty() -> dict[str, tuple[type, str]]:
    """name -> (cache with that one fault, what it does in words)."""
    made = {}
    for name, (words, old, new) in FAULTY.items():
        source = solution()
        if source.count(old) != 1:
            raise ConfigError(f"the solution of {LAB} changed: cannot plant {name!r}")
        made[name] = (build(source.replace(old, new)), words)
    return made


def make_bench(cache_class: type, freshness_s: Any = 60) -> dict[str, Any]:
    """A fresh cache and the model of the public tests."""
    if type(freshness_s) not in (int, float) or not 0 < freshness_s < 1e9:
        raise RemoteError("ValueError", f"a number of seconds, not {str(freshness_s)[:40]}")
    cache, model = namespace_of("lab5-bench")["bench"](cache_class)(freshness_s)
    return {"cache": cache, "model": model}


INTERFACE = Interface(MAKE, make_bench, METHODS, {})
