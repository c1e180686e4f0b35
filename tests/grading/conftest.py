"""What the tests of the grader share."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pytest

from autograder import notebooks, release, sandbox, scoring
from autograder.course import Course

NOON = datetime(2026, 12, 4, 12, tzinfo=UTC)


@pytest.fixture(scope="session", autouse=True)
def weak_isolation_will_do():
    """Where there is no bubblewrap: what these tests hand in is ours."""
    with pytest.MonkeyPatch.context() as patch:
        if sandbox.best_level() != "bubblewrap":
            patch.setenv(sandbox.ACCEPTS_WEAK, "yes")
        yield


@pytest.fixture(scope="session")
def registered(tmp_path_factory):
    """A course folder that knows lab 3: to be copied, because nbgrader needs seconds for it."""
    course = Course.open(tmp_path_factory.mktemp("registered"))
    notebooks.write_whole(course.root / "secret", "a fixed secret")
    release.register(course, scoring.find("lab3"))
    return course.root


@pytest.fixture
def course(registered, tmp_path):
    """A course of this test's own, with a fixed secret and nobody in it."""
    shutil.copytree(registered, tmp_path / "course")
    return Course.open(tmp_path / "course")
