"""Context and output efficiency: less of both, and what was left out is said."""

from __future__ import annotations

import pytest

from minserve.errors import ConfigError
from minserve.northstar.context import (
    Piece,
    StopWhenComplete,
    cap_history,
    compress,
    output_limit,
    select_evidence,
    without_repeats,
)

FEE = Piece("new", "The late fee of Umber Club is 5 EUR.", "late fee of Umber Club", 0.9, 20.0)
OLD_FEE = Piece("old", "The late fee of Umber Club is 7 EUR.", "late fee of Umber Club", 0.9, 10.0)
DEPOSIT = Piece("deposit", "The deposit of Umber Club is 9 EUR.", "deposit of Umber Club")
OTHER = Piece("other", "Lumora Basic has 3 seats.", "seats of Lumora Basic", 1.0, 99.0)
ASK = "What is the late fee of Umber Club?"


def count(text: str) -> int:
    return len(text.split())


def test_the_limit_comes_from_the_task_and_what_it_asks_for():
    assert output_limit("policy") == 48
    assert output_limit("report", 2) == 88 < output_limit("report", 4) == 160
    with pytest.raises(ConfigError, match="no task"):
        output_limit("poem")


def test_generation_ends_at_the_first_valid_sentence_end():
    asked = []
    stop = StopWhenComplete(lambda text: asked.append(text) or text.endswith("5 EUR."))
    said = ["The late", "The late fee.", "The late fee. ", "The late fee. It is 5 EUR."]
    assert [stop(text) for text in said] == [False, False, False, True]
    assert asked == ["The late fee.", "The late fee. It is 5 EUR."]


def test_evidence_is_ranked_by_relevance_then_authority_then_recency():
    assert select_evidence(ASK, [OTHER, DEPOSIT, OLD_FEE, FEE], 99, count).citations == (
        "new",
        "old",
        "deposit",
    )


def test_a_contradiction_is_shown_before_anything_new_and_is_named():
    selection = select_evidence(ASK, [DEPOSIT, OLD_FEE, FEE], 18, count)
    assert selection.citations == ("new", "old")
    assert selection.contradictions == ("late fee of Umber Club",)


def test_a_contradiction_that_found_no_room_is_still_named():
    selection = select_evidence(ASK, [OLD_FEE, FEE], 9, count)
    assert selection.citations == ("new",) and selection.contradictions
    assert selection.omitted == (("old", "no room"),)


def test_what_was_left_out_is_named_with_its_reason():
    twin = Piece("twin", FEE.text, FEE.claim)
    selection = select_evidence(ASK, [FEE, twin, OTHER, DEPOSIT], 10, count)
    assert dict(selection.omitted) == {
        "twin": "says what another says",
        "other": "not about the question",
        "deposit": "no room",
    }
    assert "twin" in selection.notice
    assert select_evidence(ASK, [FEE], 99, count).notice == ""


def test_repeated_instructions_are_sent_once():
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    assert without_repeats([system, user, system, user]) == [system, user, user]


def test_a_tool_result_keeps_what_its_schema_names():
    schema = {
        "properties": {
            "value": {},
            "rows": {"items": {"properties": {"id": {}}}, "maxItems": 2},
        }
    }
    result = {"value": 5, "debug": "x", "rows": [{"id": n, "raw": n} for n in range(4)]}
    kept, left_out = compress(result, schema)
    assert kept == {"value": 5, "rows": [{"id": 0}, {"id": 1}]}
    assert left_out == ["debug", "rows[2:]", "rows[0].raw", "rows[1].raw"]


def test_history_is_capped_in_whole_turns_from_the_end():
    turns = [("a b", "c"), ("d e", "f"), ("g h", "i")]
    assert cap_history(turns, 7, count) == (turns[1:], 1)
    assert cap_history(turns, 2, count) == ([], 3)
    assert cap_history(turns, 99, count) == (turns, 0)
