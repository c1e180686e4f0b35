"""The rules of a semantic gate: near misses are refused whatever their cosine, and doubt is no.

A candidate is `semantic_gate(asked, stored, cosine, least, verify)`; see
`minserve.learn.parts_of_reuse`.
"""

from __future__ import annotations

from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rules, Suite, returned

NEARNESS, WORDS, CHECK = "nearness", "words", "check"
NEAR, LEAST = 0.97, 0.8
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
ORDERS = (
    ("How do I close an account?", "Close my account."),
    ("How do I cancel my plan?", "Please cancel my plan."),
)
PARAPHRASES = (
    ("How do I turn on dark mode?", "How can I turn dark mode on?"),
    ("What changed in 2023?", "In 2023, what changed?"),
    ("Is the drug not safe?", "Is it true that the drug is not safe?"),
)
RULES = Rules()
rule = RULES.add


def _expect(
    gate: Any, asked: str, stored: str, cosine: float, wanted: bool, why: str, least: float = LEAST
) -> None:
    allowed = gate(asked, stored, cosine, least, lambda asked, stored: True)
    if allowed is not wanted:
        call = f"semantic_gate({asked!r}, {stored!r}, cosine={cosine}, least={least}, verify)"
        said = returned(allowed)
        raise BrokenRule(f"{why}: {wanted} is wanted; it says {said}", [call])


def _refuses(gate: Any, pairs: tuple[tuple[str, str], ...], why: str) -> None:
    for one, other in pairs:
        for asked, stored in ((one, other), (other, one)):
            _expect(gate, asked, stored, NEAR, False, why)


@rule(NEARNESS, "Other words for the same question are allowed.", "Compare meaning, not text.")
def _paraphrases_pass(gate) -> None:
    for asked, stored in PARAPHRASES:
        _expect(gate, asked, stored, NEAR, True, "they ask the same, and are near")


@rule(NEARNESS, "A low cosine is refused.", "`not cosine >= least`: NaN compares as False.")
def _what_is_far_is_refused(gate) -> None:
    asked, stored = PARAPHRASES[0]
    for cosine in (0.3, -1.0, float("nan")):
        _expect(gate, asked, stored, cosine, False, "they are not near")


@rule(NEARNESS, "How near is near enough is the intent's own.", "`least`, and no constant.")
def _threshold_is_the_intents_own(gate) -> None:
    asked, stored = PARAPHRASES[0]
    _expect(gate, asked, stored, 0.9, False, "this intent needs 0.95", least=0.95)
    _expect(gate, asked, stored, 0.6, True, "for this intent 0.55 will do", least=0.55)
    _expect(gate, asked, stored, 0.9, True, "it is as near as it needs to be", least=0.9)


@rule(NEARNESS, "An empty question never matches.", "Refuse it first.")
def _empty_never_matches(gate) -> None:
    for asked in ("", "   "):
        _expect(gate, asked, asked, 1.0, False, "nothing was asked")


@rule(WORDS, "A question is no order.", "Does one end with a question mark, and the other not?")
def _an_order_is_no_question(gate) -> None:
    _refuses(gate, ORDERS, "one asks how, the other wants it done")


@rule(WORDS, "Opposites are refused, however near.", "One side in one, the other in the other.")
def _opposites_are_refused(gate) -> None:
    _refuses(gate, OPPOSITES, "they ask for opposite things")


@rule(WORDS, "A negation on one side is refused.", "Count not, never, no, without on each side.")
def _negations_are_refused(gate) -> None:
    _refuses(gate, NEGATIONS, "one negates the other")


@rule(WORDS, "Other numbers and dates are refused.", "The words with digits must be the same.")
def _numbers_are_refused(gate) -> None:
    _refuses(gate, NUMBERS, "their numbers differ")


@rule(CHECK, "A check that fails or raises is a no.", "try, and compare with True.")
def _a_failing_check_is_a_no(gate) -> None:
    def broken(asked: str, stored: str) -> bool:
        raise ConnectionError("no connection")

    asked, stored = PARAPHRASES[0]
    for verify, name in (
        (lambda asked, stored: False, "says False"),
        (lambda asked, stored: None, "says nothing"),
        (lambda asked, stored: "another product", "says why not"),
        (broken, "raises"),
    ):
        call = f"semantic_gate({asked!r}, {stored!r}, cosine={NEAR}, least={LEAST}, verify)"
        example = [f"verify {name}", call]
        try:
            allowed = gate(asked, stored, NEAR, LEAST, verify)
        except ConnectionError:
            raise BrokenRule(
                "verify raises, and so does the gate: say no instead", example
            ) from None
        if allowed is not False:
            raise BrokenRule(f"verify {name}, and the gate says {allowed!r}", example)


SUITE = Suite(
    "semantic_gate",
    (NEARNESS, WORDS, CHECK),
    tuple(RULES),
    {
        NEARNESS: Ladder(
            drawing="""\
asked   --+
          +-- cosine 0.93   least of this intent 0.95   ->  no
stored  --+                 least of this intent 0.90   ->  look at the words""",
            pseudocode="""\
if no words were asked: return False
if not cosine >= least: return False      (NaN is never >= anything)""",
            near_miss="- if cosine < least: return False\n+ if not cosine >= least: return False",
        ),
        WORDS: Ladder(
            drawing="""\
near enough? -> both ask, or both order? -> same polarity? -> same numbers? -> check
"turn ON dark mode"  "turn OFF dark mode"    one side each: no
"is it safe"         "is it NOT safe"        one negation more: no""",
            pseudocode="""\
if ends_with_question_mark(asked) != ends_with_question_mark(stored): return False
if negations(asked) % 2 != negations(stored) % 2: return False
for one, other in OPPOSITES:
    if asked names one side only and stored the other only: return False
if sorted words with digits differ: return False""",
            near_miss="""\
- if "not" in a and "not" not in b: return False
+ if num_negations(a) % 2 != num_negations(b) % 2: return False     either side, any word""",
        ),
        CHECK: Ladder(
            drawing="verify says True -> True.   False, None, an error, no connection -> False.",
            pseudocode="""\
try: return verify(asked, stored) is True
except Exception: return False""",
            near_miss="- return verify(asked, stored)\n+ return verify(asked, stored) is True",
        ),
    },
)
