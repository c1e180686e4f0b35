"""The map of the lessons leads to each of them, and names every part that they build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minserve.scenarios import SCENARIOS

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


def never():
    """Rows of the map's table of what never to do."""
    text = (LESSONS / "README.md").read_text(encoding="utf-8")
    table = text.split("## Eight things never to do")[1].split("\n## ")[0]
    return re.findall(r"^\| (?!never|---)([^|]+) \| ([^|]+) \|$", table, re.M)


def test_all_of_them_are_there():
    assert len(never()) == 8


@pytest.mark.parametrize(("never", "shown"), never())
def test_what_never_to_do_is_shown_by_runs_that_are_there(never, shown):
    places = re.findall(r"lesson (\d), section (\d+)", shown)
    assert places
    for lesson, section in places:
        [source] = [path for path in SOURCES if path.stem.startswith(f"0{lesson}")]
        text = source.read_text(encoding="utf-8")
        found = re.search(rf"^## {section}\. .*?(?=^## \d+\. )", text, re.M | re.S)
        assert found and "```python" in found[0], (lesson, section)
    for name in re.findall(r"`minserve scenario ([\w-]+)`", shown):
        assert name in SCENARIOS
