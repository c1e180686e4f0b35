"""The caches that a learner's regression test of lab 5 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

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


SUBJECTS = Subjects(LAB, "lab5-setup", "lab5-cache", "AnswerCache", FAULTY)


@lru_cache
def bench() -> dict[str, Any]:
    """What the notebook's bench cell defines."""
    return SUBJECTS.namespace_of("lab5-bench")


def make_bench(cache_class: type, freshness_s: Any = 60) -> dict[str, Any]:
    """A fresh cache and the model of the public tests."""
    if type(freshness_s) not in (int, float) or not 0 < freshness_s < 1e9:
        raise RemoteError("ValueError", f"a number of seconds, not {str(freshness_s)[:40]}")
    cache, model = bench()["bench"](cache_class)(freshness_s)
    return {"cache": cache, "model": model}


INTERFACE = Interface(MAKE, make_bench, METHODS, {})
