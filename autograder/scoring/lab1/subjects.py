"""The reports that a learner's regression test of lab 1 meets: right ones and faulty ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from autograder import planting
from autograder.harness import RemoteError
from autograder.notebooks import source_cells
from autograder.scoring.regression import Interface
from minserve.errors import ConfigError

LAB = "lab1_load_report"
METHODS = {"report": {"figures": []}}
MAKE = {
    "name": "make_report",
    "methods": {"__call__": ["records", "ttft_limit_s", "tpot_limit_s"]},
    "properties": [],
    "emptied": {},
}

# Each edit turns the solution into one fault: (text of the solution, its replacement)
POOLED = """\
        values = [value for record in records for value in figure(record)]
        if not values:
            return None
        return {name: percentile(values, share) for name, share in SHARES.items()}
"""
AVERAGED = """\
        windows = {}
        for record in records:
            windows.setdefault(record["intended_s"] // 10, []).extend(figure(record))
        windows = [values for values in windows.values() if values]
        if not windows:
            return None
        return {
            name: sum(percentile(values, share) for values in windows) / len(windows)
            for name, share in SHARES.items()
        }
"""
FAULTY = {
    "a role": (
        "takes the role for the first token",
        'next(chunk["time_s"] for chunk in record["chunks"] if chunk["num_tokens"] > 0)',
        'record["chunks"][0]["time_s"]',
    ),
    "averages": ("averages the percentiles of ten-second windows", POOLED, AVERAGED),
    "survivors": (
        "leaves failures out of the attainment",
        'outcomes["ok"] + outcomes["error"] + outcomes["timeout"]',
        'outcomes["ok"]',
    ),
}


def solution() -> str:
    """The report cell of the solution, without markers."""
    return planting.plant(source_cells(LAB)["lab1-report"], None)


def build(source: str) -> type:
    """The class that a trusted source defines."""
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(source_cells(LAB)["lab1-setup"], "<setup>", "exec"), namespace)
    exec(compile(source, "<report>", "exec"), namespace)
    return namespace["LoadReport"]


@lru_cache
def right() -> tuple[tuple[str, type], ...]:
    """Correct reports, written differently."""
    from autograder.bank import right_sources

    return (
        ("the solution", build(solution())),
        *((name, build(source)) for name, source in right_sources(LAB).items()),
    )


@lru_cache
def faulty() -> dict[str, tuple[type, str]]:
    """name -> (report with that one fault, what it does in words)."""
    made = {}
    for name, (words, old, new) in FAULTY.items():
        source = solution()
        if source.count(old) != 1:
            raise ConfigError(f"the solution of {LAB} changed: cannot plant {name!r}")
        made[name] = (build(source.replace(old, new)), words)
    return made


def make_report(
    report_class: type, records: Any = None, ttft_limit_s: Any = None, tpot_limit_s: Any = None
) -> dict[str, Any]:
    """A report of a learner's own records, if they are records."""
    for value in (ttft_limit_s, tpot_limit_s):
        if type(value) not in (int, float) or not 0 < value < 1e9:
            raise RemoteError("ValueError", "a limit is a number of seconds")
    if type(records) is not list or not all(type(record) is dict for record in records):
        raise RemoteError("TypeError", "records are a list of dictionaries, as record() makes them")
    return {"report": report_class(records, ttft_limit_s, tpot_limit_s)}


INTERFACE = Interface(MAKE, make_report, METHODS, {})
