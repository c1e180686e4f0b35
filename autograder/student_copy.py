"""The repository that students get: what is listed here, and nothing else.

Not in it: solutions, scoring, the bank, instructors' notes, tests that need any of them, and the
history. It is checked before anybody sees it: a copy in which a piece of a solution or of a mark
scheme is found is refused.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from autograder import bank, notebooks, planting, release, scoring
from autograder.notebooks import REPOSITORY
from autograder.scoring.base import Lab
from minserve.errors import ConfigError

FILES = (
    ".gitignore",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
)
FOLDERS = ("data", "docs", "lessons", "minserve", "tests")  # and labs/, of which only notebooks
LEFT_OUT = (
    "docs/instructors",
    "docs/instructors.md",
    "docs/conf.py",
    "docs/api",
    "docs/index.md",  # the site's contents; without conf.py there is no site
    "lessons/build.py",
    "tests/grading",
    "tests/test_docs.py",
    "tests/test_packaging.py",
)
OUR_SECTION = re.compile(r"^## (?:For instructors|Grades|Grading)\n.*?(?=^## |\Z)", re.M | re.S)
OURS = re.compile(r"\bautograder\b|\bsolutions\b")
IMPORTED = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
SHORTEST_PIECE = 60  # letters of a solution that may not be found again; shorter ones may be chance


def make(to: Path) -> int:
    """Write the copy into a folder that is new or empty; returns the number of files."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty", "give a new folder")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".student-copy-") as folder:
        made = Path(folder) / "copy"
        paths = list(_chosen())
        for path in paths:
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / path, target)
        _rewrite(made)
        if found := leaks(made):
            raise ConfigError(f"the copy would leak {found[0]}", "mend it, then try again")
        if to.exists():
            to.rmdir()
        made.rename(to)
    return len(paths)


def _chosen() -> Iterator[Path]:
    yield from (Path(name) for name in FILES)
    for lab in scoring.LABS.values():
        path = notebooks.path_in(Path("labs"), lab.name)
        if not (REPOSITORY / path).exists():
            raise ConfigError(
                f"{lab.name} has not been built", f"`python -m autograder release {lab.name}`"
            )
        yield path
    tests = []
    for path in _tracked():
        if path.parts[0] not in FOLDERS or any(path.is_relative_to(name) for name in LEFT_OUT):
            continue
        if path.parts[0] == "tests" and path.suffix == ".py":
            tests.append(path)
        else:
            yield path
    yield from _without_ours(tests)


def _tracked() -> list[Path]:
    """What the repository keeps; outside of git, what lies there but for caches."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", *FOLDERS]
    try:
        told = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        paths = [Path(name) for name in told.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = (path for name in FOLDERS for path in (REPOSITORY / name).rglob("*"))
        paths = [path.relative_to(REPOSITORY) for path in found]
    return sorted(
        path for path in paths if (REPOSITORY / path).is_file() and "__pycache__" not in path.parts
    )


def _without_ours(tests: list[Path]) -> list[Path]:
    """The tests that need nothing of ours, neither themselves nor through their helpers."""
    texts = {path: (REPOSITORY / path).read_text("utf-8") for path in tests}
    ours = {path for path, text in texts.items() if OURS.search(text)}
    while True:
        helpers = {path.stem for path in ours}
        needing = {
            path
            for path, text in texts.items()
            if {name.rpartition(".")[2] for name in IMPORTED.findall(text)} & helpers
        }
        if needing <= ours:
            return [path for path in tests if path not in ours]
        ours |= needing


def _rewrite(copy: Path) -> None:
    """Take out what is for instructors, and what leads to files that are not there."""
    readme = copy / "README.md"
    text = readme.read_text("utf-8")
    text = re.sub(r"(?m)^(solutions|autograder)/.{0,35}", lambda m: " " * len(m[0]), text)
    readme.write_text(text, "utf-8")
    makefile = copy / "Makefile"  # what builds the site is not there
    makefile.write_text(re.sub(r"(?ms)^docs:.*?\n\n", "", makefile.read_text("utf-8")), "utf-8")
    for path in copy.rglob("*.md"):
        text = OUR_SECTION.sub("", path.read_text("utf-8")).rstrip() + "\n"
        path.write_text(LINK.sub(lambda m, at=path.parent: _link(m, at), text), "utf-8")


def _link(match: re.Match[str], at: Path) -> str:
    is_there = "://" in match[2] or match[2].startswith("mailto:") or (at / match[2]).exists()
    return match[0] if is_there else match[1]


def leaks(copy: Path) -> list[str]:
    """What of ours is in a copy: "FILE: WHAT" each."""
    found = [
        f"{path.relative_to(copy)}: it is ours"
        for path in copy.rglob("*")
        if path.name in ("autograder", "solutions", "instructors", "instructors.md", ".git")
    ]
    pieces = [piece for lab in scoring.LABS.values() for piece in secrets_of(lab)]
    for path in sorted(copy.rglob("*")):
        if path.suffix not in (".py", ".md", ".ipynb", ".txt", ".toml", ".json"):
            continue
        text = path.read_text("utf-8")
        if path.suffix == ".ipynb":
            cells = notebooks.parse(text, path.name).cells
            text = "\n".join(cell.source for cell in cells)
        text = _plain(text)
        found += [f"{path.relative_to(copy)}: {what}" for what, piece in pieces if piece in text]
    return found


def secrets_of(lab: Lab) -> list[tuple[str, str]]:
    """(what it is, text) of everything that gives a lab away.

    NOTE: what the engine itself does in the same words is public: students have it anyway, and a
    lab is graded on a class that the reference cannot stand in for.
    """
    public = _public()
    return [(what, piece) for what, piece in _pieces(lab) if piece not in public]


@lru_cache
def _public() -> str:
    files = sorted((REPOSITORY / "minserve").rglob("*.py"))
    return "\n".join(_plain(path.read_text("utf-8")) for path in files)


def _pieces(lab: Lab) -> Iterator[tuple[str, str]]:
    for name, source in notebooks.source_cells(lab.name).items():
        if name in lab.manual:
            yield from ((f"the model answer of {name}", _plain(line)) for line in _long(source))
        elif planting.has_faults(source):
            handed_out = planting.plant(source, release.DEFAULT_VARIANT)
            for piece in planting.replaced(source, release.DEFAULT_VARIANT):
                yield from _piece(name, piece)
            for variant in lab.variants:  # each is faulty at other places
                for piece in planting.replaced(source, variant):
                    if piece not in handed_out:
                        yield from _piece(name, piece)
    for name, source in bank.right_sources(lab.name).items():
        yield f"another solution, {name}", _plain(source)


def _piece(name: str, text: str) -> Iterator[tuple[str, str]]:
    if len(_plain(text)) >= SHORTEST_PIECE:
        yield f"the solution of {name}", _plain(text)


def _long(source: str) -> list[str]:
    return [line for line in source.split("\n") if len(_plain(line)) >= SHORTEST_PIECE]


def _plain(text: str) -> str:
    """Without what indentation and line ends change."""
    return " ".join(text.split())
