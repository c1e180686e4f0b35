"""Lab 4's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.lab4 import (
    BANK,
    PREFIX,
    REGRESSION_ONLY,
    ROOT,
    edited,
    rooted,
    row,
    solved_but,
)

# Pieces of the solution that the edits below replace.
STEP = "parent = self.digest(json.dumps([parent, tokens[start : start + size]]))"
LIMIT = '(len(request["tokens"]) - 1) // self.block_size'
COMPARE = "if entry is None or entry.prefix != self.prefix(request, index):"
FILLED = "num_blocks = num_computed // self.block_size"
EVICT = "            del self.entries[self.key_of_block.pop(block)]"

WRONG = [
    row(
        "wrong: no salt at all",
        lambda: rooted('request["adapter"]'),
        (0, 0, 3, 0, 3, 1),
        contains="under another salt",
        through_nbgrader=True,
    ),
    row(
        "wrong: the salt is in the key and not compared",
        lambda: edited((PREFIX, PREFIX.replace('request["salt"], ', ""))),
        (4, 0, 3, 3, 3, 1),
        contains="a digest is a hint",
    ),
    row(
        "wrong: a block's own tokens are compared, and not those before it",
        lambda: edited((PREFIX, PREFIX.replace("[:end]", "[end - self.block_size : end]"))),
        (4, 0, 3, 3, 3, 1),
        contains="is that all the KV depends on?",
    ),
    row(
        "wrong: the digest is trusted",
        lambda: edited((COMPARE, "if entry is None:")),
        (4, 0, 3, 3, 3, 1),
        contains="same digest",
    ),
    row(
        "wrong: the salt of the body comes first",
        lambda: rooted('[request["body"].get("cache_salt", request["salt"]), request["adapter"]]'),
        (0, 4, 3, 0, 3, 1),
        contains="the body has no say",
        through_nbgrader=True,
    ),
    row(
        "wrong: another field of the body is trusted",
        lambda: rooted('[request["body"].get("salt") or request["salt"], request["adapter"]]'),
        (0, 4, 3, 3, 3, 1),
        contains="the body claims",
    ),
    row(
        "wrong: the body is part of the key",
        lambda: rooted('[request["salt"], request["adapter"], request["body"]]'),
        (0, 4, 3, 3, 3, 1),
        contains="the body says something else",
    ),
    row(
        "wrong: the first block is everybody's",
        lambda: edited(
            (ROOT, 'parent = json.dumps([request["adapter"]])'),
            (STEP, STEP.replace("[parent,", '[request["salt"] if start else 0, parent,')),
            (PREFIX, PREFIX.replace('request["salt"]', 'request["salt"] if index else 0')),
        ),
        (0, 0, 3, 0, 3, 1),
        contains="answered faster where it was right",
        through_nbgrader=True,
    ),
    row(
        "wrong: salt and adapter joined",
        lambda: rooted("str(request['salt']) + str(request['adapter'])"),
        (0, 0, 3, 3, 3, 1),
        contains="the text 'None'",
    ),
    row(
        "wrong: salt and adapter joined with care for None",
        lambda: rooted(
            "[request['salt'] is None, request['adapter'] is None,"
            " (request['salt'] or '') + (request['adapter'] or '')]"
        ),
        (4, 0, 3, 3, 3, 1),
        contains="taken for one another",
    ),
    row(
        "wrong: no salt is the same as an empty one",
        lambda: rooted("[request['salt'] or '', request['adapter']]"),
        (0, 0, 3, 3, 3, 1),
        contains="an empty text",
    ),
    row(
        "wrong: no adapter",
        lambda: rooted("request['salt']"),
        (4, 0, 3, 3, 3, 1),
        contains="another adapter",
    ),
    row(
        "wrong: no adapter is one called None",
        lambda: rooted("[request['salt'], str(request['adapter'])]"),
        (4, 0, 3, 3, 3, 1),
        contains="None is not a name",
    ),
    row(
        "wrong: each block by itself",
        lambda: edited(
            (STEP, STEP.replace("parent = ", "key = ")),
            ("keys.append(parent)", "keys.append(key)"),
            (
                PREFIX,
                "return [request['salt'], request['adapter'], "
                "request['tokens'][end - self.block_size : end]]",
            ),
        ),
        (4, 0, 3, 3, 3, 1),
        contains="chained",
    ),
    row(
        "wrong: tokens of sixteen bits",
        lambda: edited(
            (STEP, STEP.replace("tokens[start", "[t % 65536 for t in tokens][start")),
            (
                PREFIX,
                PREFIX.replace('request["tokens"][', '[t % 65536 for t in request["tokens"]]['),
            ),
        ),
        (4, 0, 3, 3, 3, 1),
        contains="one token differs",
    ),
    row(
        "wrong: digits run together",
        lambda: edited(
            (
                STEP,
                STEP.replace(
                    "tokens[start : start + size]",
                    '"".join(map(str, tokens[start : start + size]))',
                ),
            ),
            (
                PREFIX,
                PREFIX.replace(
                    'request["tokens"][:end]', '"".join(map(str, request["tokens"][:end]))'
                ),
            ),
        ),
        (4, 0, 3, 3, 3, 1),
        contains="digits moved",
    ),
    row(
        "wrong: blocks are offered before they are computed",
        lambda: edited((FILLED, "num_blocks = len(blocks)")),
        (4, 4, 0, 3, 3, 1),
        contains="not computed, or not full",
        through_nbgrader=True,
    ),
    row(
        "wrong: a block that is begun counts",
        lambda: edited((FILLED, "num_blocks = -(-num_computed // self.block_size)")),
        (4, 4, 0, 3, 3, 1),
        contains="only a full and computed block",
    ),
    row(
        "wrong: nothing is left to compute",
        lambda: edited((LIMIT, LIMIT.replace(" - 1", ""))),
        (4, 4, 0, 3, 3, 1),
        contains="matched whole",
    ),
    row(
        "wrong: evicted blocks are still offered",
        lambda: edited((EVICT, "            self.key_of_block.pop(block)")),
        (4, 4, 0, 3, 3, 1),
        contains="no longer holds",
    ),
    row(
        "wrong: an evicted prefix is never learned again",
        lambda: edited((EVICT, "            self.entries[self.key_of_block.pop(block)] = None")),
        (4, 4, 0, 3, 3, 1),
        contains="computed again after it was evicted",
    ),
    row(
        "wrong: an unknown block empties the cache",
        lambda: edited((EVICT, EVICT + "\n        else:\n            self.entries.clear()")),
        (4, 4, 1, 3, 3, 1),
        contains="evicting an unknown block",
    ),
    row(
        "wrong: an unknown block is an error",
        lambda: edited(("        if block in self.key_of_block:\n", "        if True:\n")),
        (4, 4, 1, 3, 3, 1),
        contains="KeyError",
    ),
    row(
        "wrong: the cache is off",
        lambda: edited((COMPARE, "if True:")),
        REGRESSION_ONLY,
        contains="were not found",
    ),
    row(
        "wrong: one block is enough",
        lambda: edited((LIMIT, f"min(1, {LIMIT})")),
        REGRESSION_ONLY,
        contains="not served faster",
    ),
    row(
        "partial: right cache, untouched test",
        lambda: solved_but("lab4-regression"),
        (4, 4, 3, 3, 0, 1),
    ),
    row(
        "partial: untouched cache, right test",
        lambda: solved_but("lab4-cache"),
        REGRESSION_ONLY,
        through_nbgrader=True,
    ),
    row(
        "partial: a test of the salt alone",
        lambda: solved_but(
            "lab4-regression",
            "def test_prefixes(make_cache):\n"
            "    cache = make_cache(block_size=2)\n"
            "    cache.commit(ask([1, 2, 3], salt='a'), [0, 1], 3)\n"
            "    assert cache.match(ask([1, 2, 3], salt='b')) == []",
        ),
        (4, 4, 3, 3, 1, 1),
        contains="before they are computed",
    ),
    row(
        "partial: a test of time and collisions alone",
        lambda: solved_but(
            "lab4-regression",
            "def test_prefixes(make_cache):\n"
            "    cache = make_cache(block_size=2, collide=True)\n"
            "    cache.commit(ask([1, 2, 3, 4, 5]), [0, 1, 2], 1)\n"
            "    assert cache.match(ask([1, 2, 3, 4, 5])) == []\n"
            "    cache.commit(ask([1, 2, 3, 4, 5]), [0, 1, 2], 5)\n"
            "    assert cache.match(ask([2, 2, 3])) == []",
        ),
        (4, 4, 3, 3, 2, 1),
        contains="to another tenant",
    ),
    row(
        "partial: a test that asks what nobody promised",
        lambda: solved_but(
            "lab4-regression",
            BANK.solution("lab4-regression") + "\n    assert len(cache.entries) == 1\n",
        ),
        (4, 4, 3, 3, 0, 1),
        contains="correct implementation",
    ),
    row(
        "partial: right cache, untouched bonus",
        lambda: solved_but("lab4-bonus"),
        (4, 4, 3, 3, 3, 0),
        contains="keyed hash",
    ),
    row(
        "partial: a bonus whose names run together",
        lambda: solved_but(
            "lab4-bonus",
            BANK.solution("lab4-bonus").replace("json.dumps(who)", "''.join(map(str, who))"),
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "partial: a bonus without the secret",
        lambda: solved_but(
            "lab4-bonus", BANK.solution("lab4-bonus").replace("secret.encode()", "b'minserve'")
        ),
        (4, 4, 3, 3, 3, 0),
        contains="depend on the secret",
    ),
    row(
        "partial: a bonus by Python's own hash",
        lambda: solved_but(
            "lab4-bonus",
            "def salt_of(secret, scope, tenant, user):\n"
            "    return str(hash((secret, scope, tenant, user if scope == 'user' else None)))",
        ),
        (4, 4, 3, 3, 3, 0),
        contains="another process",
    ),
    row(
        "partial: a bonus with the names in it",
        lambda: solved_but(
            "lab4-bonus",
            BANK.solution("lab4-bonus").replace(".hexdigest()", ".hexdigest() + tenant"),
        ),
        (4, 4, 3, 3, 3, 0),
        contains="can be read",
    ),
]
