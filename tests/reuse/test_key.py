"""The key: any change of a field changes it, any spelling of the same request does not."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.errors import InvalidRequest
from minserve.learn.conformance import KEPT, examine, suite_of
from minserve.learn.conformance.cache_key import PLAIN, asking, variants
from minserve.request import Identity, SamplingParams
from minserve.reuse.key import (
    CanonicalKey,
    Decoding,
    EvidenceKey,
    Message,
    ModelTuple,
    NotCacheable,
    Query,
    Scope,
    ShelfKey,
    canonical,
    explain,
    from_dict,
    partition_of,
)

KEY = CanonicalKey()
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
maybe = st.none() | text
number = st.none() | st.floats(0, 2) | st.integers(0, 50)
count = st.none() | st.integers(0, 2**53 - 1)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
queries = st.builds(
    Query,
    identity=st.builds(Identity, text, text, st.frozensets(text, max_size=2)),
    scope=st.sampled_from(Scope),
    answer_class=text,
    messages=st.lists(st.builds(Message, text, text, json_value), min_size=1, max_size=3).map(
        tuple
    ),
    model=st.builds(ModelTuple, text, maybe, maybe, maybe, maybe, maybe),
    decoding=st.builds(
        Decoding, temperature=number, top_p=number, seed=count, stop=st.lists(text).map(tuple)
    ),
    tools=json_value,
    policy_version=maybe,
    corpus_snapshot=maybe,
    locale=maybe,
)


def plain(query: Query) -> dict:
    """As JSON that `from_dict` reads."""
    form = asdict(query)
    form["identity"]["roles"] = sorted(query.identity.roles)
    return json.loads(json.dumps(form))


def test_the_reference_keeps_every_rule_of_the_suite():
    verdicts = examine(suite_of("cache_key"), KEY.of)
    assert [v for v in verdicts if v.state != KEPT] == []


@small(150)
@given(queries, queries)
def test_two_requests_share_a_key_only_if_their_canonical_forms_are_equal(one, other):
    assert (KEY.of(one) == KEY.of(other)) == (explain(one, other) == [])


@small(100)
@given(queries, st.randoms())
def test_no_spelling_of_a_request_changes_its_key(query, rng):
    def respell(value):
        if isinstance(value, dict):
            names = list(value)
            rng.shuffle(names)
            return {name: respell(value[name]) for name in names}
        if isinstance(value, list):
            return [respell(item) for item in value]
        if type(value) is int and rng.random() < 0.5:
            return value  # the reader below turns 1 into 1.0 where a float is wanted
        return value

    spelt = respell(plain(query))
    for message in spelt["messages"]:
        message["content"] = unicodedata.normalize("NFD", message["content"])
    again = from_dict(json.loads(json.dumps(spelt, indent=3, ensure_ascii=True)))
    nfc = replace(
        query,
        messages=tuple(
            replace(m, content=unicodedata.normalize("NFC", m.content)) for m in query.messages
        ),
    )
    assert KEY.of(nfc) == KEY.of(query)
    assert KEY.of(again) == KEY.of(query)


@small(100)
@given(queries, st.data())
def test_any_change_of_any_field_changes_the_key(query, data):
    name = data.draw(st.sampled_from([f.name for f in fields(Query)]))
    other = replace(query, **{name: getattr(data.draw(queries), name)})
    is_same = canonical(query) == canonical(other) and not explain(query, other)
    assert (KEY.of(query) == KEY.of(other)) == is_same


def test_every_way_of_sampling_is_part_of_the_key():
    """A new sampling parameter must not be forgotten here."""
    assert {f.name for f in fields(SamplingParams)} <= {f.name for f in fields(Decoding)}


def test_the_variants_of_the_suite_are_all_told_apart():
    keys = {KEY.of(query) for _, query in variants()} | {KEY.of(PLAIN)}
    assert len(keys) == len(variants()) + 1


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_the_key_is_the_same_whatever_pythonhashseed(seed):
    code = (
        "from minserve.learn.conformance.cache_key import PLAIN; from dataclasses import replace;"
        "from minserve.request import Identity; from minserve.reuse.key import CanonicalKey;"
        "who = Identity('a', 'b', frozenset('qwertyuiop'));"
        "print(CanonicalKey().of(replace(PLAIN, identity=who)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
    )
    who = Identity("a", "b", frozenset("qwertyuiop"))
    assert run.stdout.strip() == KEY.of(replace(PLAIN, identity=who)), run.stderr


def test_a_pinned_key_does_not_move_between_releases():
    assert KEY.of(PLAIN) == "4374e141a3663b07f4c5788ac44bbfa326623617e41b33a71a95ef7e66c925c2"


@pytest.mark.parametrize("value", [2**53, float("nan"), float("inf"), "\ud800", {1: 2}])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(NotCacheable):
        KEY.of(replace(PLAIN, tools={"a": value}))


def test_the_partition_depends_on_who_asks_and_on_nothing_they_say():
    assert {partition_of(query) for _, query in variants()} == {partition_of(PLAIN)}
    other = replace(PLAIN, identity=Identity("marlow", "anna"))
    assert partition_of(other) != partition_of(PLAIN)


def test_evidence_is_shared_by_models_and_decodings_but_not_by_questions():
    of = EvidenceKey().of
    assert of(PLAIN) == of(replace(PLAIN, model=ModelTuple("other"), decoding=Decoding(seed=1)))
    assert of(PLAIN) != of(asking("What is the late fee?"))
    assert of(PLAIN) != KEY.of(PLAIN)


def test_a_shelf_holds_all_questions_of_the_same_context():
    of = ShelfKey().of
    assert of(PLAIN) == of(asking("What is the late fee?"))
    changed = [query for name, query in variants() if name != "the question"]
    assert of(PLAIN) not in {of(query) for query in changed}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tenant": "x"}, "unknown field 'tenant'"),
        ({"identity": "x"}, "not an object"),
        ({"decoding": {"seed": "1"}}, 'decoding.seed is "1"'),
        ({"decoding": {"seed": True}}, "decoding.seed is true"),
        ({"scope": "all"}, 'scope is "all"'),
        ({"messages": [{"role": "user"}]}, "lacks content"),
    ],
)
def test_a_malformed_request_is_refused_with_the_field_named(change, said):
    with pytest.raises(InvalidRequest, match=said):
        from_dict(plain(PLAIN) | change)


def test_explain_names_the_fields_that_separate_two_requests():
    other = replace(PLAIN, decoding=Decoding(max_tokens=16), locale="en")
    assert explain(PLAIN, other) == [("decoding.temperature", 0.0, None), ("locale", None, "en")]
    assert explain(PLAIN, replace(PLAIN)) == []
