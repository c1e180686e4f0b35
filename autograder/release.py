"""From the source in solutions/ to what learners get in labs/."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from autograder import notebooks, planting
from autograder.course import Course
from autograder.scoring import overlay
from autograder.scoring.base import Lab, seed_of, variant_of
from minserve.errors import ConfigError

DEFAULT_VARIANT = "a"
MARKERS = ("### BEGIN", "### END", "Mark scheme", "MARK SCHEME", "HIDDEN TESTS")


def build(lab: Lab, variant: str = DEFAULT_VARIANT) -> str:
    """The released notebook as text, made by nbgrader in a throw-away course, and checked."""
    if variant not in lab.variants:
        raise ConfigError(f"{lab.name} has no variant {variant!r}", f"one of {lab.variants}")
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        course = Course.open(folder)
        generate(course, lab, variant)
        text = notebooks.path_in(Path(folder) / "release", lab.name).read_text("utf-8")
    leaks = find_leaks(text, lab, variant)
    if leaks:
        raise ConfigError(f"the release of {lab.name} would leak {leaks[0]!r}", "mend its source")
    return text


def generate(course: Course, lab: Lab, variant: str) -> None:
    answer = course.nbgrader(variant=variant).generate_assignment(lab.name)
    if not answer["success"]:
        lines = (answer.get("error") or answer.get("log") or "").strip().splitlines()
        raise ConfigError(f"nbgrader could not build {lab.name}: {lines[-1] if lines else ''}")


def register(course: Course, lab: Lab) -> None:
    """Make the lab known to the course's gradebook; again only when its source has changed."""
    stamp = course.root / "release" / f"{lab.name}.version"
    source = _digest([notebooks.path_in(notebooks.SOLUTIONS, lab.name)])
    if stamp.exists() and stamp.read_text("ascii") == source:
        return
    generate(course, lab, DEFAULT_VARIANT)
    notebooks.write_whole(stamp, source, 0o600)


def version(lab: Lab) -> str:
    """Of everything that makes a lab's scores: its source, its scoring, an overlay, the harness.

    It is kept with each grade.
    """
    package = notebooks.REPOSITORY / "autograder"
    scoring, short = package / "scoring", lab.name.partition("_")[0]
    own = overlay.path_for(short)
    files = [
        notebooks.path_in(notebooks.SOLUTIONS, lab.name),
        *sorted((scoring / short).rglob("*.py")),
        *([own] if own else ()),
        *(scoring / f"{name}.py" for name in ("base", "stories", "regression")),
        *(package / f"{name}.py" for name in ("child", "grading", "harness", "intake", "sandbox")),
    ]
    return _digest(files)


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def for_student(course: Course, lab: Lab, student: str) -> tuple[str, str]:
    """(variant, notebook text) that belongs to one student."""
    seed = seed_of(course.secret, course.offering, student, lab.name)
    variant = variant_of(lab, seed)
    return variant, build(lab, variant)


def find_leaks(text: str, lab: Lab, variant: str) -> list[str]:
    """What a release must not contain: markers, other faults, solutions, the mark scheme."""
    released = notebooks.parse(text, lab.name)
    sources = {notebooks.cell_id(cell): cell.source for cell in released.cells}
    whole = "\n".join(sources.values())
    leaks = [marker for marker in MARKERS if marker in whole]
    leaks += [f"outputs of {notebooks.cell_id(c)}" for c in released.cells if c.get("outputs")]
    for name, source in notebooks.source_cells(lab.name).items():
        if planting.has_faults(source):
            pieces = planting.replaced(source, variant)
            if not pieces or any(piece in whole for piece in pieces):
                leaks.append(f"the solution of {name}")
        if name in lab.manual and any(
            line.strip() and line in whole for line in source.split("\n")
        ):
            leaks.append(f"the model answer of {name}")
    return leaks
