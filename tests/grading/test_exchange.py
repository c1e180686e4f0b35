"""nbgrader's own release, fetch and submit, with our collect and grade behind them."""

import getpass
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autograder import classes, collecting, receipts, report, scoring
from autograder.bank import lab3 as bank

LAB = scoring.find("lab3")
FILE = f"{LAB.name}.ipynb"
pytestmark = [pytest.mark.nbgrader, pytest.mark.slow]


def nbgrader(folder, home, *arguments):
    done = subprocess.run(
        [Path(sys.executable).with_name("nbgrader"), *arguments],
        cwd=folder,
        env=os.environ | {"HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "jupyter")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-1500:]


def test_what_a_student_submits_through_nbgrader_is_collected_and_graded(course, tmp_path):
    me, home = getpass.getuser(), tmp_path / "home"
    home.mkdir()
    exchange = course.root / "exchange"
    exchange.chmod(0o777)
    nbgrader(course.root, home, "release_assignment", LAB.name)
    (home / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.Exchange.root = {str(exchange)!r}\n"
        "c.CourseDirectory.course_id = 'minserve'\n"
        f"c.Exchange.cache = {str(home / 'cache')!r}\n"
    )
    nbgrader(home, home, "fetch_assignment", LAB.name)
    fetched = home / LAB.name / FILE
    assert fetched.read_bytes() == (course.root / "release" / LAB.name / FILE).read_bytes()
    fetched.write_text(json.dumps(bank.solved()))
    nbgrader(home, home, "submit", LAB.name)

    done = collecting.from_exchange(course, LAB)
    assert (done.taken, done.refused) == ([me], [])
    age = datetime.now(UTC) - receipts.find(course, LAB, me).time
    assert timedelta(0) <= age < timedelta(minutes=10)
    classes.grade(course, LAB, classes.students(course, LAB, []))
    (standing,) = report.standings(course, LAB)
    assert (standing.student, standing.automatic) == (me, 17.0)
    assert collecting.from_exchange(course, LAB).same == [me]
    shutil.rmtree(home)
