"""The engines that a learner's regression test of lab 3 meets: right ones and faulty ones."""

from __future__ import annotations

from typing import Any

from autograder.harness import RemoteError
from autograder.scoring.regression import Interface
from autograder.scoring.subjects import Subjects
from minserve.kv.blocks import BlockPool

LAB = "lab3_cancellation_leak"
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


SUBJECTS = Subjects(LAB, "lab3-setup", "lab3-engine", "CancellableEngine", FAULTY)


def make_bench(engine_class: type, num_blocks: Any = None, block_size: Any = 4) -> dict[str, Any]:
    """A fresh engine, its pool, and the events so far."""
    for value in (num_blocks, block_size):
        if type(value) is not int or not 1 <= value <= 4096:
            raise RemoteError("ValueError", f"between 1 and 4096, not {str(value)[:40]}")
    log: list[list[Any]] = []
    pool = BlockPool(num_blocks, block_size)
    engine = engine_class(pool, lambda *event: log.append(list(event)))
    return {"engine": engine, "pool": pool, "events": lambda: [list(event) for event in log]}


INTERFACE = Interface(MAKE, make_bench, METHODS, PROPERTIES)
