"""The rules of a semantic gate: near misses are refused whatever their cosine, and doubt is no.

A candidate is called with `verify(asked, stored)`, and gives a `minserve.reuse` semantic gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite

_STEP = "allows"
NEAR = 0.97
OPPOSITES = (
    ("How do I turn on dark mode?", "How do I turn off dark mode?"),
    ("How do I open an account?", "How do I close an account?"),
    ("How do I enable the alarm?", "How do I disable the alarm?"),
    ("How do I start the backup?", "How do I stop the backup?"),
)
NEGATIONS = (
    ("Is the drug safe?", "Is the drug not safe?"),
    ("Can I log in with a password?", "Can I log in without a password?"),
    ("Is theft covered?", "Is theft never covered?"),
)
NUMBERS = (
    ("What changed in 2023?", "What changed in 2024?"),
    ("Is it refunded after 30 days?", "Is it refunded after 60 days?"),
    ("Is the meeting on 3 May?", "Is the meeting on 13 May?"),
)
PARAPHRASES = (
    ("How do I turn on dark mode?", "How can I turn dark mode on?"),
    ("What changed in 2023?", "In 2023, what changed?"),
    ("Is the drug not safe?", "Is it true that the drug is not safe?"),
)
RULES: list[Rule] = []


def _rule(invariant: str, hint: str) -> Callable[[Callable], Callable]:
    def add(check: Callable[[Callable], None]) -> Callable:
        RULES.append(Rule(check.__name__.lstrip("_"), _STEP, invariant, hint, check))
        return check

    return add


def _expect(make: Any, asked: str, stored: str, cosine: float, wanted: bool, why: str) -> None:
    allowed = make(lambda asked, stored: True).allows(asked, stored, cosine)
    if allowed is not wanted:
        call = f"gate.allows({asked!r}, {stored!r}, cosine={cosine})"
        raise BrokenRule(f"{why}: {wanted} is wanted; it says {allowed!r}", [call])


def _refuses(make: Any, pairs: tuple[tuple[str, str], ...], why: str) -> None:
    for one, other in pairs:
        for asked, stored in ((one, other), (other, one)):
            _expect(make, asked, stored, NEAR, False, why)


@_rule("Another wording of the same question is allowed.", "Compare meaning, not text.")
def _paraphrases_pass(make) -> None:
    for asked, stored in PARAPHRASES:
        _expect(make, asked, stored, NEAR, True, "they ask the same, and are near")


@_rule("A low cosine is refused.", "A least cosine; 0.8 to 0.95 are usual.")
def _what_is_far_is_refused(make) -> None:
    asked, stored = PARAPHRASES[0]
    for cosine in (0.3, -1.0, float("nan")):
        _expect(make, asked, stored, cosine, False, "they are not near")


@_rule("Opposites are refused, however near.", "on/off, open/close, enable/disable, start/stop.")
def _opposites_are_refused(make) -> None:
    _refuses(make, OPPOSITES, "they ask for opposite things")


@_rule("A negation on one side is refused.", "Count not, never, no, without on each side.")
def _negations_are_refused(make) -> None:
    _refuses(make, NEGATIONS, "one negates the other")


@_rule("Other numbers and dates are refused.", "The digits of both must be the same.")
def _numbers_are_refused(make) -> None:
    _refuses(make, NUMBERS, "their numbers differ")


@_rule("An empty question never matches.", "Refuse it first.")
def _empty_never_matches(make) -> None:
    for asked in ("", "   "):
        _expect(make, asked, asked, 1.0, False, "nothing was asked")


@_rule("A check that fails or raises is a no.", "try, and compare with True.")
def _a_failing_check_is_a_no(make) -> None:
    def broken(asked: str, stored: str) -> bool:
        raise ConnectionError("no connection")

    asked, stored = PARAPHRASES[0]
    for verify, name in (
        (lambda asked, stored: False, "says False"),
        (lambda asked, stored: None, "says nothing"),
        (broken, "raises"),
    ):
        example = [f"verify {name}", f"gate.allows({asked!r}, {stored!r}, cosine={NEAR})"]
        try:
            allowed = make(verify).allows(asked, stored, NEAR)
        except ConnectionError:
            raise BrokenRule(
                "verify raises, and so does the gate: say no instead", example
            ) from None
        if allowed is not False:
            raise BrokenRule(f"verify {name}, and the gate says {allowed!r}", example)


SUITE = Suite(
    "semantic_gate",
    (_STEP,),
    tuple(RULES),
    {
        _STEP: Ladder(
            drawing="near enough? -> same polarity? -> same numbers? -> verify says True? -> yes",
            pseudocode="""\
if not asked.strip() or not cosine >= least: return False
if negations(asked) % 2 != negations(stored) % 2: return False
if any(one side of a pair in asked, the other in stored): return False
if digits(asked) != digits(stored): return False
try: return verify(asked, stored) is True
except Exception: return False""",
            near_miss="- return cosine > 0.95\n+ return cosine > 0.95 and same_polarity(...)",
        )
    },
)
