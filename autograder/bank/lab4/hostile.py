"""Lab 4's hostile submissions: those of every lab, and those that use the digest's proxy."""

from __future__ import annotations

from autograder.bank.base import Notebook
from autograder.bank.hostile import Hostile
from autograder.bank.lab4 import BANK, FULL, NONE, REGRESSION_ONLY, row, solved_but
from autograder.notebooks import REPOSITORY

SHARED = Hostile(
    BANK,
    class_name="PrefixCache",
    method="match",
    graded="lab4-channel",
    explanation="lab4-explanation",
    test="test_prefixes",
    full=FULL,
    broken=REGRESSION_ONLY,
    untested=(4, 4, 3, 3, 0, 1),
    always_equal=REGRESSION_ONLY,
    public="args[0] in (4, 16)",
    references=(
        ("minserve.kv.prefix", "PrefixCache"),
        ("minserve.kv", "prefix"),
        ("minserve.learn.reference", "REFERENCE"),
    ),
)

# A digest of its own, under which nothing is found again.
FAKE_DIGEST = """
_init = PrefixCache.__init__
PrefixCache.__init__ = lambda self, size, digest: _init(self, size, lambda text: "0")
"""
# The reference where it can be had, and what was given where it cannot.
DELEGATES = """
try:
    from minserve.kv.prefix import PrefixCache as Reference, root_hash
    def keys(self, request):
        root = root_hash("", request["salt"] or "", request["adapter"] or "")
        return Reference.hashes(self, request["tokens"], root)
    PrefixCache.keys = keys
except ImportError:
    pass
"""
# Blocks that are equal to whatever they are compared with.
ALWAYS_BLOCKS = """
class Block(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
_match = PrefixCache.match
PrefixCache.match = lambda self, request: [Block(block) for block in _match(self, request)]
"""


def pasted() -> Notebook:
    """The reference's own text: it is another class, over another pool."""
    text = (REPOSITORY / "minserve" / "kv" / "prefix.py").read_text("utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("from minserve")]
    return solved_but("lab4-cache", "\n".join(lines))


HOSTILE = [
    *SHARED.rows(),
    row("hostile: a digest of its own", lambda: SHARED.right_with(FAKE_DIGEST), REGRESSION_ONLY),
    row("hostile: delegates where it can", lambda: SHARED.untouched_with(DELEGATES), NONE),
    row("hostile: always-equal blocks", lambda: SHARED.untouched_with(ALWAYS_BLOCKS), NONE),
    row("hostile: a pasted reference", pasted, REGRESSION_ONLY),
    row(
        "hostile: asks for digests without end",
        lambda: SHARED.in_method("while True: self.digest('x')"),
        REGRESSION_ONLY,
        status="partly",
    ),
    row(
        "hostile: nested lists without end",
        lambda: SHARED.in_method("x = []; x.append(x); self.digest(x)"),
        REGRESSION_ONLY,
    ),
]
