"""A run over a class: the same scores however it is run, taken up again, nothing lost aloud."""

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
from grading.conftest import NOON

from autograder import (
    classes,
    exports,
    gradebook,
    grading,
    jobs,
    receipts,
    report,
    sandbox,
    scoring,
    selftest,
)
from autograder.__main__ import main
from autograder.bank import lab3 as bank
from autograder.bank.lab3 import LAB as NAME
from minserve.errors import ConfigError

LAB = scoring.find("lab3")
BANK = {submission.name: submission for submission in bank.all_submissions()}
RIGHT, PARTLY = "right: the solution", "wrong: always says True"
pytestmark = pytest.mark.nbgrader


def hand_in(course, **names):
    for student, name in names.items():
        selftest.hand_in(BANK[name], course.root / "submitted" / student / NAME)


def change(course, student, name):
    (path,) = BANK[name].files().items()
    (course.root / "submitted" / student / NAME / path[0]).write_bytes(path[1])


def vectors(course):
    return {r["student"]: [c["score"] for c in r["cells"]] for r in grading.results(course, LAB)}


@pytest.fixture
def instant(monkeypatch, tmp_path):
    """Grading without nbgrader: {student: score}, to be changed; counts what was asked for."""

    class Desk:
        scores, asked = {}, []

        def __init__(self, course, lab, number):
            pass

        def grade(self, task):
            self.asked.append(task.student)
            score = self.scores.get(task.student, 17.0)
            cell = {"grade_id": "lab3-storm", "points": 17.0, "score": score, "feedback": []}
            result = grading.blank(LAB, task.student)
            grades = dict.fromkeys([c.grade_id for c in LAB.cells], (0.0, False))
            grades |= {"lab3-storm": (score, False)} | dict.fromkeys(LAB.manual, (None, True))
            comments = dict.fromkeys([*LAB.solutions, *LAB.manual])
            result |= {"status": "graded", "notes": [], "score": score, "cells": [cell]}
            return jobs.Graded(result, grades, comments, Path(tempfile.mkdtemp(dir=tmp_path)))

    monkeypatch.setattr(jobs, "Desk", Desk)
    return Desk


# -- side by side


def test_scores_are_the_same_for_every_order_and_number_of_jobs(course, tmp_path):
    import shutil

    names = {"ann": RIGHT, "bob": PARTLY, "cem": "hostile: kills itself in a method"}
    hand_in(course, **names)
    shutil.copytree(course.root, tmp_path / "other")
    other = classes.Course.open(tmp_path / "other")
    run = classes.grade(course, LAB, sorted(names))
    again = classes.grade(other, LAB, sorted(names, reverse=True), num_jobs=2)
    assert vectors(course) == vectors(other)
    for told in (run, again):
        assert [r["student"] for r in told.results] == sorted(names)
    assert run.peak_mb > 0  # one job works in this process, which holds what other tests loaded
    assert 0 < again.peak_mb < 1500
    for one in (course, other):
        with one.gradebook() as book:
            for student, name in names.items():
                saved = selftest.saved_vector(book, LAB, student)
                assert saved == tuple(map(float, BANK[name].expected))
        assert not (one.root / "work").exists(), "nothing is left of the jobs"
    words = [s.points for s in report.standings(course, LAB)]
    assert words == [s.points for s in report.standings(other, LAB)]


def test_a_job_that_dies_costs_one_submission_its_grade_and_no_other(course):
    hand_in(course, ann=RIGHT, bob=RIGHT, cem=RIGHT)
    told, killed = [], []

    def kill_one(result):
        told.append(result)

    real = jobs._Job.give

    def give(self, task):
        real(self, task)
        if task.student == "ann":
            killed.append(task.student)
            os.kill(self.process.pid, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs._Job, "give", give)
        run = classes.grade(course, LAB, ["ann", "bob", "cem"], kill_one, num_jobs=2)
    status = {r["student"]: r["status"] for r in run.results}
    assert status == {"ann": "unreadable", "bob": "graded", "cem": "graded"}
    assert killed and "the grader itself failed" in run.results[0]["notes"][0]
    again = classes.grade(course, LAB, ["ann", "bob", "cem"])
    assert (again.num_graded, again.num_kept) == (1, 2), "only the one that failed"
    assert again.results[0]["score"] == 17


# -- taken up again


def test_what_is_done_is_not_done_again_unless_something_changed(course, instant, monkeypatch):
    hand_in(course, ann=RIGHT, bob=PARTLY)
    assert classes.grade(course, LAB, ["ann", "bob"]).num_graded == 2
    assert classes.grade(course, LAB, ["ann", "bob"]).num_graded == 0
    change(course, "bob", RIGHT)
    assert classes.grade(course, LAB, ["ann", "bob"]).num_graded == 1
    assert instant.asked[-1] == "bob"
    monkeypatch.setattr(classes.release, "version", lambda lab: "another")
    assert classes.grade(course, LAB, ["ann", "bob"]).num_graded == 2
    assert classes.grade(course, LAB, ["ann", "bob"], force=True).num_graded == 2


def test_an_interrupted_run_keeps_what_it_has_done(course, instant):
    hand_in(course, ann=RIGHT, bob=RIGHT, cem=RIGHT)

    def told(result):
        if result["student"] == "bob":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classes.grade(course, LAB, ["ann", "bob", "cem"], told)
    instant.asked.clear()
    run = classes.grade(course, LAB, ["ann", "bob", "cem"])
    assert instant.asked == ["cem"] and len(run.results) == 3


@pytest.mark.slow
def test_a_killed_run_is_taken_up_where_it_was(course):
    hand_in(course, **{f"s{n}": RIGHT for n in range(8)})
    command = [sys.executable, "-m", "autograder", "grade", "lab3", "--jobs", "2"]
    command += ["--course", str(course.root)]
    process = subprocess.Popen(command, cwd=sandbox.REPOSITORY, stdout=subprocess.DEVNULL)
    until_s = time.monotonic() + 120
    while not grading.results(course, LAB) and time.monotonic() < until_s:
        time.sleep(0.05)
    process.kill()
    process.wait()
    done = len(grading.results(course, LAB))
    assert 0 < done < 8
    run = classes.grade(course, LAB, [f"s{n}" for n in range(8)])
    assert (run.num_kept, run.num_graded) == (done, 8 - done)
    assert all(result["score"] == 17 for result in run.results)


def test_two_runs_do_not_write_at_once(course):
    with open(course.root / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another run"):
            classes.grade(course, LAB, [])


def test_the_gradebook_is_copied_before_each_run_and_the_last_ones_stay(course, instant):
    for number in range(gradebook.NUM_BACKUPS + 3):
        classes.grade(course, LAB, [], now=NOON + timedelta(minutes=number))
    kept = sorted((course.root / "backups").iterdir())
    assert len(kept) == gradebook.NUM_BACKUPS and "121200" in kept[-1].name
    assert kept[-1].stat().st_mode & 0o077 == 0
    with sqlite3.connect(kept[-1]) as copy:
        assert copy.execute("select name from assignment").fetchall() == [(NAME,)]


# -- regrades


def test_a_regrade_lists_changes_and_never_lowers_unasked(course, instant):
    hand_in(course, ann=RIGHT, bob=RIGHT, cem=RIGHT)
    instant.scores = {"ann": 10.0, "bob": 10.0, "cem": 10.0}
    classes.grade(course, LAB, ["ann", "bob", "cem"])
    instant.scores = {"ann": 12.0, "bob": 8.0, "cem": 10.0}

    rehearsal = classes.grade(course, LAB, ["ann", "bob", "cem"], force=True, is_rehearsal=True)
    assert rehearsal.changes == [
        "ann: 10 -> 12 (lab3-storm 10 -> 12)",
        "bob: 10 -> 8 (lab3-storm 10 -> 8); kept, --lower would take it",
    ]
    assert vectors(course) == {"ann": [10.0], "bob": [10.0], "cem": [10.0]}

    run = classes.grade(course, LAB, ["ann", "bob", "cem"], force=True)
    assert run.changes == rehearsal.changes
    assert vectors(course) == {"ann": [12.0], "bob": [10.0], "cem": [10.0]}
    classes.grade(course, LAB, ["ann", "bob", "cem"], force=True, may_lower=True)
    assert vectors(course) == {"ann": [12.0], "bob": [8.0], "cem": [10.0]}


def test_new_work_counts_even_if_it_earns_less(course, instant):
    hand_in(course, ann=RIGHT)
    classes.grade(course, LAB, ["ann"])
    change(course, "ann", PARTLY)
    instant.scores = {"ann": 3.0}
    run = classes.grade(course, LAB, ["ann"])
    assert vectors(course) == {"ann": [3.0]} and run.changes == [
        "ann: 17 -> 3 (lab3-storm 17 -> 3)"
    ]


def test_a_persons_score_stays_is_listed_and_is_looked_at_again_if_the_work_is_new(course):
    hand_in(course, ann="hostile: script in text and output")  # it has an explanation
    classes.grade(course, LAB, ["ann"])

    def explanation(book):
        return book.find_grade("lab3-explanation", NAME, NAME, "ann")

    with course.gradebook() as book:
        assert explanation(book).needs_manual_grade
        explanation(book).manual_score, explanation(book).needs_manual_grade = 2.5, False
        book.db.commit()
    (standing,) = report.standings(course, LAB)
    assert standing.points == "17 of 17 automatic, 2.5 of 3 by hand" and standing.total == 19.5

    run = classes.grade(course, LAB, ["ann"], force=True)
    assert run.changes == ["ann: lab3-explanation keeps the 2.5 that a person gave"]
    with course.gradebook() as book:
        assert explanation(book).manual_score == 2.5 and not explanation(book).needs_manual_grade
    path = course.root / "submitted" / "ann" / NAME / f"{NAME}.ipynb"
    notebook = json.loads(path.read_text())
    path.write_text(json.dumps(bank.set_source(notebook, "lab3-explanation", "Something else.")))
    classes.grade(course, LAB, ["ann"])
    with course.gradebook() as book:
        assert explanation(book).manual_score == 2.5 and explanation(book).needs_manual_grade


def test_a_lab_that_has_got_another_cell_keeps_what_people_gave(course):
    hand_in(course, ann=PARTLY)
    classes.grade(course, LAB, ["ann"])
    with course.gradebook() as book:  # as if lab3-storm had not been there at the first grading
        book.db.delete(book.find_grade("lab3-storm", NAME, NAME, "ann"))
        book.find_grade("lab3-exact", NAME, NAME, "ann").manual_score = 3.5
        book.find_comment("lab3-explanation", NAME, NAME, "ann").manual_comment = "Nearly."
        book.db.commit()
    run = classes.grade(course, LAB, ["ann"], force=True)
    assert run.changes == ["ann: lab3-exact keeps the 3.5 that a person gave"]
    with course.gradebook() as book:
        assert book.find_grade("lab3-storm", NAME, NAME, "ann").auto_score == 3
        assert book.find_grade("lab3-exact", NAME, NAME, "ann").score == 3.5
        assert book.find_comment("lab3-explanation", NAME, NAME, "ann").comment == "Nearly."


def test_an_older_gradebook_put_back_is_filled_again(course):
    import shutil

    hand_in(course, ann=RIGHT)
    classes.grade(course, LAB, ["ann"])
    (backup,) = (course.root / "backups").iterdir()
    shutil.copy(backup, course.root / "gradebook.db")
    assert classes.grade(course, LAB, ["ann"]).num_graded == 1
    assert report.standings(course, LAB)[0].total == 17


# -- groups and lateness, through the gradebook


def test_a_group_gets_one_submissions_score_and_lateness_is_its_own_rule(course):
    (course.root / "course.toml").write_text(
        '[groups.lab3]\nred = ["ann", "bob"]\n'
        "[late]\nper_day = 0.1\n[due]\nlab3 = 2026-12-03T12:00:00Z\n[extensions.lab3]\nbob = 5\n"
    )
    hand_in(course, ann=PARTLY)
    names = classes.students(course, LAB, [])
    assert names == ["ann", "bob"]
    classes.grade(course, LAB, names, now=NOON)  # a day late
    ann, bob = report.standings(course, LAB)
    assert ann.automatic == bob.automatic == 15
    assert (ann.penalty, ann.total, bob.penalty, bob.total) == (2.0, 13.0, 0.0, 15.0)
    assert ann.points == "15 of 17 automatic, 0 of 3 by hand, 2 off for being a day late"
    assert "handed in by ann for the group" in bob.notes
    with course.gradebook() as book:
        assert book.find_submission(NAME, "ann").late_submission_penalty == 2.0
    (course.root / "course.toml").unlink()
    classes.grade(course, LAB, ["ann"], now=NOON)
    assert report.standings(course, LAB)[0].penalty == 0, "rules hold as they are today"


def test_a_group_may_be_named_after_one_of_its_own(course, instant):
    (course.root / "course.toml").write_text('[groups.lab3]\nann = ["ann", "bob"]\n')
    hand_in(course, bob=RIGHT)
    assert classes.students(course, LAB, ["ann", "cem"]) == ["ann", "bob", "cem"]
    run = classes.grade(course, LAB, ["ann", "bob"], now=NOON)
    assert [r["handed_in_by"] for r in run.results] == ["bob", "bob"]


def test_the_latest_of_a_group_counts_whoever_hands_it_in(course, instant):
    (course.root / "course.toml").write_text('[groups.lab3]\nred = ["ann", "bob"]\n')
    hand_in(course, ann=PARTLY)
    classes.grade(course, LAB, ["ann", "bob"], now=NOON)
    hand_in(course, bob=RIGHT)
    run = classes.grade(course, LAB, ["ann", "bob"], now=NOON + timedelta(hours=1))
    assert [r["handed_in_by"] for r in run.results] == ["bob", "bob"]
    assert receipts.find(course, LAB, "bob").time == NOON + timedelta(hours=1)


# -- by commands


def test_a_class_by_commands_from_a_zip_file_to_forgetting(course, instant, tmp_path, capsys):
    import zipfile

    (data,) = BANK[RIGHT].files().values()
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for student in ("ann", "bob"):
            archive.writestr(f"{student}/{NAME}.ipynb", data)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--course", str(course.root)])
        assert not ended.value.code, capsys.readouterr().err
        return capsys.readouterr().out

    when = ("--received", "2026-12-04T12:00:00")
    assert "2 new, 0 as before" in run("collect", "lab3", "--from", str(tmp_path / "in.zip"), *when)
    assert receipts.find(course, LAB, "ann").time == NOON
    assert "2 graded, 0 done before; peak" in run("grade", "lab3")
    assert "0 graded, 2 done before" in run("grade", "lab3", "--jobs", "2")
    instant.scores = {"ann": 16.0}
    lowered = "ann: 17 -> 16 (lab3-storm 17 -> 16); kept, --lower would take it"
    assert lowered in run("regrade", "lab3", "--dry-run")
    assert lowered in run("regrade", "lab3") and vectors(course)["ann"] == [17.0]
    assert "; kept" not in run("regrade", "lab3", "--lower") and vectors(course)["ann"] == [16.0]
    path = tmp_path / "p.csv"
    assert "rows in" in run("export", "lab3", "--format", "pseudonyms", "--to", str(path))
    with course.gradebook() as book:
        book.update_or_create_student("ann")
    told = run("whois", exports.pseudonym(course, "ann"))
    assert told == "ann\n"
    assert "would be removed: add --yes" in run("purge", "--older-than-days", "0")
    assert vectors(course)["ann"] == [16.0]
    run("purge", "--student", "ann", "--yes")
    assert set(vectors(course)) == {"bob"}
