"""An invented class, made of a lab's bank: to rehearse a course, and to measure the grader."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

from autograder import bank
from autograder.bank.base import set_source
from autograder.notebooks import write_whole
from autograder.scoring.base import Lab
from autograder.selftest import hand_in
from minserve.errors import ConfigError

FIRST = ("Ada", "Alan", "Barbara", "Edsger", "Grace", "John", "Leslie", "Niklaus", "Tony", "Radia")
LAST = ("Abel", "Bari", "Cruz", "Diaz", "Eze", "Fox")


def invent(lab: Lab, to: Path, num_students: int) -> int:
    """Write STUDENT/LAB.ipynb and roster.csv; the last on the roster hands in nothing.

    Five in six work honestly: the bank's right, wrong and partial submissions, in turn; the
    others are its hostile ones. Returns how many are on the roster.
    """
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is not empty", "give a new folder")
    rows = import_module(f"autograder.bank.{bank.folder_of(lab.name)}").all_submissions()
    rows = [row for row in rows if row.files()]
    honest = [row for row in rows if not row.name.startswith("hostile")]
    hostile = [row for row in rows if row.name.startswith("hostile")]
    people = ["student_id,last_name,first_name,email"]
    for number in range(num_students):
        name = f"s{number + 1:03}"
        first, last = FIRST[number % len(FIRST)], LAST[number // len(FIRST) % len(LAST)]
        people.append(f"{name},{last},{first},{name}@example.org")
        pool = hostile if number % 6 == 5 else honest
        if number < num_students - 1 or num_students == 1:
            hand_in(pool[number % len(pool)], to / name)
            if pool is honest:
                _explain(lab, to / name / f"{lab.name}.ipynb", first)
    write_whole(to / "roster.csv", "\n".join(people) + "\n")
    return num_students


def _explain(lab: Lab, path: Path, who: str) -> None:
    """Put something to read into the cells that people mark."""
    notebook = json.loads(path.read_text("utf-8"))
    for name in lab.manual:
        set_source(notebook, name, f"{who} explains here, in four sentences, what was wrong.")
    path.write_text(json.dumps(notebook), "utf-8")
