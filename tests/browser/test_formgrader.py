"""nbgrader's own formgrader, in a real browser, over a class that we graded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from autograder import classes, practice, scoring
from autograder.collecting import from_folder
from autograder.commands.classes import read_roster
from autograder.course import Course

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"
LAB = scoring.find("lab3")
pytestmark = [pytest.mark.browser, pytest.mark.nbgrader, pytest.mark.slow]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A course with an invented class of seven, of whom the last handed in nothing."""
    root = tmp_path_factory.mktemp("formgrader")
    practice.invent(LAB, root / "in", 7)
    course = Course.open(root / "course")
    from_folder(course, LAB, root / "in", classes.datetime.now(classes.UTC))
    with course.gradebook() as gradebook:
        for name, person in read_roster(root / "in" / "roster.csv").items():
            gradebook.update_or_create_student(name, **person)
    run = classes.grade(course, LAB, classes.students(course, LAB, []), num_jobs=2)
    return course, {result["student"]: result for result in run.results}


@pytest.fixture(scope="module")
def server(graded):
    """A Jupyter server in the course folder, as an instructor starts it."""
    course, _ = graded
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--ServerApp.port={port}"]
    command += [
        "--ServerApp.ip=127.0.0.1",
        "--log-level=ERROR",
        "--IdentityProvider.token=",
        "--allow-root",
    ]
    process = subprocess.Popen(command, cwd=course.root, start_new_session=True)
    url = f"http://127.0.0.1:{port}/formgrader"
    try:
        for _ in range(300):
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(url, timeout=5).read()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


@pytest.fixture
def page(require_debian):
    chromium = require_debian("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(30_000)
        page.said = []
        page.on("dialog", lambda dialog: (page.said.append(dialog.message), dialog.dismiss()))
        yield page
        browser.close()


def test_the_formgrader_shows_the_graded_class(graded, server, page):
    _, results = graded
    page.goto(f"{server}/manage_submissions/{LAB.name}")
    page.get_by_text("s006", exact=True).wait_for()
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "formgrader.png")
    rows = {
        row.split("\t")[1]: row for row in page.inner_text("table").splitlines() if "\ts0" in row
    }
    scored = {name for name, result in results.items() if result["score"] is not None}
    assert {name for name, row in rows.items() if "needs autograding" not in row} == scored
    for name in scored:
        assert f"{results[name]['score']:g} / 20" in rows[name], rows[name]


def test_every_submission_opens_for_marking_with_our_words_and_without_its_scripts(
    graded, server, page
):
    course, results = graded
    with course.gradebook() as gradebook:
        ids = {
            submission.student.id: submission.notebooks[0].id
            for submission in gradebook.assignment_submissions(LAB.name)
        }
    scored = [name for name, result in results.items() if result["score"] is not None]
    assert scored
    for name in scored:
        page.goto(f"{server}/submissions/{ids[name]}/")
        page.locator("input.score").first.wait_for()
        text = " ".join(page.inner_text("body").split())
        for cell in results[name]["cells"]:
            for words in cell["feedback"] or ["Everything that is scored here holds."]:
                assert " ".join(words.split()) in text, (name, cell["grade_id"])
    assert page.said == []
