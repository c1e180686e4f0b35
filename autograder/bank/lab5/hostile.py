"""Lab 5's hostile submissions: those of every lab, and those that use the model's proxy."""

from __future__ import annotations

from autograder.bank.base import append
from autograder.bank.hostile import Hostile
from autograder.bank.lab5 import (
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
    class_name="AnswerCache",
    method="get",
    graded="lab5-fresh",
    explanation="lab5-explanation",
    test="test_reuse",
    full=FULL,
    broken=REGRESSION_ONLY,
    untested=(4, 4, 3, 3, 0, 1),
    always_equal=REGRESSION_ONLY,
    public="'close' in args[1]",
    references=(
        ("minserve.reuse.response", "ExactCache"),
        ("minserve.reuse.key", "CanonicalKey"),
        ("minserve.reuse", "semantic"),
    ),
)

# A model of its own: it knows the public questions and says yes to the rest.
FAKE_MODEL = """
_init = AnswerCache.__init__
class FakeModel:
    def judge(self, question):
        act = "do" if question.startswith(("Close", "Please", "Enable", "Extend")) else "ask"
        return {"intent": "close", "act": act, "sense": "+"}
    def similarity(self, one, other): return 1.0
AnswerCache.__init__ = lambda self, model, *rest: _init(self, FakeModel(), *rest)
"""
# The reference where it can be had, and what was given where it cannot.
DELEGATES = """
try:
    from minserve.reuse.key import CanonicalKey
    from minserve.reuse.guards import failed_guard
    AnswerCache.key = lambda self, request: CanonicalKey().of(request)
    AnswerCache.asks_the_same = lambda self, one, other: failed_guard(one, other) is None
except ImportError:
    pass
"""

KEY_TYPE = """
class Key(str):
    pass
_key = AnswerCache.key
AnswerCache.key = lambda self, request: Key(_key(self, request))
"""


def pasted():
    """The reference's own text, under the class's name."""
    text = (REPOSITORY / "minserve" / "reuse" / "key.py").read_text("utf-8")
    lines = [line for line in text.split("\n") if "minserve" not in line and "rfc8785" not in line]
    source = "\n".join(lines) + "\nclass AnswerCache(CanonicalKey):\n    key = CanonicalKey.of\n"
    return solved_but("lab5-cache", source)


def memorised_questions():
    """The untouched cache beside a list of the public questions."""
    code = "AnswerCache.asks_the_same = lambda self, one, other: {one, other} <= SAME\n"
    same = {"How do I close an account?", "How can an account be closed?"}
    return append(released(), "lab5-cache", f"SAME = {same!r}\n{code}")


HOSTILE = [
    *SHARED.rows(),
    row("hostile: a model of its own", lambda: SHARED.right_with(FAKE_MODEL), (0, 4, 0, 0, 3, 1)),
    row("hostile: delegates where it can", lambda: SHARED.untouched_with(DELEGATES), NONE),
    row("hostile: a pasted reference", pasted, REGRESSION_ONLY, status="crashed"),
    row("hostile: memorised questions", memorised_questions, NONE),
    row(
        "hostile: asks the model without end",
        lambda: SHARED.in_method("while True: self.model.judge('x')"),
        REGRESSION_ONLY,
        status="partly",
    ),
    row(
        "hostile: nested lists without end",
        lambda: SHARED.in_method("x = []; x.append(x); self.model.judge(x)"),
        REGRESSION_ONLY,
    ),
    row(
        "hostile: a key of another type",
        lambda: SHARED.right_with(KEY_TYPE),
        (4, 0, 3, 3, 3, 1),
        contains="another process",
    ),
]
