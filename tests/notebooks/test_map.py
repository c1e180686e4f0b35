"""The map of the lessons leads to each of them, and names every part that they build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LESSONS = Path(__file__).resolve().parents[2] / "lessons"
SOURCES = sorted((LESSONS.parent / "solutions").glob("[0-9][0-9]_*.md"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_map_has_a_row_with_the_title_and_the_parts_of_the_lesson(source):
    text = source.read_text(encoding="utf-8")
    parts = re.findall(r'^part\("(\w+)"', text, re.M)
    title = re.match(r"# Lesson (\d): (.*)", text)
    rows = (LESSONS / "README.md").read_text(encoding="utf-8").splitlines()
    [row] = [row for row in rows if f"({source.stem}.ipynb)" in row]
    assert f"[{title[1]} {title[2]}]" in row
    assert parts and set(re.findall(r"`(\w+)`", row)) == set(parts)
