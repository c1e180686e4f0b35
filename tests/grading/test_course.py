"""Through real nbgrader, from handing in to the exported CSV."""

import csv
import io
import json
import re
import subprocess
import sys

import pytest
from nbconvert.filters import markdown2html

from autograder import classes, exports, feedback, jobs, notebooks, sandbox, scoring, selftest
from autograder.__main__ import main
from autograder.bank import lab3 as bank
from autograder.bank.lab3 import LAB as NAME
from autograder.bank.lab3.wrong import WRONG
from autograder.course import Course

LAB = scoring.find("lab3")
BANK = {submission.name: submission for submission in bank.all_submissions()}
HANDED_IN = {
    "right": "right: the solution",
    "wrong": "wrong: releases at once, even in flight",
    "hostile": "hostile: kills itself in a method",
    "script": "hostile: script in text and output",
    "corrupt": "hostile: corrupt JSON",
}


@pytest.fixture
def autograder(monkeypatch, capsys):
    """Run a command in this process (starting one costs seconds): (exit code, out, err)."""

    def run(*arguments, course):
        monkeypatch.setenv("MINSERVE_COURSE", str(course))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A course with five submissions and a sixth student who handed in nothing, graded."""
    course = Course.open(tmp_path_factory.mktemp("course"))
    notebooks.write_whole(course.root / "secret", "a fixed secret")
    for student, name in HANDED_IN.items():
        selftest.hand_in(BANK[name], course.root / "submitted" / student / NAME)
    with course.gradebook() as gradebook:
        gradebook.update_or_create_student(
            "absent", last_name="=HYPERLINK(1)", first_name='Ann, "Bo"', email=""
        )
    run = classes.grade(course, LAB, classes.students(course, LAB, []), num_jobs=2)
    assert 0 < run.peak_mb < 1500
    return course, {result["student"]: result for result in run.results}


pytestmark = pytest.mark.nbgrader


@pytest.mark.parametrize("student", ["right", "wrong", "hostile", "script"])
def test_the_gradebook_holds_the_expected_vector(graded, student):
    course, results = graded
    with course.gradebook() as gradebook:
        saved = selftest.saved_vector(gradebook, LAB, student)
    expected = BANK[HANDED_IN[student]]
    assert saved == tuple(map(float, expected.expected))
    assert results[student]["status"] == expected.status


def test_no_score_is_made_up_for_what_cannot_be_graded(graded):
    course, results = graded
    assert (results["corrupt"]["status"], results["corrupt"]["score"]) == ("unreadable", None)
    assert (results["absent"]["status"], results["absent"]["score"]) == ("missing", None)
    with course.gradebook() as gradebook:
        assert selftest.saved_vector(gradebook, LAB, "corrupt") is None


def test_the_csv_has_a_status_empty_scores_and_no_formula(graded, tmp_path):
    course, _ = graded
    path = tmp_path / "grades.csv"
    assert exports.export(course, LAB, path) == 6
    rows = {row["student_id"]: row for row in csv.DictReader(io.StringIO(path.read_text()))}
    assert rows["absent"]["status"] == "missing" and rows["absent"]["score"] == ""
    assert rows["corrupt"]["status"] == "unreadable" and rows["corrupt"]["score"] == ""
    assert rows["absent"]["last_name"] == "'=HYPERLINK(1)"
    assert rows["absent"]["first_name"] == 'Ann, "Bo"'
    assert rows["right"]["score"] == rows["right"]["auto_score"] == "17.0"
    assert rows["hostile"]["status"] == "partly" and rows["hostile"]["auto_score"] == "3.0"
    assert rows["script"]["needs_manual_grade"] == "yes"
    assert rows["right"]["max_score"] == "20.0"


def test_a_person_reads_the_explanation_and_an_empty_one_is_zero(graded):
    course, _ = graded
    with course.gradebook() as gradebook:
        grades = {
            student: gradebook.find_grade("lab3-explanation", NAME, NAME, student)
            for student in ("right", "script")
        }
        assert grades["right"].needs_manual_grade is False and grades["right"].score == 0
        assert grades["script"].needs_manual_grade is True


def test_feedback_teaches_and_leaks_nothing(graded):
    course, _ = graded
    paths = {path.parts[-3]: path.read_text("utf-8") for path in feedback.write(course, LAB)}
    assert set(paths) == {"right", "wrong", "hostile", "script"}
    assert "the step in flight still computed" in paths["wrong"]
    assert "<dt>The rule</dt><dd>from begin_step to finish_step" in paths["wrong"]
    assert "ended the process" in paths["hostile"]
    for page in paths.values():
        for secret in ("Mark scheme", "BEGIN SOLUTION", "Traceback (most", str(sandbox.REPOSITORY)):
            assert secret not in page
        assert "<script>alert" not in page and "onerror=alert(1)>" not in page
        assert 'src="http' not in page and "cdnjs" not in page, "it opens offline"


def test_the_autograded_notebook_of_the_formgrader_has_no_script(graded):
    course, _ = graded
    path = course.root / "autograded" / "script" / NAME / f"{NAME}.ipynb"
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            shown = markdown2html("".join(cell["source"]))
            assert "<script" not in shown and "javascript:" not in shown and "<img" not in shown
            assert not re.search(r"\$.*\\href", shown), "MathJax would make a link of it"
        for output in cell.get("outputs", []):
            assert set(output.get("data", {})) <= {"text/plain"}


def test_a_regrade_changes_no_score_and_keeps_a_manual_one_aloud(graded):
    course, results = graded
    with course.gradebook() as gradebook:
        grade = gradebook.find_grade("lab3-storm", NAME, NAME, "wrong")
        grade.manual_score = 1.0
        gradebook.db.commit()
    again = {
        r["student"]: r for r in classes.grade(course, LAB, ["wrong", "right"], force=True).results
    }
    assert set(again) == {"wrong", "right"}
    for student, result in again.items():
        assert result["cells"] == results[student]["cells"]
    assert again["wrong"]["notes"] == ["cell lab3-storm keeps its manual score 1"]
    assert again["right"]["notes"] == []


def test_what_was_handed_in_is_never_changed(graded):
    course, _ = graded
    path = course.root / "submitted" / "corrupt" / NAME / f"{NAME}.ipynb"
    assert path.read_bytes() == BANK[HANDED_IN["corrupt"]].files()[path.name]


def test_the_course_folder_is_private(graded):
    course, _ = graded
    assert course.root.stat().st_mode & 0o077 == 0
    assert (course.root / ".gitignore").read_text() == "*\n"


# -- the command line


def test_one_submission_that_cannot_be_read_is_one_line_and_exit_code_two(graded, autograder):
    course, _ = graded
    for student, words in (("corrupt", "no readable notebook"), ("absent", "nothing was handed")):
        code, _, err = autograder("grade", "lab3", "--student", student, course=course.root)
        assert code == 2
        assert words in err.strip().splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["grade", "lab9"], "the labs are: lab1, lab2, lab3"),
        (["grade", "lab3", "--student", "nobody"], "no student 'nobody'"),
        (["grade", "lab3", "--roster", "/nowhere.csv"], "student_id,last_name,first_name"),
        (["grade", "lab3", "--submissions", "/nowhere"], "one folder per student"),
        (["grade", "lab3"], "nothing was handed in"),
        (["feedback", "lab3"], "grade first"),
        (["release", "lab3", "--variant", "z", "--to", "/tmp"], "no variant 'z'"),
        (["grade", "lab3", "--course", "/dev/null/x"], "choose another with --course"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(arguments, words, tmp_path, autograder):
    code, _, err = autograder(*arguments, course=tmp_path / "course")
    assert code == 2
    (line,) = err.strip().splitlines()
    assert line.startswith("error: ") and words in line


def test_the_command_line_starts_and_helps():
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "--help"],
        capture_output=True,
        text=True,
        cwd=sandbox.REPOSITORY,
        timeout=120,
    )
    assert done.returncode == 0
    for command in ("release", "collect", "grade", "regrade", "feedback", "export", "selftest"):
        assert command in done.stdout


def test_from_files_and_a_roster_to_a_csv_by_commands_alone(tmp_path, autograder):
    selftest.hand_in(BANK["right: right_owners"], tmp_path / "in" / "ann")
    (tmp_path / "roster.csv").write_text("student_id,last_name,first_name\nann,A,Ann\nbob,B,Bob\n")
    course = tmp_path / "course"
    code, out, _ = autograder(
        *("grade", "lab3", "--submissions", str(tmp_path / "in")),
        *("--roster", str(tmp_path / "roster.csv"), "--json"),
        course=course,
    )
    assert code == 0
    told = json.loads(out.splitlines()[-1])["results"]
    assert [(r["student"], r["status"], r["score"]) for r in told] == [
        ("ann", "graded", 17.0),
        ("bob", "missing", None),
    ]
    assert autograder("feedback", "lab3", course=course)[0] == 0
    code, out, _ = autograder("export", "lab3", "--to", str(tmp_path / "g.csv"), course=course)
    assert code == 0 and out.startswith("2 rows")


def test_weak_isolation_must_be_accepted_aloud(tmp_path, autograder, monkeypatch):
    monkeypatch.setattr(sandbox, "best_level", lambda: "plain")
    monkeypatch.delenv(sandbox.ACCEPTS_WEAK, raising=False)
    code, _, err = autograder("grade", "lab3", course=tmp_path / "course")
    assert code == 2 and "install bubblewrap, or add --accept-weak-isolation" in err


def test_one_submission_that_breaks_the_grader_does_not_stop_the_class(tmp_path, monkeypatch):
    course = Course.open(tmp_path)
    real = jobs.intake.take

    def take(folder, lab):
        if folder.parent.name == "bad":
            raise OSError("disk on fire")
        return real(folder, lab)

    monkeypatch.setattr(jobs.intake, "take", take)
    told = classes.grade(course, LAB, ["bad", "worse"]).results
    assert [(r["status"], r["score"]) for r in told] == [("unreadable", None), ("missing", None)]
    assert "disk on fire" in told[0]["notes"][0]


# -- the selftest


def test_the_selftest_is_red_when_a_score_differs():
    wrong = [submission for submission in WRONG if "always says True" in submission.name]
    outcome = selftest.run(LAB, only=lambda submission: submission in wrong)
    assert outcome.is_green
    outcome.lines[0].actual = (4.0, 4.0, 3.0, 3.0, 3.0)
    assert not outcome.is_green


def test_the_selftest_names_a_check_that_nobody_would_miss():
    chosen = [BANK["right: the solution"], BANK["wrong: always says True"]]
    lines = [selftest.direct(LAB, submission, sandbox.best_level()) for submission in chosen]
    undetected = selftest.undetected_kinds(LAB, lines)
    assert "lab3-exact: wrong_answer" not in undetected
    assert "lab3-storm: capacity" in undetected
