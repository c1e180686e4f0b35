"""Submissions with known scores, one folder per lab: right, wrong and hostile ones."""

from __future__ import annotations

from pathlib import Path


def folder_of(lab: str) -> str:
    """The short name of a lab, which is the name of its folders."""
    return lab.partition("_")[0]


def right_sources(lab: str) -> dict[str, str]:
    """name -> source of the other right ways, which stand in files of their own."""
    folder = Path(__file__).parent / folder_of(lab)
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("right_*.py"))}
