"""Every lesson runs from top to bottom, open and answered, and says what its stored outputs say."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "solutions").glob("[0-9][0-9]_*.md"))
NOTEBOOKS = [
    pytest.param(ROOT / folder / f"{source.stem}.ipynb", id=f"{folder}/{source.stem}")
    for source in SOURCES
    for folder in ("lessons", "solutions")
]
# An open lesson is the answered one without its answers, so that most of its cells are run there.
RUNS = [
    book
    if book.id.startswith("solutions") or "/01_" in book.id
    else pytest.param(*book.values, id=book.id, marks=pytest.mark.slow)
    for book in NOTEBOOKS
]
MAX_CPU_S = 40.0  # what a lesson may take, with the processor to itself


def read(notebook: Path) -> nbformat.NotebookNode:
    return nbformat.read(notebook, 4)


def code_cells(notebook: Path):
    return [cell for cell in read(notebook).cells if cell.cell_type == "code"]


def text_of(cell) -> str:
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


def test_there_are_lessons():
    assert SOURCES


def test_notebooks_are_what_their_source_says():
    done = subprocess.run(
        [sys.executable, str(ROOT / "lessons" / "build.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_open_lesson_holds_no_line_of_a_solution(source):
    regions = re.findall(
        r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source.read_text(encoding="utf-8"), re.S
    )
    lines = {
        line.strip()
        for region in regions
        for line in region.splitlines()
        if "### STUB" not in line and len(line.strip()) > 15
    }
    assert lines
    cells = "\n".join(cell.source for cell in code_cells(ROOT / f"lessons/{source.stem}.ipynb"))
    assert [line for line in lines if line in cells] == []


@pytest.mark.parametrize("notebook", RUNS)
def test_runs_from_top_to_bottom_with_the_stored_outputs(notebook, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "nbval.plugin", "--nbval", str(notebook), "-q"),
            *("-p", "no:cacheprovider"),
            *("--nbval-sanitize-with", str(Path(__file__).with_name("sanitize.cfg"))),
            *("--nbval-cell-timeout", "120", "--nbval-current-env"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {"MINSERVE_HOME": str(tmp_path / "home"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{notebook.relative_to(ROOT)}: {cpu_s:.1f} s of processor time")
    assert cpu_s < MAX_CPU_S


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_answered_lesson_is_green_and_open_one_says_not_yet(source):
    answered = code_cells(ROOT / f"solutions/{source.stem}.ipynb")
    parts = [cell for cell in answered if re.search(r"^part\(", cell.source, re.M)]
    assert parts
    assert all(": green: all " in text_of(cell) for cell in parts)
    [status] = [c for c in code_cells(ROOT / f"lessons/{source.stem}.ipynb") if c.id == "done"]
    assert text_of(status).count("not yet") == len(parts)
    [status] = [cell for cell in answered if cell.id == "done"]
    assert text_of(status).count("green, version 1 of 1  yours") == len(parts)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_figure_has_words_and_open_exercises_have_no_output(notebook):
    for cell in code_cells(notebook):
        if "lessons" in notebook.parts and "exercise" in cell.metadata.get("tags", []):
            assert cell.outputs == [], cell.id
        for output in cell.outputs:
            data = output.get("data", {})
            assert "image/png" not in data, f"{cell.id}: show figures as a Picture, with its words"
            for image in re.findall(r"<img[^>]*>", "".join(data.get("text/html", ""))):
                words = re.search(r'alt="([^"]*)"', image)
                assert words and len(words[1]) > 30, cell.id


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_cells_have_the_parts_that_every_lesson_has(notebook):
    prose = "\n".join(c.source for c in read(notebook).cells if c.cell_type == "markdown")
    for piece in (
        "You will be able to",
        "The incident",
        "**Predict.**",
        "Common mistakes",
        "Try asking",
        "Check yourself",
        "Further reading",
        "Last reviewed: 20",
    ):
        assert piece in prose, piece


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_lesson_has_a_picture_to_play_with_and_says_what_may_be_reused(source):
    text = source.read_text(encoding="utf-8")
    assert re.search(r"^from minserve\.learn\.widgets[\w.]* import ", text, re.M)
    if source.stem[:2] == "01":
        return  # nothing is shared or reused yet
    for question in ("equivalent are", "valid", "who shares", "order", "cancelled"):
        assert re.search(rf"^\| {question} \| .+\|$", text, re.M), question
