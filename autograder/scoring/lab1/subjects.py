"""The reports that a learner's regression test of lab 1 meets: right ones and faulty ones."""

from __future__ import annotations

from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects

LAB = "lab1_load_report"
MAX_TOKENS = 100_000  # of all answers of one report
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


SUBJECTS = Subjects(LAB, "lab1-setup", "lab1-report", "LoadReport", FAULTY)


def make_report(
    report_class: type, records: Any = None, ttft_limit_s: Any = None, tpot_limit_s: Any = None
) -> dict[str, Any]:
    """A report of a learner's own records, if they are records."""
    for value in (ttft_limit_s, tpot_limit_s):
        if type(value) not in (int, float) or not 0 < value < 1e9:
            raise RemoteError("ValueError", "a limit is a number of seconds")
    if type(records) is not list or not all(type(record) is dict for record in records):
        raise RemoteError("TypeError", "records are a list of dictionaries, as record() makes them")
    if sum(num_tokens(record) for record in records) > MAX_TOKENS:
        raise RemoteError("ValueError", f"a test's answers may have {MAX_TOKENS} tokens")
    return {"report": report_class(records, ttft_limit_s, tpot_limit_s)}


def num_tokens(record: dict[str, Any]) -> int:
    """Tokens of a record, as far as it is one: a report may keep a time for each."""
    chunks = record.get("chunks")
    chunks = [c for c in chunks if type(c) is dict] if type(chunks) is list else []
    counts = [chunk.get("num_tokens") for chunk in chunks]
    return sum(max(0, count) for count in counts if type(count) is int)


INTERFACE = Interface(MAKE, make_report, METHODS, {}, max_values=30_000)
