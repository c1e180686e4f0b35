"""docs/instructors.md: its commands exist, and lead from nothing to exported grades."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from autograder import rules, sandbox, scoring
from autograder.__main__ import app

PAGE = (sandbox.REPOSITORY / "docs" / "instructors.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)
INLINE = re.findall(r"`((?:collect|grade|regrade|release|export|purge|selftest) [^`]*)`", PAGE)
LAB = scoring.find("lab3")


def commands():
    for block in BLOCKS:
        for line in block.splitlines():
            if line.startswith("python -m autograder "):
                yield line.partition("  #")[0].removeprefix("python -m autograder ")
    yield from INLINE


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_every_command_on_the_page_exists_with_its_options(line):
    name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= known, line


def test_the_rules_on_the_page_are_rules_that_the_course_reads(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "course.toml").write_text(text)
    told = rules.read(tmp_path)
    assert told.per_day == 0.1 and told.members(LAB, "cem") == ("red", "bob", "cem")


def test_the_page_lists_every_status():
    from autograder.grading import STATUSES

    table = PAGE.partition("| status |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(STATUSES)


@pytest.mark.slow
@pytest.mark.nbgrader
def test_a_class_of_thirty_goes_from_release_to_csv_by_the_commands_of_the_page(
    tmp_path, require_debian
):
    require_debian("bubblewrap", "bwrap")
    script = BLOCKS[0]
    assert "student-copy" in script and "--students 30" in script
    if not (sandbox.REPOSITORY / ".venv").exists():  # another environment runs the tests
        script = script.replace("source .venv/bin/activate\n", "")
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=sandbox.REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert len(rows) == 30 and rows["s001"]["points"] == "17 of 17 automatic, 3 by hand"
    assert rows["s030"]["status"] == "missing" and rows["s030"]["score"] == ""
    table = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("s0")}
    for name, row in rows.items():
        assert row["status"] in table[name] and row["points"] in table[name]
        page = tmp_path / "course-2026" / "feedback" / name / LAB.name / f"{LAB.name}.html"
        assert page.exists() == (row["score"] != "")
        if page.exists():
            assert f"<p>{row['points']}." in page.read_text("utf-8")
    without = sum(row["score"] == "" for row in rows.values())
    assert f"30 graded, 0 done before, {without} of them without a score" in done.stdout
    peak = re.search(r"peak memory of a job (\d+) MB", done.stdout)
    assert 0 < int(peak[1]) < 1500
    assert (tmp_path / "canvas.csv").exists() and (tmp_path / "students" / "labs").exists()
