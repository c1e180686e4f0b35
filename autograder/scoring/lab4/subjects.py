"""The caches that a learner's regression test of lab 4 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder import bank, planting
from autograder.harness import RemoteError
from autograder.notebooks import source_cells
from autograder.scoring.regression import Interface
from minserve.errors import ConfigError

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

# Edits that turn the solution into one fault: what it does in words, (text, its replacement)
FAULTY = {
    "a stranger": (
        "gives a tenant's blocks to another tenant",
        ('{"salt": request["salt"], "adapter"', '{"adapter"'),
        ('return [request["salt"], request["adapter"],', 'return [request["adapter"],'),
    ),
    "too early": (
        "offers blocks before they are computed",
        ("num_blocks = num_computed // self.block_size", "num_blocks = len(blocks)"),
    ),
    "a digest trusted": (
        "takes a digest for a proof",
        ("if entry is None or entry.prefix != self.prefix(request, index):", "if entry is None:"),
    ),
}


@lru_cache
def namespace_of(name: str) -> dict[str, Any]:
    """What a trusted cell of the source notebook defines, after the setup."""
    namespace: dict[str, Any] = {"__name__": __name__}
    for cell in dict.fromkeys(("lab4-setup", name)):
        exec(compile(source_cells(LAB)[cell], f"<{cell}>", "exec"), namespace)
    return namespace


def build(source: str) -> type:
    """The class that a trusted source defines."""
    namespace = dict(namespace_of("lab4-setup"))
    exec(compile(source, "<cache>", "exec"), namespace)
    return namespace["PrefixCache"]


def solution() -> str:
    return planting.plant(source_cells(LAB)["lab4-cache"], None)


@lru_cache
def right() -> tuple[tuple[str, type], ...]:
    """Correct caches, written differently."""
    others = ((name, build(source)) for name, source in bank.right_sources(LAB).items())
    return ("the solution", build(solution())), *others


@lru_cache
def faulty() -> dict[str, tuple[type, str]]:
    """name -> (cache with that one fault, what it does in words)."""
    made = {}
    for name, (words, *edits) in FAULTY.items():
        source = solution()
        for old, new in edits:
            if source.count(old) != 1:
                raise ConfigError(f"the solution of {LAB} changed: cannot plant {name!r}")
            source = source.replace(old, new)
        made[name] = (build(source), words)
    return made


def make_bench(cache_class: type, block_size: Any = 4, collide: Any = False) -> dict[str, Any]:
    """A fresh cache, as the public tests have it."""
    if type(block_size) is not int or not 1 <= block_size <= 1024:
        raise RemoteError("ValueError", f"between 1 and 1024, not {str(block_size)[:40]}")
    make_cache = namespace_of("lab4-bench")["bench"](cache_class)
    return {"cache": make_cache(block_size, collide is True)}


INTERFACE = Interface(MAKE, make_bench, METHODS, {})
