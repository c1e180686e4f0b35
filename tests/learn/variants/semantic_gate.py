"""Variants of `semantic_gate`; see `variants` for their form."""

GATE = """
    from minserve.reuse.guards import NEGATIONS, OPPOSITES, words

    def semantic_gate(asked, stored, cosine, least, verify):
        a, b = words(asked), words(stored)
        if not a or not cosine >= least:
            return False
        if asked.strip().endswith("?") != stored.strip().endswith("?"):
            return False
        if sum(w in NEGATIONS for w in a) % 2 != sum(w in NEGATIONS for w in b) % 2:
            return False
        for one, other in OPPOSITES:
            if one & set(a) and other & set(b) or other & set(a) and one & set(b):
                return False
        if sorted(w for w in a if w.isdigit()) != sorted(w for w in b if w.isdigit()):
            return False
        try:
            return verify(asked, stored) is True
        except Exception:
            return False
"""

GATE_BY_TRAITS = """
    import re

    NO = re.compile(r"\\b(not|never|without)\\b")
    PAIRS = [("on", "off"), ("open", "close"), ("enable", "disable"), ("start", "stop")]

    def traits(text):
        said = re.findall(r"[a-z]+", text.lower())
        sides = [[w in said for w in pair] for pair in PAIRS]
        return {
            "act": text.strip()[-1:] == "?",
            "no": len(NO.findall(text.lower())) % 2,
            "sides": sides,
            "numbers": sorted(re.findall(r"[0-9]+", text)),
        }

    def semantic_gate(asked, stored, cosine, least, verify):
        if cosine >= least and asked.strip():
            if traits(asked) == traits(stored):
                try:
                    if verify(asked, stored) is True:
                        return True
                except Exception:
                    pass
        return False
"""

RIGHT = ("semantic_gate", {"one check a time": GATE, "by traits": GATE_BY_TRAITS})
WRONG = {
    "the same words": (
        "if not a or",
        "if a != b or",
        "paraphrases_pass",
        "they ask the same, and are near",
    ),
    "no return": (
        "return verify(asked, stored) is True",
        "verify(asked, stored) is True",
        "paraphrases_pass",
        "None: is a `return` missing?",
    ),
    "less than": (
        "not cosine >= least",
        "cosine < least",
        "what_is_far_is_refused",
        "they are not near",
    ),
    "one threshold": (
        "cosine >= least",
        "cosine >= 0.8",
        "threshold_is_the_intents_own",
        "this intent needs 0.95",
    ),
    "strictly above": (
        "cosine >= least",
        "cosine > least",
        "threshold_is_the_intents_own",
        "it is as near as it needs to be",
    ),
    "empty is equal": (
        "if not a or not",
        "if not",
        "empty_never_matches",
        "nothing was asked",
    ),
    "cosine alone": (
        "        if asked.strip()",
        "        return verify(asked, stored) is True\n        if asked.strip()",
        "an_order_is_no_question",
        "one asks how, the other wants it done",
    ),
    "one way only": (
        " or other & set(a) and one & set(b)",
        "",
        "opposites_are_refused",
        "they ask for opposite things",
    ),
    "negated question only": (
        "sum(w in NEGATIONS for w in a) % 2 != sum(w in NEGATIONS for w in b) % 2",
        "sum(w in NEGATIONS for w in a) > sum(w in NEGATIONS for w in b)",
        "negations_are_refused",
        "one negates the other",
    ),
    "as many numbers": (
        "sorted(w for w in a if w.isdigit()) != sorted(w for w in b if w.isdigit())",
        "sum(w.isdigit() for w in a) != sum(w.isdigit() for w in b)",
        "numbers_are_refused",
        "their numbers differ",
    ),
    "nothing is no objection": (
        "return verify(asked, stored) is True",
        "return verify(asked, stored) is not False",
        "a_failing_check_is_a_no",
        "verify says nothing, and the gate says True",
    ),
    "any words are a yes": (
        "return verify(asked, stored) is True",
        "return bool(verify(asked, stored))",
        "a_failing_check_is_a_no",
        "verify says why not, and the gate says True",
    ),
    "raises": (
        "except Exception:\n            return False",
        "except KeyError:\n            return False",
        "a_failing_check_is_a_no",
        "verify raises, and so does the gate",
    ),
}
