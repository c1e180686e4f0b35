"""Where the Northstar data lies: in the repository, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

from minserve.errors import DataNotFound

PACKAGE = Path(__file__).resolve().parent.parent


def data_dir(name: str = "northstar") -> Path:
    """The folder ``data/<name>``, from the repository if we run in one, else from the package.

    Raises:
        DataNotFound: Neither place has it.
    """
    for base in (PACKAGE.parent / "data", PACKAGE / "_data"):
        if (base / name).is_dir():
            return base / name
    raise DataNotFound(
        f"the data folder {name!r} is neither in {PACKAGE.parent / 'data'} nor in the package",
        hint="run from a full clone, or install minserve again",
    )
