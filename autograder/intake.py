"""From what was handed in to what is graded: one notebook, nothing else, nothing trusted."""

from __future__ import annotations

import copy
import json
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat

from autograder import notebooks
from autograder.scoring.base import Lab

SIZE_LIMIT = 32 * 2**20  # bytes of a notebook, its outputs included
CELL_LIMIT = 1_000
PIECE_LIMIT = 10**6  # objects and lists in a file: each takes a hundred bytes of memory
TEXT_LIMIT = 2**20  # characters of all cells together
MARKS = {"grade": (bool,), "solution": (bool,), "points": (int, float)}  # beside grade_id
NOTES = "minserve_notes"  # where notes for the instructor travel in a notebook's metadata


@dataclass(frozen=True)
class Problem(Exception):
    """Why nothing can be graded: a status and one clear line."""

    status: str
    line: str

    def __str__(self) -> str:
        return self.line


def take(folder: Path, lab: Lab) -> nbformat.NotebookNode:
    """The notebook in a learner's folder, without outputs. Raises `Problem`; changes nothing."""
    path = folder / f"{lab.name}.ipynb"
    for part in (folder.parent, folder, path):
        if part.is_symlink():
            raise Problem("unreadable", f"{part.name} is a symbolic link; links are not followed")
    if not path.exists():
        others = sorted(other.name for other in folder.glob("*.ipynb")) if folder.is_dir() else []
        if others:
            found = ", ".join(notebooks.printable(name) for name in others[:3])
            raise Problem(
                "missing", f"expected {path.name}, found {found}: rename it and grade again"
            )
        raise Problem("missing", "nothing was handed in")
    notebook = read_untrusted(path)
    known = known_cells(lab)
    if not any(
        notebooks.cell_id(cell) in known and cell.metadata.get("nbgrader")
        for cell in notebook.cells
    ):
        raise Problem(
            "unreadable",
            "no cell carries this lab's grading marks: another notebook, or one saved by a tool "
            "that removed them; copy the answers into a fresh copy of the lab",
        )
    return notebook


def read_bytes(path: Path, below: Path | None = None) -> bytes:
    """A regular file of bounded size, whatever stands there. Raises `Problem`.

    No link is followed on the way from the folder `below`, else the file's own: whoever owns a
    folder in between could point it, even while it is read, at a solution that only we can read.
    """
    try:
        with os.fdopen(_open(path, below or path.parent), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Problem("unreadable", f"{path.name} is no regular file")
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise Problem("unreadable", f"cannot read {path.name}: {error.strerror}") from None
    if len(data) > SIZE_LIMIT:
        raise Problem("unreadable", f"{path.name} is larger than {SIZE_LIMIT // 2**20} MiB")
    return data


def _open(path: Path, below: Path) -> int:
    *folders, name = path.relative_to(below).parts
    at = os.open(below, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def read_untrusted(path: Path) -> nbformat.NotebookNode:
    """Parse a file that may be anything; only sources, types and nbgrader's marks are kept."""
    data = read_bytes(path)
    if data.count(b"{") + data.count(b"[") > PIECE_LIMIT:
        raise Problem("unreadable", f"{path.name} has more pieces than any notebook: clear outputs")
    try:
        raw = json.loads(data.decode("utf-8"))
        if raw["nbformat"] != 4:
            raise ValueError("another format")
        if len(raw["cells"]) > CELL_LIMIT:
            raise Problem("unreadable", f"{path.name} has more than {CELL_LIMIT} cells")
        cells = [plain_cell(cell) for cell in raw["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Problem(
            "unreadable",
            f"{path.name} is no readable notebook ({type(error).__name__}): ask for it again",
        ) from None
    if sum(len(cell.source) for cell in cells) > TEXT_LIMIT:
        raise Problem("unreadable", f"the cells of {path.name} hold more than {TEXT_LIMIT} letters")
    return nbformat.v4.new_notebook(cells=cells)


def plain_cell(cell: dict[str, Any]) -> nbformat.NotebookNode:
    """A cell's type, source and marks: no outputs, no attachments, no half characters."""
    source = cell["source"]
    if type(source) is list:
        source = "".join(source)
    if type(source) is not str:
        raise TypeError("a cell's source is no text")
    make = {
        "code": nbformat.v4.new_code_cell,
        "markdown": nbformat.v4.new_markdown_cell,
        "raw": nbformat.v4.new_raw_cell,
    }[cell["cell_type"]]
    made = make(whole(source))
    marks = cell.get("metadata", {}).get("nbgrader")
    if isinstance(marks, dict) and type(marks.get("grade_id")) is str:
        kept = {"grade_id": whole(marks["grade_id"])}
        for key, kinds in MARKS.items():  # what is of another kind is none: then it was changed
            kept[key] = marks.get(key) if type(marks.get(key)) in kinds else None
        made.metadata["nbgrader"] = nbformat.from_dict(kept)
    return made


def whole(text: str) -> str:
    """Without half characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


@lru_cache
def _template(lab_name: str) -> nbformat.NotebookNode:
    return notebooks.read(notebooks.path_in(notebooks.LABS, lab_name))


def template(lab: Lab) -> nbformat.NotebookNode:
    """A copy of the notebook that learners were given."""
    return copy.deepcopy(_template(lab.name))


def known_cells(lab: Lab) -> dict[str, nbformat.NotebookNode]:
    """The cells of the released notebook that carry nbgrader's marks, by id."""
    return {
        notebooks.cell_id(cell): cell for cell in template(lab).cells if "nbgrader" in cell.metadata
    }


def transplant(notebook: nbformat.NotebookNode, lab: Lab) -> nbformat.NotebookNode:
    """The released notebook with the learner's answers, and their own cells where they stood.

    Locked cells, marks and points are the release's. Of an answer that stands there twice the
    last counts. What was mended is noted for the instructor in the notebook's metadata.
    """
    known, notes = known_cells(lab), []
    answers: dict[str, nbformat.NotebookNode] = {}
    own: dict[str, list[nbformat.NotebookNode]] = {"": []}
    given_text = {cell.source for cell in template(lab).cells if "nbgrader" not in cell.metadata}
    place = ""
    for cell in notebook.cells:
        name = notebooks.cell_id(cell) if cell.metadata.get("nbgrader") else ""
        if name not in known:
            if cell.source not in given_text:  # the release's own text comes from the release
                own[place].append(cell)
            continue
        if name in answers:
            notes.append(f"cell {name} stands there more than once: the last one counts")
            if cell.cell_type == "code":
                own[place].append(answers[name])
        if altered_marks(cell, known[name]):
            notes.append(f"tampered: the grading marks of cell {name} were changed; restored")
        answers[name], place = cell, name
        own.setdefault(place, [])
    made = template(lab)
    cells = list(own[""])
    for cell in made.cells:
        name = notebooks.cell_id(cell) if "nbgrader" in cell.metadata else ""
        cells.append(cell)
        if not name:
            continue
        is_answer = cell.metadata.nbgrader.solution
        if name not in answers:
            notes.append(f"cell {name} was deleted; restored")
            if is_answer and cell.cell_type == "code":
                cell.source = "# this cell was not handed in"
        elif is_answer:
            cell.source = answers[name].source
        elif cell.source.strip() != answers[name].source.strip():
            notes.append(f"cell {name} was edited; restored")
        cells += own.get(name, [])
    given = {id(cell) for cell in made.cells}
    for number, cell in enumerate(cells):
        if id(cell) not in given:
            cell.id = f"own-{number}"
            cell.metadata = nbformat.NotebookNode()
    made.cells = cells
    made.metadata[NOTES] = notes
    return made


def altered_marks(cell: nbformat.NotebookNode, given: nbformat.NotebookNode) -> bool:
    ours, theirs = given.metadata.nbgrader, cell.metadata.nbgrader
    return any(theirs.get(key) != ours.get(key) for key in ("grade", "solution", "points"))
