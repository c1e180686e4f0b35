"""Lab 5's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.lab5 import (
    BANK,
    DIGEST,
    REGRESSION_ONLY,
    edited,
    row,
    solved_but,
)

# Pieces of the solution that the edits below replace.
FORM = "        form = {name: request[name] for name in FIELDS}\n"
NFC = '        form["question"] = unicodedata.normalize("NFC", form["question"])\n'
PERSONAL = '        if request["scope"] == "user":\n'
SHELF = '        return self.key({**request, "question": ""})\n'
OTHERS = "            entry = self.in_other_words(request, now_s)\n"
FRESH = "            return None\n        return entry\n"
ON_SHELF = "            entry = self.fresh(key, now_s)\n"
FAILED = "        except Exception:\n            return False\n        least"
MATCH = 'return one == other and one["act"] == "ask" and least is not None and similarity >= least'
COMPLETE = '        if answer["finish_reason"] != "stop":\n'
JUDGED = '            if self.model.judge(request["question"])["act"] != "ask":\n'
ORDER = JUDGED + "                return False\n"
KEPT = "        self.shelves.setdefault(self.shelf(request), {})[key] = True\n        return True\n"
SOURCE = '            return event["source"] in entry.sources\n'
LEAVER = '            return is_theirs and entry.request["user"] == event["user"]\n'
EVENT = "            if self.is_hit_by(event, entry):\n"

WRONG = [
    row(
        "wrong: tenants share the shelves",
        lambda: edited((SHELF, SHELF.replace('"question": ""', '"question": "", "tenant": ""'))),
        (0, 4, 3, 3, 3, 1),
        contains="another tenant's answer",
        through_nbgrader=True,
    ),
    row(
        "wrong: tenants share the key",
        lambda: edited((FORM, FORM.replace("FIELDS}", 'FIELDS if name != "tenant"}'))),
        (0, 4, 3, 3, 3, 1),
        contains="partition",
    ),
    row(
        "wrong: users share personal answers",
        lambda: edited((PERSONAL, PERSONAL.replace('== "user"', "is None"))),
        (0, 4, 3, 3, 3, 1),
        contains="told in person",
    ),
    row(
        "wrong: every user has a cache of their own",
        lambda: edited((PERSONAL, "        if True:\n")),
        (0, 4, 3, 3, 3, 1),
        contains="a colleague asked the same",
    ),
    row(
        "wrong: the first answer stays",
        lambda: edited(
            (
                COMPLETE,
                "        if self.key(request) in self.entries:\n            return True\n"
                + COMPLETE,
            )
        ),
        (2, 4, 3, 3, 3, 1),
        contains="did not replace",
    ),
    row(
        "wrong: the model is not in the key",
        lambda: edited((FORM, FORM.replace("FIELDS}", 'FIELDS if name != "model"}'))),
        (4, 0, 3, 3, 3, 1),
        contains="only model differed",
    ),
    row(
        "wrong: fields joined by a control character",
        lambda: edited(
            (
                DIGEST,
                "        numbers = json.dumps([form.pop('temperature'), form.pop('max_tokens')])\n"
                "        kinds = str([value is None for value in form.values()])\n"
                "        return '\\x1f'.join([numbers, kinds, *map(str, form.values())])\n",
            )
        ),
        (4, 0, 3, 3, 3, 1),
        contains="run into each other",
        through_nbgrader=True,
    ),
    row(
        "wrong: a setting that was not given is 0",
        lambda: edited(
            (DIGEST, '        form["temperature"] = form["temperature"] or 0\n' + DIGEST)
        ),
        (4, 0, 3, 3, 3, 1),
        contains="written alike",
    ),
    row(
        "wrong: everything is text",
        lambda: edited((FORM, FORM.replace("name: request[name]", "name: str(request[name])"))),
        (4, 0, 3, 3, 3, 1),
        contains="written alike",
    ),
    row(
        "wrong: small letters",
        lambda: edited((NFC, NFC + '        form["question"] = form["question"].casefold()\n')),
        (4, 0, 3, 3, 3, 1),
        contains="taken for one",
    ),
    row(
        "wrong: NFKC",
        lambda: edited((NFC, NFC.replace('"NFC"', '"NFKC"'))),
        (4, 0, 3, 3, 3, 1),
        contains="taken for one",
    ),
    row(
        "wrong: spaces collapsed",
        lambda: edited(
            (NFC, NFC + '        form["question"] = " ".join(form["question"].split())\n')
        ),
        (4, 0, 3, 3, 3, 1),
        contains="taken for one",
    ),
    row(
        "wrong: no Unicode form",
        lambda: edited((NFC, "")),
        (4, 0, 3, 3, 3, 1),
        contains="another Unicode form",
    ),
    row(
        "wrong: Python's own hash",
        lambda: edited((DIGEST, "        return str(hash(json.dumps(form, sort_keys=True)))\n")),
        (4, 0, 3, 3, 3, 1),
        contains="another process",
    ),
    row(
        "wrong: hits extend the life of an answer",
        lambda: edited(
            (
                FRESH,
                "            return None\n        entry.stored_s = now_s\n        return entry\n",
            )
        ),
        (4, 4, 0, 3, 3, 1),
        contains="after its time was up",
        through_nbgrader=True,
    ),
    row(
        "wrong: other words are served for ever",
        lambda: edited((ON_SHELF, "            entry = self.entries.get(key)\n")),
        (4, 4, 0, 3, 3, 1),
        contains="after its time was up",
    ),
    row(
        "wrong: half the time",
        lambda: edited(("now_s - entry.stored_s >=", "2 * (now_s - entry.stored_s) >=")),
        (4, 4, 0, 3, 3, 1),
        contains="well before its time was up",
    ),
    row(
        "wrong: the policy is not on the shelf",
        lambda: edited((SHELF, SHELF.replace('""', '"", "policy_version": ""'))),
        (4, 4, 0, 3, 3, 1),
        contains="another policy version",
    ),
    row(
        "wrong: only the first source counts",
        lambda: edited((SOURCE, '            return event["source"] in entry.sources[:1]\n')),
        (4, 4, 0, 3, 3, 1),
        contains="a source that it lists",
    ),
    row(
        "wrong: shared answers of a deleted user stay",
        lambda: edited((LEAVER, LEAVER.rstrip() + ' and entry.request["scope"] == "user"\n')),
        (4, 4, 0, 3, 3, 1),
        contains="a user was deleted",
    ),
    row(
        "wrong: truncated answers are kept",
        lambda: edited((COMPLETE, COMPLETE.replace('!= "stop"', 'in ("error", "cancelled")'))),
        (4, 4, 0, 3, 3, 1),
        contains="'length'",
    ),
    row(
        "wrong: failed answers are kept",
        lambda: edited((COMPLETE, COMPLETE.replace('!= "stop"', 'in ("length", "cancelled")'))),
        (4, 4, 0, 3, 3, 1),
        contains="'error'",
    ),
    row(
        "wrong: any event empties the cache",
        lambda: edited((EVENT, "            if True:\n")),
        (4, 4, 1, 3, 3, 1),
        contains="does not make wrong",
    ),
    row(
        "wrong: policy events are left out",
        lambda: edited((EVENT, EVENT.replace("if ", 'if event["kind"] != "policy_changed" and '))),
        (4, 4, 1, 3, 3, 1),
        contains="still served",
    ),
    row(
        "wrong: put says nothing",
        lambda: edited((KEPT, KEPT.replace("        return True\n", ""))),
        (4, 4, 1, 3, 3, 1),
        contains="did not return True",
    ),
    row(
        "wrong: near enough is the same",
        lambda: edited((MATCH, "return similarity >= (least or 0.8)")),
        (4, 4, 3, 0, 3, 1),
        contains="got the answer to",
        through_nbgrader=True,
    ),
    row(
        "wrong: an order gets the answer to a question",
        lambda: edited(
            (MATCH, MATCH.replace('one == other and one["act"] == "ask"', "self.same(one, other)")),
            (
                "    def put(",
                "    def same(self, one, other):\n"
                '        return all(one[k] == other[k] for k in ("intent", "sense"))\n\n'
                "    def put(",
            ),
        ),
        (4, 4, 3, 0, 3, 1),
        contains="never replayed",
    ),
    row(
        "wrong: what was done is kept",
        lambda: edited((ORDER, "            pass\n")),
        (4, 4, 3, 0, 3, 1),
        contains="the same order was given again",
    ),
    row(
        "wrong: the opposite matches",
        lambda: edited((MATCH, MATCH.replace("one == other", 'one["intent"] == other["intent"]'))),
        (4, 4, 3, 0, 3, 1),
        contains="nothing about the sense",
    ),
    row(
        "wrong: one threshold for all",
        lambda: edited(
            (MATCH, MATCH.replace("least is not None and similarity >= least", "similarity >= 0.5"))
        ),
        (4, 4, 3, 0, 3, 1),
        contains="a check did not hold",
    ),
    row(
        "wrong: more than the threshold",
        lambda: edited((MATCH, MATCH.replace("similarity >=", "similarity >"))),
        (4, 4, 3, 0, 3, 1),
        contains="an honest paraphrase",
    ),
    row(
        "wrong: a model that is down lets everything pass",
        lambda: edited((FAILED, FAILED.replace("False", "True"))),
        (4, 4, 3, 0, 3, 1),
        contains="a check that fails",
    ),
    row(
        "wrong: a model that is down breaks the cache",
        lambda: edited((FAILED, FAILED.replace("return False", "raise"))),
        (4, 4, 3, 0, 3, 1),
        contains="TimeoutError",
    ),
    row(
        "wrong: the cache is off",
        lambda: edited(
            (OTHERS, "            return None\n"),
            (FRESH, "            return None\n        return None\n"),
        ),
        (0, 0, 0, 0, 3, 1),
        contains="was not",
    ),
    row(
        "partial: no other words at all",
        lambda: edited((OTHERS, "            return None\n")),
        (0, 4, 0, 0, 3, 1),
    ),
    row(
        "partial: right cache, untouched test",
        lambda: solved_but("lab5-regression"),
        (4, 4, 3, 3, 0, 1),
    ),
    row(
        "partial: untouched cache, right test",
        lambda: solved_but("lab5-cache"),
        REGRESSION_ONLY,
        through_nbgrader=True,
    ),
    row(
        "partial: a test of the tenant alone",
        lambda: solved_but(
            "lab5-regression",
            "def test_reuse(make_cache):\n"
            "    cache, model = make_cache()\n"
            "    cache.put(ask(), says('x'), 0)\n"
            "    assert cache.get(ask(tenant='globex'), 1) is None",
        ),
        (4, 4, 3, 3, 1, 1),
        contains="as long as people ask for it",
    ),
    row(
        "partial: a test of time and orders alone",
        lambda: solved_but(
            "lab5-regression",
            "def test_reuse(make_cache):\n"
            "    cache, model = make_cache(freshness_s=10)\n"
            "    cache.put(ask(), says('x'), 0)\n"
            "    assert cache.get(ask('Close my account.'), 1) is None\n"
            "    assert cache.get(ask(), 9) == 'x'\n"
            "    assert cache.get(ask(), 10) is None",
        ),
        (4, 4, 3, 3, 2, 1),
        contains="to another tenant",
    ),
    row(
        "partial: a test that asks what nobody promised",
        lambda: solved_but(
            "lab5-regression",
            BANK.solution("lab5-regression") + "\n    assert len(cache.key(ask())) == 64\n",
        ),
        (4, 4, 3, 3, 0, 1),
        contains="correct implementation",
    ),
    row(
        "partial: right cache, untouched bonus",
        lambda: solved_but("lab5-bonus"),
        (4, 4, 3, 3, 3, 0),
        contains="threshold",
    ),
    row(
        "partial: a bonus that lets a tie pass",
        lambda: solved_but(
            "lab5-bonus", BANK.solution("lab5-bonus").replace("near > near", "near >= near")
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "partial: a bonus that names every intent",
        lambda: solved_but(
            "lab5-bonus",
            BANK.solution("lab5-bonus")
            .replace("min(above)", "min(above, default=1.0)")
            .replace("        if above:\n    ", ""),
        ),
        (4, 4, 3, 3, 3, 0),
    ),
]
