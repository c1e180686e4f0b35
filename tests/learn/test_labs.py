"""A lab on a learner's own machine: a clean copy, and a check that nothing can hang or end."""

import json

import pytest

from minserve.errors import DataNotFound
from minserve.learn import labs


def cell(source, grade_id="", kind="code", **marks):
    metadata = {"nbgrader": {"grade_id": grade_id, **marks}} if grade_id else {}
    made = {"cell_type": kind, "metadata": metadata, "source": source, "id": grade_id or "free"}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def answer(source):
    return cell(source, "answer", solution=True, grade=False)


TITLE = cell("# Lab 9: doubling\nText.", kind="markdown")
SETUP = cell("import math", "setup", solution=False, grade=False)
GIVEN = answer("def double(x):\n    return x + 1")
FIRST = cell(
    "# 1 (4 points): a number is doubled,\n# whatever its sign.\n"
    "assert double(3) == 6, 'three was not doubled'\n",
    "first",
    grade=True,
    points=4,
)
SECOND = cell(
    "# 2 (2.5 points): nothing is printed\nassert double(0.5) == 1",
    "second",
    grade=True,
    points=2.5,
)
TEXT = cell("Why?", "why", kind="markdown", grade=True, solution=True, points=3)


def write(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": list(cells)}))
    return path


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(labs, "PLACES", (tmp_path / "labs",))
    write(
        tmp_path / "labs/lab9_doubling/lab9_doubling.ipynb",
        TITLE,
        SETUP,
        GIVEN,
        FIRST,
        SECOND,
        TEXT,
    )
    return labs.find("lab9")


def checked(lab, tmp_path, *cells, limit_s=20.0):
    return labs.check(lab, write(tmp_path / "mine.ipynb", *cells), limit_s)


def test_labs_are_listed_by_name_and_title(lab):
    assert [(each.short, each.title) for each in labs.labs()] == [("lab9", "Lab 9: doubling")]
    assert labs.find("lab9_doubling") == lab
    with pytest.raises(DataNotFound) as caught:
        labs.find("lab1")
    assert caught.value.hint == "the labs here: lab9"


def test_a_clean_copy_is_never_put_over_somebodys_work(lab, tmp_path):
    path = labs.start(lab, tmp_path / "work")
    assert path.read_bytes() == lab.path.read_bytes()
    path.write_text("mine")
    with pytest.raises(DataNotFound, match="exists already"):
        labs.start(lab, tmp_path / "work")
    assert path.read_text() == "mine"


def test_the_untouched_lab_fails_in_words_that_teach(lab):
    told = labs.check(lab, lab.path)
    assert not told.holds and told.points == "0 of 6.5 automatic, 3 by hand"
    assert told.outcomes[0].lines() == [
        "Seen: three was not doubled.",
        "Rule: a number is doubled, whatever its sign.",
        "Look at: cell first, line 3: assert double(3) == 6, 'three was not doubled'.",
    ]


def test_what_the_lab_came_with_earns_nothing_although_it_runs(lab, tmp_path):
    own = cell("def test_double(double):\n    pass", "own", solution=True, grade=False)
    check = cell("# 3 (2 points): a test of your own\ntest_double(double)", "own-check", grade=True)
    check["metadata"]["nbgrader"]["points"] = 2
    write(lab.path, TITLE, SETUP, GIVEN, own, FIRST, SECOND, check)
    told = checked(lab, tmp_path, GIVEN, own)
    assert told.is_untouched and told.points == "0 of 8.5 automatic"
    assert [outcome.is_to_do for outcome in told.outcomes] == [False, False, True]
    assert told.outcomes[2].lines() == [
        "Seen: this is still as the lab came: it runs, and earns nothing yet.",
        "Rule: a test of your own.",
        "Look at: cell own, line 1.",
    ]
    told = checked(lab, tmp_path, answer("def double(x):\n    return 2 * x"), own)
    assert not told.is_untouched and told.points == "6.5 of 8.5 automatic"
    assert not told.holds, "the test is still to be written"
    own = own | {"source": "def test_double(double):\n    assert double(3) == 6"}
    assert checked(lab, tmp_path, GIVEN, own).outcomes[2].seen == "a public test fails"
    assert checked(lab, tmp_path, answer("def double(x):\n    return 2 * x"), own).holds


def test_a_right_answer_holds_beside_cells_of_ones_own(lab, tmp_path):
    helper = cell("%matplotlib inline\nfactor = 2\nprint('hello')")
    right = answer("def double(x):\n    return factor * x")
    told = checked(lab, tmp_path, TITLE, SETUP, helper, right, FIRST, SECOND, TEXT)
    assert told.holds and told.points == "6.5 of 6.5 automatic, 3 by hand"
    assert told.outcomes[0].lines() == ["Everything that is checked here holds."]


def test_a_bonus_comes_on_top():
    scored, bonus = labs.Outcome("x-one", 17.0, "r"), labs.Outcome("x-bonus-check", 1.0, "r")
    missed = labs.Outcome("x-bonus-check", 1.0, "r", "s")
    assert labs.Checked((scored, bonus), 3.0).points == "17 of 17 automatic, 1 bonus, 3 by hand"
    assert labs.Checked((scored, missed), 3.0).points == "17 of 17 automatic, 3 by hand"


def test_the_tests_are_the_labs_own_whatever_the_notebook_says(lab, tmp_path):
    easy = FIRST | {"source": "pass"}
    told = checked(lab, tmp_path, GIVEN, easy, SECOND)
    assert [outcome.holds for outcome in told.outcomes] == [False, False]
    told = checked(lab, tmp_path, answer("def double(x):\n    return 2 * x"))
    assert told.holds, "deleted tests come back"


def test_an_error_in_the_answer_names_its_line(lab, tmp_path):
    told = checked(lab, tmp_path, answer("def double(x):\n    return x.twice"))
    outcome = told.outcomes[0]
    assert outcome.seen == "AttributeError: 'int' object has no attribute 'twice'"
    assert outcome.look == "cell answer, line 2: return x.twice"
    told = checked(lab, tmp_path, answer("def double(x:"))
    assert "cell answer stopped: SyntaxError" in told.outcomes[0].seen


@pytest.mark.parametrize(
    "code, words",
    [
        ("while True: pass", "was still running after 3 s"),
        ("import os\nos._exit(0)", "ended the process"),
    ],
)
def test_what_hangs_or_ends_the_process_is_named_and_ones_own_cells_cost_nothing(
    lab, tmp_path, code, words
):
    told = checked(lab, tmp_path, answer(code), limit_s=3)
    assert told.outcomes[0].seen == f"cell answer {words}"
    right = answer("def double(x):\n    return 2 * x")
    told = checked(lab, tmp_path, cell(code), right, limit_s=3)
    assert told.holds and told.notes == (
        f"a cell of your own {words}; checked without your own cells",
    )


@pytest.mark.parametrize("content", ["", "[]", '{"cells": [1]}', '{"cells": [{"source": 1}]}'])
def test_what_is_no_notebook_is_one_clear_error(lab, tmp_path, content):
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    with pytest.raises(DataNotFound, match="no readable notebook"):
        labs.check(lab, path)


def test_another_notebook_is_told_apart(lab, tmp_path):
    with pytest.raises(DataNotFound) as caught:
        checked(lab, tmp_path, TITLE)
    assert "minserve lab start lab9" in caught.value.hint
