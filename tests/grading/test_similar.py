"""Hand-ins that read alike are listed for a person to read; no score hears of it."""

import json
import re

import pytest

from autograder import bank, scoring, similar
from autograder.__main__ import main
from autograder.bank import lab3
from autograder.notebooks import path_in
from minserve.errors import DataNotFound

LAB = scoring.find("lab3")
BANK, RIGHT = lab3.BANK, bank.right_sources(LAB.name)
OWNERS, STATES = RIGHT["right_owners"], RIGHT["right_states"]


def hand_in(course, student, notebook):
    path = path_in(course.root / "submitted" / student, LAB.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))


def renamed(source):
    """The same with other names, other layout and other words about it."""
    for name in ("owned", "request", "planned", "orphans"):
        source = re.sub(rf"\b{re.escape(name)}\b", f"{name}_of_mine", source)
    return "# all mine\n" + source.replace("\n\n", "\n\n\n")


@pytest.fixture
def handed_in(course):
    hand_in(course, "ann", BANK.solved(OWNERS))
    hand_in(course, "bob", BANK.solved(renamed(OWNERS)))
    hand_in(course, "cem", BANK.solved(STATES))
    hand_in(course, "dan", "no notebook at all")
    return course


def test_a_renamed_copy_is_listed_first_and_another_answer_is_not(handed_in):
    first, *others = similar.compare(handed_in, LAB, least=0.05)
    assert (first.one, first.other) == ("ann", "bob") and first.share > 0.7
    assert all(pair.share < 0.5 for pair in others)


def test_what_was_handed_out_is_alike_for_everybody_and_counts_for_nothing(course):
    for student, variant in (("ann", "a"), ("bob", "b"), ("cem", "b")):
        hand_in(course, student, BANK.released(variant))
    assert similar.compare(course, LAB, least=0.05) == []


def test_who_took_the_published_solution_is_told_apart(course):
    for student in ("ann", "bob"):
        hand_in(course, student, BANK.solved())
    [pair] = similar.compare(course, LAB)
    assert pair.share == pair.published == 1.0


def test_one_hand_in_is_nothing_to_compare(course):
    hand_in(course, "ann", BANK.solved())
    with pytest.raises(DataNotFound):
        similar.compare(course, LAB)


def test_the_command_lists_pairs_and_touches_no_grade(handed_in, capsys):
    before = {path: path.stat().st_mtime_ns for path in handed_in.root.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as done:
        main(["similar", "lab3", "--course", str(handed_in.root), "--json"])
    assert done.value.code in (0, None)
    out = capsys.readouterr().out
    assert "ann and bob" in out and "cem" not in out and "Read them" in out
    assert json.loads(out.splitlines()[-1])["pairs"][0]["one"] == "ann"
    left_out = {"nbgrader_config.py", ".gitignore"}
    after = {path: path.stat().st_mtime_ns for path in before if path.name not in left_out}
    assert after == {path: at for path, at in before.items() if path.name not in left_out}
