"""The caches that a learner's regression test of lab 4 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

LAB = "lab4_unsalted_prefix"
METHODS = {
    "cache": {
        "match": ["request"],
        "commit": ["request", "blocks", "num_computed"],
        "evict": ["block"],
    },
}
MAKE = {
    "name": "make_cache",
    "methods": {"__call__": ["block_size", "collide"]},
    "properties": [],
    "emptied": {},
}

# Edits that turn the solution into one fault: what it does in words, then text and replacement
FAULTY = {
    "a stranger": (
        "gives a tenant's blocks to another tenant",
        '{"salt": request["salt"], "adapter"',
        '{"adapter"',
        'return [request["salt"], request["adapter"],',
        'return [request["adapter"],',
    ),
    "too early": (
        "offers blocks before they are computed",
        "num_blocks = num_computed // self.block_size",
        "num_blocks = len(blocks)",
    ),
    "a digest trusted": (
        "takes a digest for a proof",
        "if entry is None or entry.prefix != self.prefix(request, index):",
        "if entry is None:",
    ),
}


SUBJECTS = Subjects(LAB, "lab4-setup", "lab4-cache", "PrefixCache", FAULTY)


@lru_cache
def bench() -> dict[str, Any]:
    """What the notebook's bench cell defines."""
    return SUBJECTS.namespace_of("lab4-bench")


def make_bench(cache_class: type, block_size: Any = 4, collide: Any = False) -> dict[str, Any]:
    """A fresh cache, as the public tests have it."""
    if type(block_size) is not int or not 1 <= block_size <= 1024:
        raise RemoteError("ValueError", f"between 1 and 1024, not {str(block_size)[:40]}")
    make_cache = bench()["bench"](cache_class)
    return {"cache": make_cache(block_size, collide is True)}


INTERFACE = Interface(MAKE, make_bench, METHODS, {}, max_values=1_000)
