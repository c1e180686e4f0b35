"""What befalls a course folder: one line that says what to do, and nothing made up."""

import contextlib
import sqlite3

import pytest
from grading.conftest import NOON

from autograder import gradebook, grading, receipts, scoring
from autograder.__main__ import main
from autograder.course import Course
from minserve.errors import ConfigError

LAB = scoring.find("lab3")


@pytest.fixture
def told(course, monkeypatch, capsys):
    """Run a command on the course that must fail, in this process: its one line of error."""
    grading.save(course, grading.blank(LAB, "ann") | {"status": "missing", "notes": []})
    receipts.record(course, LAB, "ann", "digest", "test", NOON)

    def run(*arguments):
        monkeypatch.setenv("MINSERVE_COURSE", str(course.root))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert ended.value.code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return run


def test_a_gradebook_that_another_program_holds(course, told):
    with contextlib.closing(sqlite3.connect(course.root / "gradebook.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "database is locked (if another program has it open" in told("export", "lab3")


def test_a_gradebook_that_is_none(course, told):
    (course.root / "gradebook.db").write_bytes(b"no database" * 1000)
    assert "file is not a database" in told("export", "lab3")
    with pytest.raises(ConfigError, match="cannot copy"):
        gradebook.back_up(course, NOON)
    assert not list((course.root / "backups").iterdir()), "no backup of a wreck"


@pytest.mark.parametrize("kind", ["results", "receipts"])
def test_a_record_that_was_cut_off(course, told, kind):
    (path,) = (course.root / kind / LAB.name).glob("*.json")
    path.write_text(path.read_text("utf-8")[:20])
    err = told("export", "lab3")
    assert str(path) in err and ("grade again" in err or "counts as received now" in err)


def test_a_place_that_cannot_be_written(course, told, tmp_path):
    for place in (tmp_path, tmp_path / "course" / "secret" / "x.csv"):
        assert str(place.parent) in told("export", "lab3", "--to", str(place))


def test_a_secret_that_is_empty_or_gone_is_never_replaced(course, told):
    (course.root / "secret").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        _ = course.secret
    (course.root / "secret").unlink()
    assert "is gone" in told("export", "lab3")
    with pytest.raises(ConfigError):
        Course.open(course.root)
    assert not (course.root / "secret").exists()
