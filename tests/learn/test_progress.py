"""How far a learner has come, and the ten questions before and after."""

from __future__ import annotations

import json

import built
import pytest

from minserve.errors import ConfigError
from minserve.learn import progress as view
from minserve.learn.concept_check import (
    NUMBERS,
    QUESTIONS,
    concept_check,
    questions,
    results,
)
from minserve.learn.parts import SLOTS, use
from minserve.learn.workspace import Workspace

RIGHT = {number: QUESTIONS[number - 1].right for number in NUMBERS}


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    home = tmp_path / "Élève 学习 home"
    monkeypatch.setenv("MINSERVE_HOME", str(home))
    return home


def test_an_empty_workspace_has_everything_still_to_build(capsys):
    told = view.as_dict()
    assert told["num_parts"] == len(SLOTS) and told["num_built"] == told["num_installed"] == 0
    assert [lesson["lesson"] for lesson in told["lessons"]] == [1, 2, 3, 4, 5, 6]
    assert told["concept_check"] == {"before": None, "after": None}
    view.tell()
    assert "decode_loop, request_measures" in capsys.readouterr().out


def test_built_checked_and_installed_are_told_apart():
    built.build("decode_loop", "block_pool", "cache_salt")
    use("block_pool", "reference")
    version = Workspace("cache_salt").current()
    with version.path.open("a", encoding="utf-8") as file:
        file.write("# changed by hand, and by no check\n")
    found = {part.name: part for part in view.standings() if part.is_built}
    assert set(found) == {"decode_loop", "block_pool", "cache_salt"}
    assert [name for name, part in found.items() if not part.is_installed] == ["block_pool"]
    assert [name for name, part in found.items() if not part.is_checked] == ["cache_salt"]
    told = view.as_dict()
    assert (told["num_built"], told["num_checked"], told["num_installed"]) == (3, 2, 2)
    assert json.loads(json.dumps(told)) == told


def test_picture_says_in_words_what_it_shows(capsys):
    built.build("decode_loop", "block_pool")
    use("block_pool", "reference")
    picture = view.progress()
    assert "installed: decode_loop; built, not installed: block_pool; to build: " in picture.alt
    assert picture.png().startswith(b"\x89PNG")


def test_every_lesson_is_asked_about_and_every_choice_explained():
    assert len(QUESTIONS) == 10 and {q.lesson for q in QUESTIONS} == {1, 2, 3, 4, 5, 6}
    for question in QUESTIONS:
        assert question.right in question.choices and len(question.choices) == 3
        said = [text for choice in question.choices.values() for text in choice]
        assert len(set(said)) == len(said) and all(len(why) > 20 for why in said[1::2])
    # Nobody who always says the same letter is right more than half of the time.
    assert max(list(RIGHT.values()).count(letter) for letter in "abc") <= 5


def test_questions_are_shown_with_their_choices_and_without_the_answers(capsys):
    questions()
    out = capsys.readouterr().out
    assert all(question.text in out for question in QUESTIONS)
    assert not any(why in out for q in QUESTIONS for _, why in q.choices.values())


def test_before_the_course_a_wrong_answer_is_told_its_lesson_and_no_more(capsys):
    concept_check("before", RIGHT | {5: "B "})
    out = capsys.readouterr().out
    assert "9 of 10 right" in out and "lesson 3" in out
    assert not any(why in out for _, why in QUESTIONS[4].choices.values())
    assert results()["before"]["right"] == 9 and results()["after"] is None


def test_after_the_course_each_wrong_choice_is_explained_and_the_latest_counts(capsys):
    concept_check("after", RIGHT | {1: "a", 10: "c"})
    out = capsys.readouterr().out
    assert QUESTIONS[0].choices["a"][1] in out and QUESTIONS[9].choices["c"][1] in out
    concept_check("after", RIGHT)
    assert results()["after"]["right"] == 10


def test_the_first_attempt_before_the_course_stands(capsys):
    concept_check("before", dict.fromkeys(NUMBERS, "a"))
    first = results()["before"]
    concept_check("before", RIGHT)
    assert "first attempt" in capsys.readouterr().out and results()["before"] == first


def test_what_is_missing_or_no_choice_is_said_and_nothing_is_kept(capsys):
    concept_check("before", RIGHT | {3: None, 7: ""})
    concept_check("before", RIGHT | {4: "z"})
    out = capsys.readouterr().out
    assert "still open: 3, 7" in out and "Question 4: choose" in out
    assert results()["before"] is None
    with pytest.raises(ConfigError):
        concept_check("during", RIGHT)


def test_a_damaged_or_unwritable_file_loses_nothing_else(workspace, capsys):
    workspace.mkdir(parents=True)
    (workspace / "concept_check.json").write_text("[1, 2", encoding="utf-8")
    assert results() == {"before": None, "after": None}
    (workspace / "concept_check.json").unlink()
    (workspace / "concept_check.json").mkdir()
    concept_check("after", RIGHT)
    assert "could not be kept" in capsys.readouterr().out
