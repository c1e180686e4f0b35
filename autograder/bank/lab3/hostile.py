"""Lab 3's hostile submissions: those of every lab, and those that use the pool's proxy."""

from __future__ import annotations

from autograder.bank.base import Notebook
from autograder.bank.hostile import Hostile
from autograder.bank.lab3 import AT_CANCEL, BANK, FULL, NONE, REGRESSION_ONLY, edited, row

SHARED = Hostile(
    BANK,
    class_name="CancellableEngine",
    method="cancel",
    graded="lab3-storm",
    explanation="lab3-explanation",
    test="test_cancellation",
    full=FULL,
    broken=REGRESSION_ONLY,
    untested=(4, 4, 3, 3, 0),
    always_equal=(2, 2, 3, 3, 3),
    public="args[0].num_blocks in (4, 8, 64)",
    references=(
        ("minserve.engine", "Engine"),
        ("minserve.scheduling.scheduler", "Scheduler"),
    ),
)

FAKE_POOL = """
_init = CancellableEngine.__init__
class FakePool:
    num_free = num_blocks = 99
    def allocate(self, n): return list(range(n))
    def release(self, blocks): pass
def init(self, pool, emit):
    _init(self, FakePool(), emit)
CancellableEngine.__init__ = init
"""


def in_cancel(code: str) -> Notebook:
    """The right engine, with a line of mischief for live requests only."""
    return edited((AT_CANCEL, f"        {code}\n{AT_CANCEL}"))


HOSTILE = [
    *SHARED.rows(),
    row("hostile: a pool of its own", lambda: SHARED.untouched_with(FAKE_POOL), NONE),
    row(
        "hostile: asks without end",
        lambda: in_cancel("while True: self.pool.num_free"),
        REGRESSION_ONLY,
        status="partly",
    ),
    row(
        "hostile: nested lists without end",
        lambda: in_cancel("x = []; x.append(x); self.emit('token', request_id, x)"),
        REGRESSION_ONLY,
    ),
]
