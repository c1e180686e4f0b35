"""What was handed in: read as data, mended where an honest learner slipped, never trusted."""

import json

import pytest

from autograder import intake, notebooks, scoring
from autograder.bank.base import cell, set_source
from autograder.bank.lab3 import LAB as NAME
from autograder.bank.lab3 import own_cell, released, solved

LAB = scoring.find("lab3")


def hand_in(folder, notebook, name=f"{NAME}.ipynb"):
    folder.mkdir(parents=True, exist_ok=True)
    data = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
    (folder / name).write_bytes(data)
    return folder


def taken(tmp_path, notebook):
    return intake.transplant(intake.take(hand_in(tmp_path / "s" / NAME, notebook), LAB), LAB)


def test_an_untouched_notebook_comes_out_as_the_release(tmp_path):
    made = taken(tmp_path, released())
    given = intake.template(LAB)
    assert [c.source for c in made.cells] == [c.source for c in given.cells]
    assert [c.id for c in made.cells] == [c.id for c in given.cells]
    assert made.metadata[intake.NOTES] == []


def test_answers_and_own_cells_stay_where_they_stood(tmp_path):
    made = taken(tmp_path, own_cell(set_source(solved(), "lab3-explanation", "Because."), "x = 1"))
    ids = [notebooks.cell_id(c) for c in made.cells]
    at = ids.index("lab3-setup")
    assert made.cells[at + 1].source == "x = 1" and "nbgrader" not in made.cells[at + 1].metadata
    assert made.cells[ids.index("lab3-explanation")].source == "Because."
    assert len(set(ids)) == len(ids)


def test_locked_cells_points_and_marks_are_the_releases(tmp_path):
    notebook = solved()
    set_source(notebook, "lab3-storm", "3.0")
    cell(notebook, "lab3-exact")["metadata"]["nbgrader"]["points"] = 99
    made = taken(tmp_path, notebook)
    given = intake.known_cells(LAB)
    for name in ("lab3-storm", "lab3-exact"):
        (back,) = [c for c in made.cells if notebooks.cell_id(c) == name]
        assert back == given[name]
    assert made.metadata[intake.NOTES] == [
        "tampered: the grading marks of cell lab3-exact were changed; restored",
        "cell lab3-storm was edited; restored",
    ]


def test_of_two_copies_the_last_counts_and_the_first_still_runs_before_it(tmp_path):
    notebook = solved()
    notebook["cells"].append(cell(notebook, "lab3-engine") | {"source": "second", "id": "copy"})
    made = taken(tmp_path, notebook)
    sources = [c.source for c in made.cells if notebooks.cell_id(c) == "lab3-engine"]
    assert sources == ["second"]
    assert "more than once" in made.metadata[intake.NOTES][0]


@pytest.mark.parametrize("marks", ["x", [], {"grade_id": 3}, {"grade_id": ["a"]}, None])
def test_strange_marks_are_no_marks(tmp_path, marks):
    notebook = solved()
    notebook["cells"][0]["metadata"]["nbgrader"] = marks
    taken(tmp_path, notebook)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"cells": 3, "nbformat": 4}',
        b"[" * 10**5,
        b'{"nbformat": 4, "cells": [' + b"{}," * 10**6 + b"{}]}",
        b'{"cells": [{"cell_type": "code", "source": {}}], "nbformat": 4, "nbformat_minor": 5}',
        b'{"cells": [{"cell_type": "code", "source": "x"}], "nbformat": 99, "metadata": {}}',
    ],
)
def test_what_is_no_notebook_is_unreadable_in_one_line(tmp_path, data):
    folder = hand_in(tmp_path / "s" / NAME, data)
    with pytest.raises(intake.Problem) as caught:
        intake.take(folder, LAB)
    assert caught.value.status == "unreadable" and "\n" not in caught.value.line
    assert (folder / f"{NAME}.ipynb").read_bytes() == data, "nothing is lost"


def test_a_device_or_a_pipe_is_not_waited_for(tmp_path):
    import os

    folder = tmp_path / "s" / NAME
    folder.mkdir(parents=True)
    os.mkfifo(folder / f"{NAME}.ipynb")
    with pytest.raises(intake.Problem, match="no regular file"):
        intake.take(folder, LAB)


@pytest.mark.parametrize("which", ["file", "lab folder", "student folder"])
def test_links_are_not_followed(tmp_path, which):
    real = hand_in(tmp_path / "real" / NAME, solved())
    folder = tmp_path / "s" / NAME
    if which == "student folder":
        folder.parent.symlink_to(real.parent)
    elif which == "lab folder":
        folder.parent.mkdir()
        folder.symlink_to(real)
    else:
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").symlink_to(real / f"{NAME}.ipynb")
    with pytest.raises(intake.Problem, match="symbolic link"):
        intake.take(folder, LAB)


@pytest.mark.parametrize(
    "marks",
    [
        {"grade_id": "\ud800"},
        {"grade_id": "lab3-engine", "points": "\ud800", "grade": [["\ud800"]]},
        {"grade_id": "lab3-engine", "points": {"a": {}}, "solution": "yes"},
        {"grade_id": "\n=1", "points": float("nan")},
    ],
)
def test_strange_marks_can_be_written_and_are_the_releases_again(tmp_path, marks):
    notebook = solved()
    cell(notebook, "lab3-engine")["metadata"]["nbgrader"] = marks
    notebook["cells"][0]["metadata"]["nbgrader"] = marks
    taken = intake.take(hand_in(tmp_path / "s" / NAME, notebook), LAB)
    notebooks.write(taken, tmp_path / "written.ipynb")
    made = intake.transplant(notebooks.read(tmp_path / "written.ipynb"), LAB)
    given = intake.known_cells(LAB)["lab3-engine"].metadata
    assert [c.metadata for c in made.cells if notebooks.cell_id(c) == "lab3-engine"] == [given]


def test_what_would_break_a_later_step_is_mended_or_refused(tmp_path):
    half = json.dumps(own_cell(solved(), "x = '\\ud800'").copy()).replace("\\\\ud800", "\\ud800")
    made = taken(tmp_path / "half", half.encode())
    json.dumps([c.source for c in made.cells], ensure_ascii=False).encode("utf-8")
    assert any(c.source == "x = '?'" for c in made.cells)
    many = solved()
    many["cells"] *= 100
    long = own_cell(solved(), "#" * 2_000_000)
    for name, notebook, words in (("many", many, "cells"), ("long", long, "letters")):
        with pytest.raises(intake.Problem, match=words):
            intake.take(hand_in(tmp_path / name / NAME, notebook), LAB)
