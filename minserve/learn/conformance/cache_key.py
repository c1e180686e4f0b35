"""The rules of a cache key: what must separate two requests, and what must not."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any
from unittest import mock

from minserve.learn.conformance import BrokenRule, Ladder, Rules, Suite, returned
from minserve.request import Identity
from minserve.reuse.key import Decoding, Message, ModelTuple, Query, Scope

ANNA = Identity("alder", "anna")
PLAIN = Query(
    identity=ANNA,
    scope=Scope.TENANT,
    answer_class="policy",
    messages=(Message("system", "Be brief."), Message("user", "What is the refund window?")),
    model=ModelTuple("nano", "r1"),
    decoding=Decoding(temperature=0.0, max_tokens=16),
    tools=[{"name": "find", "limit": 1}],
)
WHO, WHAT, SPELLING = "who", "what", "spelling"
RULES = Rules()
rule = RULES.add


def asking(text: str, query: Query = PLAIN) -> Query:
    """The same request with another question."""
    return replace(query, messages=(*query.messages[:-1], Message("user", text)))


def _with(plain: Any, name: str, value: object) -> Any:
    return replace(plain, **{name: value})


def variants() -> list[tuple[str, Query]]:
    """Requests whose answers may differ from PLAIN's, one field changed in each."""
    made: list[tuple[str, Query]] = []
    for f in fields(Decoding):
        value = {"stop": ("END",), "stop_token_ids": (7,), "ignore_eos": True}.get(f.name, 3)
        decoding = _with(PLAIN.decoding, f.name, value)
        made.append((f"decoding.{f.name}", replace(PLAIN, decoding=decoding)))
    for f in fields(ModelTuple):
        model = _with(PLAIN.model, f.name, "other")
        made.append((f"model.{f.name}", replace(PLAIN, model=model)))
    names = ("answer_class", "tool_state", "prompt_version", "policy_version", "corpus_snapshot")
    made += [(name, _with(PLAIN, name, "other")) for name in (*names, "locale")]
    system, user = PLAIN.messages
    made += [
        ("tools", replace(PLAIN, tools=[{"name": "find", "limit": 2}])),
        ("the system prompt", replace(PLAIN, messages=(Message("system", "Be long."), user))),
        ("the history", replace(PLAIN, messages=(system, Message("user", "Hello"), user))),
        ("the question", asking("What is the late fee?")),
        ("a message's role", replace(PLAIN, messages=(Message("user", "Be brief."), user))),
        ("a message's extra", replace(PLAIN, messages=(system, replace(user, extra={"a": 1})))),
    ]
    return made


def _differ(of: Callable, one: Query, other: Query, why: str, example: list[str]) -> None:
    if of(one) == of(other):
        raise BrokenRule(f"{why}, and yet both have one key", example)


def _agree(of: Callable, one: Query, other: Query, why: str, example: list[str]) -> None:
    if of(one) != of(other):
        raise BrokenRule(f"{why}, and yet they have two keys", example)


@rule(WHO, "A key is text, and the same request has the same key.", "Return a hexadecimal digest.")
def _same_request_same_key(of) -> None:
    key = of(PLAIN)
    if not isinstance(key, str) or not key:
        raise BrokenRule(f"a key is some text; this is {returned(key)}", ["cache_key(query)"])
    _agree(
        of,
        PLAIN,
        asking("What is the refund window?"),
        "these requests are equal",
        ["cache_key(query), twice"],
    )


@rule(WHO, "Another tenant's answer is never found.", "The tenant is part of the key.")
def _tenants_are_separate(of) -> None:
    other = replace(PLAIN, identity=Identity("marlow", "anna"))
    _differ(of, PLAIN, other, "two tenants ask", ["tenant 'alder'", "tenant 'marlow'"])


@rule(
    WHO, "The scope says who shares an answer.", "PUBLIC: all; TENANT: a tenant; SUBJECT: one user."
)
def _scope_says_who_shares(of) -> None:
    bob = Identity("alder", "bob")
    for scope, who, shares in (
        (Scope.TENANT, bob, True),
        (Scope.PUBLIC, Identity("marlow", "mia"), True),
        (Scope.SUBJECT, bob, False),
        (Scope.SUBJECT, Identity("marlow", "anna"), False),
    ):
        one, other = replace(PLAIN, scope=scope), replace(PLAIN, scope=scope, identity=who)
        example = [f"scope {scope.value}", f"asked by {ANNA.tenant}/{ANNA.subject}"]
        example.append(f"asked by {who.tenant}/{who.subject}")
        if shares:
            _agree(of, one, other, "they share answers in this scope", example)
        else:
            _differ(of, one, other, "each has answers of their own in this scope", example)
    wide, narrow = replace(PLAIN, scope=Scope.PUBLIC), PLAIN
    _differ(of, wide, narrow, "the scopes differ", ["scope public", "scope tenant"])
    admin = replace(PLAIN, identity=Identity("alder", "anna", frozenset({"admin"})))
    _differ(of, PLAIN, admin, "an admin may be told more", ["no roles", "roles {'admin'}"])


@rule(WHAT, "Every field that an answer depends on separates.", "Which field have you left out?")
def _every_field_separates(of) -> None:
    for name, other in variants():
        _differ(of, PLAIN, other, f"{name} differs", [f"PLAIN with another {name}"])


@rule(
    WHAT,
    "No text can slide from one field into the next.",
    "Name the fields; do not join with '|'.",
)
def _fields_do_not_slide(of) -> None:
    for a, b in ((("ab", "c"), ("a", "bc")), (("a|b", "c"), ("a", "b|c")), (("a", ""), ("", "a"))):
        one, other = (replace(PLAIN, policy_version=x, corpus_snapshot=y) for x, y in (a, b))
        _differ(of, one, other, "policy version and corpus differ", [repr(a), repr(b)])
    first = replace(PLAIN, messages=(Message("user", "a"), Message("user", "b")))
    second = replace(PLAIN, messages=(Message("user", "a\nb"),))
    _differ(of, first, second, "two messages are not one", ["'a', 'b'", "'a\\nb'"])


@rule(
    WHAT,
    "An omitted value is no value, and 1 is not '1'.",
    "Keep types: JSON does, str() does not.",
)
def _types_count(of) -> None:
    def warm(value):
        return replace(PLAIN, decoding=replace(PLAIN.decoding, temperature=value))

    _differ(of, warm(None), warm(0.0), "omitted is not 0", ["temperature None", "temperature 0"])
    for a, b in ((None, "-"), (None, "None"), (None, "null"), (None, "")):
        one, other = replace(PLAIN, locale=a), replace(PLAIN, locale=b)
        _differ(of, one, other, "the locales differ", [repr(a), repr(b)])
    for x, y in ((1, "1"), (True, 1), (None, "null"), ([1, 2], [[1], 2])):
        one, other = replace(PLAIN, tools={"a": x}), replace(PLAIN, tools={"a": y})
        _differ(of, one, other, "the tools differ", [repr(x), repr(y)])


@rule(
    SPELLING,
    "Equal text in NFC is equal.",
    "unicodedata.normalize('NFC', text) on message contents.",
)
def _nfc_is_one_spelling(of) -> None:
    one, other = asking("caf\u00e9"), asking("cafe\u0301")
    _agree(of, one, other, "one text, spelt in two ways", ["'caf\\u00e9'", "'cafe\\u0301'"])


@rule(
    SPELLING,
    "Nothing else is normalised.",
    "No NFKC, no lower(), no strip(), no collapsing of spaces.",
)
def _different_questions_stay_apart(of) -> None:
    for a, b in (
        ("x²", "x2"),
        ("US", "us"),
        ("a b", "a  b"),
        ("a", "a "),
        ("if x:\n  y", "if x: y"),
    ):
        _differ(of, asking(a), asking(b), "the questions differ", [repr(a), repr(b)])


@rule(SPELLING, "The order of names in JSON means nothing.", "sort_keys=True, or RFC 8785.")
def _json_order_means_nothing(of) -> None:
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    why = "the tools are equal"
    _agree(of, replace(PLAIN, tools=one), replace(PLAIN, tools=other), why, [f"{one}", f"{other}"])


@rule(SPELLING, "The key is the same in every process.", "hash() differs by process: use hashlib.")
def _same_in_every_process(of) -> None:
    before = of(PLAIN)
    with mock.patch.object(builtins, "hash", lambda value: 7):
        after = of(PLAIN)
    if before != after:
        raise BrokenRule("the key depends on hash(), which every process salts anew", ["hash(...)"])


SUITE = Suite(
    "cache_key",
    (WHO, WHAT, SPELLING),
    tuple(RULES),
    {
        WHO: Ladder(
            drawing="""\
scope      who finds the answer                 so the key holds
public     everybody                            nobody's name
tenant     users of the tenant, same roles      tenant, roles
subject    its asker alone                      tenant, roles, subject""",
            pseudocode="""\
form = asdict(query)
identity = form.pop("identity")        the scope itself stays in the form
unless public: form["tenant"], form["roles"] (sorted) from identity
if subject:    form["subject"] too
return sha256(json.dumps(form, sort_keys=True)).hexdigest()""",
            near_miss="""\
- form["tenant"] = identity["tenant"]
+ form["tenant"] = identity["tenant"]
+ form["roles"] = sorted(identity["roles"])        an admin may be told more""",
        ),
        WHAT: Ladder(
            drawing="""\
what is asked   [{role, content, extra}, ...], tools
by what         {model: {...}, decoding: {...}}
resting on      {prompt, policy, corpus, tool state, locale}
                    |
                named fields in JSON  ->  SHA-256  ->  hex""",
            pseudocode="""\
form = every field of the query, by its name, with its type
never a list of fields that you chose: the next field is then forgotten""",
            near_miss="""\
- "|".join(str(value) for value in fields)
+ json.dumps({name: value for each field}, sort_keys=True)""",
        ),
        SPELLING: Ladder(
            drawing="""\
"caf\u00e9"  and  "cafe\u0301"     one text in two spellings      one key
"x²"    and  "x2"          two texts                      two keys
{a, b}  and  {b, a}        one JSON object                one key""",
            pseudocode="""\
for each message: content = unicodedata.normalize("NFC", content)
json.dumps(..., sort_keys=True); hashlib, never hash()""",
            near_miss="""\
- content = unicodedata.normalize("NFKC", content).lower().strip()
+ content = unicodedata.normalize("NFC", content)""",
        ),
    },
)
