"""A course: one folder with the gradebook, everything handed in, and everything that came of it.

COURSE/             0700; chosen by --course, MINSERVE_COURSE, or ./gradebook
  gradebook.db      nbgrader's
  secret, offering  all hidden values derive from them; keep them, or regrades differ
  course.toml       due times, late rules, extensions, groups: see rules.py; yours to write
  submitted/        STUDENT/LAB/LAB.ipynb: what counts; never changed, only replaced by a later one
  receipts/         LAB/ID.json: when the course received it, and the digest of what it received
  earlier/          LAB/ID/: what a later submission replaced
  quarantine/       LAB/STUDENT/: what claims to be somebody's and is owned by another
  autograded/ feedback/ release/      nbgrader's
  results/          LAB/ID.json: status, scores and words, one per submission
  backups/          the gradebook before each run, the last ones
  work/             one little course per job of a run; empty between runs
  nbgrader_config.py                  `cd COURSE && nbgrader formgrader` just works
"""

from __future__ import annotations

import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config import Config

from autograder import rules
from autograder.notebooks import REPOSITORY, SOLUTIONS, write_whole
from minserve.errors import ConfigError

DATABASE_HINT = (
    "if another program has it open, a formgrader perhaps, close that and try again; "
    "backups/ has copies of before each run"
)
NBGRADER_CONFIG = """\
# Written by `python -m autograder`; changes are lost.
import sys

sys.path.insert(0, {repository!r})
from autograder.course import Course

c = get_config()  # noqa: F821
c.merge(Course.open({root!r}).config())
"""


class Course:
    """An open course folder."""

    def __init__(self, root: Path, offering: str) -> None:
        self.root, self.offering = root, offering

    @classmethod
    def open(cls, root: str | os.PathLike[str] | None = None) -> Course:
        """Open a course folder, or make one. Raises `ConfigError` if it cannot be used."""
        path = Path(root or os.environ.get("MINSERVE_COURSE") or "gradebook").absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)  # an existing one may be readable: it holds grades
            for name in ("submitted", "results", "exchange"):
                (path / name).mkdir(exist_ok=True)
            if not (path / "secret").exists():
                if any((path / "results").glob("*/*.json")):
                    raise ConfigError(
                        f"{path / 'secret'} is gone, and scores derive from it",
                        "put it back from a copy, or begin a new course folder",
                    )
                write_whole(path / "secret", secrets.token_hex(32) + "\n", 0o600)
                offering = os.environ.get("MINSERVE_OFFERING", "default")
                write_whole(path / "offering", offering + "\n", 0o600)
                write_whole(path / ".gitignore", "*\n")
            config = NBGRADER_CONFIG.format(repository=str(REPOSITORY), root=str(path))
            write_whole(path / "nbgrader_config.py", config, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot use {path} as the course folder: {error.strerror}",
                "choose another with --course or MINSERVE_COURSE",
            ) from None
        # NOTE: nbgrader starts `alembic` by name.
        scripts = str(Path(sys.executable).parent)
        if scripts not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = scripts + os.pathsep + os.environ["PATH"]
        # NOTE: nbgrader 0.9.6 makes SQLAlchemy 2 warn at every query; nothing is wrong.
        warnings.filterwarnings("ignore", category=SAWarning)
        return cls(path, (path / "offering").read_text("utf-8").strip())

    @property
    def secret(self) -> bytes:
        """Raises `ConfigError` if it is empty: then everybody could know every hidden value."""
        secret = (self.root / "secret").read_text("ascii").strip().encode()
        if not secret:
            raise ConfigError(f"{self.root / 'secret'} is empty", "put it back from a copy")
        return secret

    def rules(self) -> rules.Rules:
        """What the course's `course.toml` says, read anew."""
        return rules.read(self.root)

    def config(self, submitted: str = "submitted", variant: str = "a") -> Config:
        """nbgrader's configuration: our own steps in place of the ones that fail silently."""
        from nbgrader import preprocessors as stock

        from autograder import preprocessors as ours

        c = Config()
        c.CourseDirectory.root = str(self.root)
        c.CourseDirectory.course_id = "minserve"
        c.CourseDirectory.source_directory = str(SOLUTIONS)
        c.CourseDirectory.submitted_directory = submitted
        c.Exchange.root = self.rules().exchange or str(self.root / "exchange")
        c.CourseDirectory.db_url = f"sqlite:///{self.root / 'gradebook.db'}"
        c.GenerateAssignment.preprocessors = [
            stock.IncludeHeaderFooter,
            stock.InstantiateTests,
            stock.LockCells,
            ours.FaultPlanter,
            stock.ClearOutput,
            stock.CheckCellMetadata,
            stock.ComputeChecksums,
            stock.SaveCells,
            stock.ClearHiddenTests,
            stock.ClearMarkScheme,
            stock.ComputeChecksums,
            stock.CheckCellMetadata,
        ]
        # No `Execute`: nothing of the learner's runs in a kernel of the instructor's.
        c.Autograde.sanitize_preprocessors = [
            stock.ClearOutput,
            ours.Transplant,
            stock.OverwriteKernelspec,
            stock.OverwriteCells,
            stock.CheckCellMetadata,
        ]
        c.Autograde.autograde_preprocessors = [
            ours.WriteScores,
            ours.Clean,
            stock.SaveAutoGrades,
            stock.AssignLatePenalties,
            ours.Plain,  # last: nbgrader tells an unwritten answer by its text
            stock.CheckCellMetadata,
        ]
        c.OverwriteCells.add_missing_cells = True
        c.FaultPlanter.variant = variant
        c.WriteScores.course = str(self.root)
        c.GenerateFeedback.preprocessors = [
            stock.GetGrades,
            ours.Clean,
            ours.Redact,
            "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
        ]
        return c

    def nbgrader(self, **settings: str) -> NbGraderAPI:
        """nbgrader's own interface to this course."""
        config = self.config(**settings)
        return NbGraderAPI(CourseDirectory(config=config), config=config)

    @contextmanager
    def gradebook(self) -> Iterator[Gradebook]:
        """nbgrader's gradebook. Raises `ConfigError` if it is held by another or no database."""
        path = self.root / "gradebook.db"
        try:
            with Gradebook(f"sqlite:///{path}", "minserve") as book:
                yield book
        except SQLAlchemyError as error:
            why = str(getattr(error, "orig", error)).partition("\n")[0]
            raise ConfigError(f"cannot use {path}: {why}", DATABASE_HINT) from None
