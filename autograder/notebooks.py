"""Reading and writing notebooks: where they lie, and what their cells say."""

from __future__ import annotations

import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat

from minserve.errors import DataNotFound

REPOSITORY = Path(__file__).resolve().parents[1]
SOLUTIONS = REPOSITORY / "solutions"
LABS = REPOSITORY / "labs"


def path_in(folder: Path, lab: str) -> Path:
    return folder / lab / f"{lab}.ipynb"


def read(path: Path) -> nbformat.NotebookNode:
    """A version 4 notebook. Raises `DataNotFound` if it is absent or is none."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataNotFound(f"cannot read {path.name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataNotFound(f"{path.name} is no text") from None
    return parse(text, path.name)


def parse(text: str, name: str) -> nbformat.NotebookNode:
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises many kinds for what is no notebook
        raise DataNotFound(
            f"{name} is no readable notebook ({type(error).__name__})",
            "open it in JupyterLab and save it again, or hand in an earlier copy",
        ) from None
    return notebook


def cell_id(cell: dict[str, Any]) -> str:
    """The grade id of a cell, or its own id."""
    marks = cell.get("metadata", {}).get("nbgrader") or {}
    return marks.get("grade_id") or cell.get("id", "")


@lru_cache
def source_cells(lab: str) -> dict[str, str]:
    """id -> source of the cells of a lab's source notebook in solutions/."""
    return {cell_id(cell): cell.source for cell in read(path_in(SOLUTIONS, lab)).cells}


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """The same bytes for the same notebook, replaced whole."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text)


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file at once, so that a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_record(path: Path, hint: str) -> Any:
    """What a JSON file of the course's own says. Raises `DataNotFound` with the hint."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataNotFound(f"cannot read {path} ({type(error).__name__})", hint) from None


def printable(text: str, limit: int = 80) -> str:
    """Foreign text for a one-line message."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])
