"""Whether an answer is right, by what its request says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from minserve.errors import ConfigError, InvalidRequest
from minserve.northstar.caching import policy_table
from minserve.northstar.checks import CHECKS
from minserve.northstar.prompts import render_user
from minserve.reuse.key import Message
from minserve.reuse.policy import ClassPolicy, PolicyTable
from minserve.reuse.validation import Validation, json_check, require_known

LINES = ["The late fee of Umber Club is 5 EUR.", "The late fee of Blue Club is 7 EUR."]


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"a": 1}', True),
        (' {"a": NaN}', False),
        ('{"a": 1} and more', False),
        ('```json\n{"a": 1}\n```', False),
        ("[1]", False),
        ("", False),
        ('{"a":' * 5000, False),
        ("[" * 100_000, False),
    ],
)
def test_a_json_object_is_the_whole_answer_or_it_is_none(text, is_right):
    assert json_check({"type": "json_object"})(text) is is_right


SCALARS = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text("ab", max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "minimum": st.integers(-5, 5),
            "maxLength": st.integers(0, 3),
            "minItems": st.integers(0, 2),
            "title": st.just("t"),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "items": inner,
        },
    ),
    max_leaves=5,
)


@given(SCHEMAS, VALUES)
def test_an_answer_passes_if_jsonschema_says_so(schema, value):
    check = json_check({"type": "json_schema", "json_schema": {"schema": schema}})
    assert check(json.dumps(value)) is Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ([], "object"),
        ({"$ref": "#/x"}, r"\$ref"),
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, "schema.a has 'pattern'"),
        ({"type": "text"}, "type"),
        ({"type": [[]]}, "type"),
        ({"properties": []}, "properties"),
        ({"required": [{}]}, "required"),
        ({"minimum": "5"}, "minimum"),
        ({"items": {"items": 5}}, r"items\.items"),
    ],
)
def test_a_schema_that_would_not_be_wholly_looked_at_is_refused(schema, word):
    with pytest.raises(InvalidRequest, match=word):
        require_known(schema)


def test_a_schema_without_end_is_refused():
    schema: dict = {}
    for _ in range(50):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="deeper"):
        require_known(schema)


@pytest.mark.parametrize(
    "asked", ["json", {"type": "xml"}, {"type": "json_schema"}, {"type": "json_object", "x": 1}]
)
def test_a_format_that_is_not_known_is_refused(asked):
    with pytest.raises(InvalidRequest, match="response_format"):
        json_check(asked)


def northstar(content: str, answer_class="policy", *earlier: Message, apart=False):
    turns = (Message("system", "s"), *earlier, Message("user", content))
    if apart:  # as a cache's query has it
        evidence, mark, question = content.partition("\nQuestion: ")
        turns = (*turns[:-1], Message("evidence", evidence + mark), Message("user", question))
    return Validation(policy_table(), CHECKS).check_of(answer_class, turns)


@pytest.mark.parametrize("apart", [False, True])
def test_a_policy_answer_must_be_the_line_that_was_asked_for(apart):
    check = northstar(render_user(LINES, "What is the late fee of Blue Club?"), apart=apart)
    assert check("The late fee of Blue Club is 7 EUR.")
    assert not check("The late fee of Umber Club is 5 EUR.")
    assert not check("The late fee of Blue Club is 5 EUR.")


def test_a_follow_up_is_checked_by_the_questions_before_it():
    asked = Message("user", render_user(LINES, "What is the late fee of Umber Club?"))
    said = Message("assistant", LINES[0])
    check = northstar(render_user(LINES, "And of Blue Club?"), "chat", asked, said)
    assert check("The late fee of Blue Club is 7 EUR.") and not check("It is 7 EUR.")


def test_a_report_must_have_a_line_for_each_thing():
    lines = ["The fee of X is 1.", "The term of X is 2.", "The cap of X is 3."]
    check = northstar(render_user(lines, "Write a report on X: fee, term."), "report")
    assert check("The fee of X is 1. The term of X is 2.") and not check("The fee of X is 1.")


@pytest.mark.parametrize("content", ["How are you?", render_user([], "How?")])
def test_without_evidence_there_is_nothing_to_check_by(content):
    assert northstar(content) is None


def test_a_class_without_a_check_has_none_and_both_kinds_hold_together():
    validation = Validation(policy_table(), CHECKS)
    assert validation.check_of("default", (Message("user", "a"),)) is None
    turns = (Message("user", render_user(LINES, "What is the late fee of Blue Club?")),)
    both = validation.check_of("policy", turns, {"type": "json_object"})
    assert not both(LINES[1]) and not both(json.dumps({}))


def test_a_check_that_is_nowhere_is_found_out_at_the_start():
    with pytest.raises(ConfigError, match="nowhere"):
        Validation(PolicyTable([ClassPolicy("a", check="nowhere")]), CHECKS)
