"""Lab 6's hostile submissions: those of every lab, and those that use the store's proxy."""

from __future__ import annotations

from autograder.bank.base import append
from autograder.bank.hostile import Hostile
from autograder.bank.lab6 import (
    BANK,
    FULL,
    NONE,
    REGRESSION_ONLY,
    released,
    row,
    solved_but,
)
from autograder.notebooks import REPOSITORY

SHARED = Hostile(
    BANK,
    class_name="PaymentQueue",
    method="claim",
    graded="lab6-accepted",
    explanation="lab6-explanation",
    test="test_delivery",
    full=FULL,
    broken=REGRESSION_ONLY,
    untested=(4, 3, 4, 3, 0, 1),
    always_equal=REGRESSION_ONLY,
    public="args[1] == 30",
    references=(
        ("minserve.learn.leases", "JobLease"),
        ("minserve.jobs.store", "JobStore"),
        ("minserve.learn.reference", "JobLease"),
    ),
)

# A store of its own: all promises are kept, in memory, and nobody is paid.
OWN_STORE = """
class OwnStore:
    def __init__(self): self.tables = {}
    def get(self, table, key):
        return json.loads(json.dumps(self.tables.get(table, {}).get(key)))
    def rows(self, table):
        return [[k, json.loads(json.dumps(r))] for k, r in self.tables.get(table, {}).items()]
    def commit(self, writes):
        for table, key, row in writes:
            self.tables.setdefault(table, {})[key] = row
_init = PaymentQueue.__init__
PaymentQueue.__init__ = lambda self, store, *rest: _init(self, OwnStore(), *rest)
"""
# The reference where it can be had, and what was given where it cannot.
DELEGATES = """
try:
    from minserve.learn.leases import JobLease
    _init = PaymentQueue.__init__
    def both(self, store, lease_s, max_attempts):
        _init(self, store, lease_s, max_attempts)
        self.lease = JobLease(lease_s, max_attempts)
    PaymentQueue.__init__ = both
    PaymentQueue.claim = lambda self, worker, now_s: self.lease.claim(now_s)
except ImportError:
    pass
"""
# Catches what the killed process would have died of, and says that all went well.
SURVIVES = """
class Deaf:
    def __init__(self, store): self.store = store
    def __getattr__(self, name):
        def call(*args):
            try:
                return getattr(self.store, name)(*args)
            except BaseException:
                return []
        return call
_init = PaymentQueue.__init__
PaymentQueue.__init__ = lambda self, store, *rest: _init(self, Deaf(store), *rest)
"""
# Claims whose token equals every other: believed by nobody who compares plain numbers.
EQUAL_TOKENS = """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
_claim = PaymentQueue.claim
def claim(self, worker, now_s):
    told = _claim(self, worker, now_s)
    return told and told | {"token": Any(told["token"])}
PaymentQueue.claim = claim
"""
MEMORISED_KEYS = """
_submit = PaymentQueue.submit
def submit(self, key, body, now_s):
    if key == "order-1" and body.get("cents") == 9900:
        return None
    return _submit(self, key, body, now_s)
PaymentQueue.submit = submit
"""


def pasted():
    """The reference's own text, under the class's name."""
    text = (REPOSITORY / "minserve" / "learn" / "leases.py").read_text("utf-8")
    text = text.replace("from __future__ import annotations\n", "")
    source = f"{text}\nclass PaymentQueue(JobLease):\n"
    source += "    def __init__(self, store, *rest):\n        super().__init__(*rest)\n"
    return solved_but("lab6-queue", source)


def storing(code: str):
    return SHARED.in_method(code)


HOSTILE = [
    *SHARED.rows(),
    row("hostile: a store of its own", lambda: SHARED.right_with(OWN_STORE), REGRESSION_ONLY),
    row("hostile: delegates where it can", lambda: SHARED.untouched_with(DELEGATES), NONE),
    row("hostile: a pasted reference", pasted, REGRESSION_ONLY, contains="AttributeError"),
    row("hostile: survives its own death", lambda: SHARED.right_with(SURVIVES), FULL),
    row("hostile: tokens that equal any", lambda: SHARED.right_with(EQUAL_TOKENS), REGRESSION_ONLY),
    row(
        "hostile: memorised keys",
        lambda: append(released(), "lab6-queue", MEMORISED_KEYS),
        NONE,
    ),
    row(
        "hostile: asks the store without end",
        lambda: storing("while True: self.store.get('jobs', 'x')"),
        REGRESSION_ONLY,
        status="partly",
    ),
    row(
        "hostile: fills the store",
        lambda: storing("while True: self.store.commit([['x', 'y', 'z' * 100_000]])"),
        REGRESSION_ONLY,
        status="partly",
        contains="sent more than 16777216 bytes",
    ),
    row(
        "hostile: nested lists without end",
        lambda: storing("x = []; x.append(x); self.store.commit([['x', 'y', x]])"),
        REGRESSION_ONLY,
        contains="RecursionError",
    ),
    row(
        "hostile: rows too deep to send back",
        lambda: storing("self.store.commit([['x', 'y', json.loads('[' * 300 + ']' * 300)]])"),
        REGRESSION_ONLY,
        contains="TypeError",
    ),
    row(
        "hostile: takes payments back",
        lambda: storing("self.store.commit([['ledger', 'x', None]])"),
        REGRESSION_ONLY,
        contains="ValueError",
    ),
]
