"""The registry's CSV, in each of its forms, and forgetting."""

import csv
import io
from datetime import timedelta

import pytest
from grading.conftest import NOON

from autograder import exports, grading, purging, receipts, scoring
from autograder.commands.classes import read_roster
from autograder.report import Standing
from minserve.errors import DataNotFound

LAB = scoring.find("lab3")


def standing(student, status="graded", **more):
    result = {"status": status, "notes": [], "version": "v", "isolation": "bubblewrap"}
    fields = {"last_name": "Abel", "first_name": "Ann", "email": f"{student}@example.org"}
    return Standing(student, lab=LAB, result=result, **fields | more)


ANN = standing("ann", automatic=14.0, total=14.0, received=NOON)
BOB = standing("bob", automatic=14.0, by_hand=2.5, total=14.5, penalty=2.0, days_late=1)
CEM = standing("cem", "unreadable", last_name='=1+2, "x"', first_name="@cem\n-1")
DAN = Standing("dan", "Dan", "D", "", LAB, None)


def rows(course, style, *everybody):
    text = exports.to_csv(exports.FORMATS[style](course, LAB, list(everybody)))
    return list(csv.reader(io.StringIO(text)))


def test_the_table_and_the_csv_say_it_in_the_same_words(course):
    head, ann, bob, cem, dan = rows(course, "plain", ANN, BOB, CEM, DAN)
    at = head.index("points")
    assert (ann[at], ann[head.index("status")]) == ("14 of 17 automatic, 3 by hand", "graded")
    assert bob[at] == "14 of 17 automatic, 2.5 of 3 by hand, 2 off for being a day late"
    assert [row[at] for row in (cem, dan)] == ["no score", "no score"]
    assert ann[head.index("score")] == "14.0" and bob[head.index("score")] == "14.5"
    assert cem[head.index("score")] == dan[head.index("score")] == "", "never a silent zero"
    assert (cem[head.index("status")], dan[head.index("status")]) == ("unreadable", "missing")
    assert ann[head.index("received")] == "2026-12-04T12:00:00Z"


def test_a_bonus_is_named_beside_the_points_it_comes_on_top_of(course):
    told = standing("eva", automatic=17.0, bonus=1.0, by_hand=3.0, total=21.0)
    assert told.points == "17 of 17 automatic, 1 bonus, 3 of 3 by hand"
    head, row = rows(course, "plain", told)
    assert (row[head.index("bonus")], row[head.index("max_score")]) == ("1.0", "20.0")


@pytest.mark.parametrize("style", ["plain", "canvas", "moodle"])
def test_names_with_commas_or_formulas_stay_text_in_one_column(course, style):
    told = rows(course, style, CEM, standing("=cmd|x", automatic=1.0, total=1.0))
    assert len({len(row) for row in told}) == 1
    assert not any(cell[:1] in tuple("=+-@|%") for row in told for cell in row)
    assert not any("\n" in cell for row in told for cell in row)


@pytest.mark.parametrize(
    "value, told",
    [
        ("=1", "'=1"),
        (" \t=1", "'=1"),
        ("a,b", "a,b"),
        ("a\nb", "a b"),
        ("-", "'-"),
        (-1.0, -1.0),
        ("    =1", "'=1"),
        ("\uff1d1", "'\uff1d1"),
        ("\x00=1", "'=1"),
        ("a\udcffb", "a b"),
        ("found x;=1.ipynb, -2", "found x;'=1.ipynb, '-2"),
        ("O'Neil-Smith", "O'Neil-Smith"),
    ],
)
def test_only_text_that_a_spreadsheet_would_run_is_changed(value, told):
    assert exports.neutral(value) == told


def test_canvas_gets_its_columns_its_second_line_and_no_made_up_zero(course):
    head, possible, ann, cem = rows(course, "canvas", ANN, CEM)
    assert head[:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assert possible == ["    Points Possible", "", "", "", "", "20.0"]
    assert ann == ["Abel, Ann", "", "ann", "ann", "", "14.0"] and cem[-1] == ""


def test_moodle_gets_an_identity_a_grade_and_a_line_of_feedback(course):
    head, ann, dan = rows(course, "moodle", ANN, DAN)
    assert head == ["ID number", "Email address", LAB.name, f"{LAB.name} (feedback)"]
    assert ann == ["ann", "ann@example.org", "14.0", "graded: 14 of 17 automatic, 3 by hand"]
    assert dan[2:] == ["", "missing: no score"]


def test_pseudonyms_name_nobody_and_lead_back_only_with_the_secret(course):
    with course.gradebook() as gradebook:
        for name in ("ann", "bob"):
            gradebook.update_or_create_student(name)
    text = exports.to_csv(exports.pseudonymous(course, LAB, [ANN, BOB]))
    assert not any(word in text for word in ("ann", "bob", "Abel", "example.org"))
    name = exports.pseudonym(course, "ann")
    assert name in text and exports.student_of(course, name) == "ann"
    (course.root / "secret").write_text("another")
    assert exports.student_of(course, name) is None


def test_an_unknown_format_names_the_known_ones(course, tmp_path):
    with pytest.raises(DataNotFound) as caught:
        exports.export(course, LAB, tmp_path / "x.csv", "excel")
    assert "canvas, moodle" in caught.value.hint


@pytest.mark.parametrize("line", [",A,B", "ann,A,B\nann,C,D", "../x,A,B", '"a\nb",A,B', "<b>,A,B"])
def test_a_roster_with_what_is_no_id_is_refused_and_says_where(tmp_path, line):
    path = tmp_path / "roster.csv"
    path.write_text(f"student_id,last_name,first_name\nzoe,Z,Z\n{line}\n")
    with pytest.raises(DataNotFound, match="person [23]"):
        read_roster(path)


def test_names_of_a_roster_are_text_to_a_page_that_takes_them_for_html(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("student_id,last_name\n ann ,<img src=x>\x07\nbob\n")
    assert read_roster(path) == {
        "ann": {"last_name": "img src=x", "first_name": "", "email": ""},
        "bob": {"last_name": "", "first_name": "", "email": ""},
    }


# -- forgetting


def lives(course, student, days=0):
    receipts.record(course, LAB, student, "digest", "test", NOON - timedelta(days=days))
    grading.save(course, grading.blank(LAB, student) | {"status": "missing", "notes": []})
    for folder in ("submitted", "autograded", "feedback"):
        (course.root / folder / student / LAB.name).mkdir(parents=True)
        (course.root / folder / student / LAB.name / "x").write_text(student)
    with course.gradebook() as gradebook:
        gradebook.update_or_create_student(student, last_name="Forgettable")
        gradebook.update_or_create_submission(LAB.name, student)


def test_purge_lists_first_and_then_leaves_no_trace_of_a_student(course):
    for student in ("ann", "bob"):
        lives(course, student)
    backup = course.root / "backups" / "gradebook-1.db"
    backup.parent.mkdir()
    backup.write_bytes((course.root / "gradebook.db").read_bytes())
    told = purging.purge(course, "ann", is_rehearsal=True)
    assert len(told) == 7 and (course.root / "submitted" / "ann").exists() and backup.exists()
    assert purging.purge(course, "ann", is_rehearsal=False) == told
    assert not [path for path in course.root.rglob("ann*")] and not backup.exists()
    assert grading.result_of(course, LAB, "ann") is None
    assert receipts.find(course, LAB, "ann") is None
    with course.gradebook() as gradebook:
        assert [student.id for student in gradebook.students] == ["bob"]
    assert (course.root / "gradebook.db").read_bytes().count(b"Forgettable") == 1
    with pytest.raises(DataNotFound, match="'ann'"):
        purging.purge(course, "ann", is_rehearsal=False)


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "an", "*", "ann/lab3", " ann"])
def test_purging_by_a_slip_of_the_pen_removes_nothing(course, name):
    lives(course, "ann")
    (course.root / "backups").mkdir()
    (course.root / "backups" / "gradebook-1.db").write_bytes(b"x")
    before = sorted(course.root.rglob("*"))
    with pytest.raises(DataNotFound):
        purging.purge(course, name, is_rehearsal=False)
    after = [path for path in sorted(course.root.rglob("*")) if path.name != "lock"]
    assert after == before


def test_what_was_kept_long_enough_is_what_expires(course):
    lives(course, "old", days=500)
    lives(course, "new", days=5)
    assert purging.expired(course, None, NOON) == ["old"]
    assert purging.expired(course, 3, NOON) == ["new", "old"]
    (course.root / "course.toml").write_text("[privacy]\nkeep_days = 600\n")
    assert purging.expired(course, None, NOON) == []
