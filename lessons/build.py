"""Builds the notebooks of a lesson from its one source: `python lessons/build.py [03]`.

solutions/03_....md is the source: Markdown, in which a block that begins ```python id=NAME is a
code cell and <!-- cell: NAME --> begins a Markdown cell. From it come

    solutions/03_....ipynb    answered: everything is green
    lessons/03_....ipynb      open: each region BEGIN SOLUTION ... END SOLUTION is replaced by its
                              STUB lines (or taken out), and those cells have no output

Both are executed here, each with an empty workspace, so the other outputs are those of a run.
`--check` only compares the sources of the cells, and executes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```python id=(?P<id>[\w-]+)(?: tags=(?P<tags>[\w,-]+))?$")
MARKDOWN = re.compile(r"^<!-- cell: (?P<id>[\w-]+) -->$")
BEGIN, END, STUB = "### BEGIN SOLUTION", "### END SOLUTION", "### STUB "
TIMEOUT_S = 120


def parse(text: str) -> list[nbformat.NotebookNode]:
    """The cells of a source, in order. Raises `ValueError` for a block that does not end."""
    cells, lines = [], iter(text.splitlines())
    prose: list[str] = []
    prose_id = "title"

    def end_prose() -> None:
        body = "\n".join(prose).strip()
        if body:
            cells.append(nbformat.v4.new_markdown_cell(body, id=prose_id))
        prose.clear()

    for line in lines:
        if match := MARKDOWN.match(line):
            end_prose()
            prose_id = match["id"]
        elif match := CODE.match(line):
            end_prose()
            code = []
            for code_line in lines:
                if code_line == "```":
                    break
                code.append(code_line)
            else:
                raise ValueError(f"cell {match['id']} does not end")
            cell = nbformat.v4.new_code_cell("\n".join(code), id=match["id"])
            if match["tags"]:
                cell.metadata["tags"] = match["tags"].split(",")
            cells.append(cell)
            prose_id = f"after-{match['id']}"
        else:
            prose.append(line)
    end_prose()
    ids = [cell.id for cell in cells]
    twice = {id for id in ids if ids.count(id) > 1}
    if twice:
        raise ValueError(f"cell ids {sorted(twice)} are used twice")
    return cells


def answered(source: str) -> str:
    """A cell's text with its solution and without the marks."""
    marks = (BEGIN, END, STUB)
    return "\n".join(line for line in source.splitlines() if not line.strip().startswith(marks))


def opened(source: str) -> str:
    """A cell's text with each solution region replaced by its stub lines."""
    result, inside = [], False
    for line in source.splitlines():
        text = line.strip()
        if text == BEGIN:
            inside = True
        elif text == END:
            inside = False
        elif inside:
            if text.startswith(STUB):
                indent = line[: len(line) - len(line.lstrip())]
                result.append(indent + text.removeprefix(STUB))
        else:
            result.append(line)
    if inside:
        raise ValueError(f"a solution region does not end: {source[:60]!r}")
    return "\n".join(result)


def notebook(source: Path, is_open: bool) -> nbformat.NotebookNode:
    """The notebook without outputs."""
    cells = parse(source.read_text(encoding="utf-8"))
    for cell in cells:
        if cell.cell_type != "code":
            continue
        is_exercise = BEGIN in cell.source
        cell.source = (opened if is_open else answered)(cell.source)
        if is_exercise:
            tags = [*cell.metadata.get("tags", []), "exercise"]
            cell.metadata["tags"] = [*tags, "nbval-ignore-output"] if is_open else tags
    return nbformat.v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
    )


def execute(book: nbformat.NotebookNode) -> None:
    """Run all cells with an empty workspace. Raises `nbclient.exceptions.CellExecutionError`."""
    from nbclient import NotebookClient

    before = os.environ.get("MINSERVE_HOME")
    with tempfile.TemporaryDirectory() as home:
        os.environ["MINSERVE_HOME"] = home
        try:
            NotebookClient(
                book, timeout=TIMEOUT_S, resources={"metadata": {"path": home}}
            ).execute()
        finally:
            os.environ.pop("MINSERVE_HOME")
            if before is not None:
                os.environ["MINSERVE_HOME"] = before


def tidy(book: nbformat.NotebookNode, is_open: bool) -> None:
    """Drop what differs from run to run, and the outputs of open exercises."""
    book.metadata.pop("widgets", None)
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        if is_open and "exercise" in cell.metadata.get("tags", []):
            cell.outputs, cell.execution_count = [], None
        cell.outputs = [o for o in cell.outputs if not o.get("text", "").startswith("... compil")]
        for output in cell.outputs:
            # The still picture beside it stands in until the cell is run.
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
            if "transient" in output:
                del output["transient"]


def sources(book: nbformat.NotebookNode) -> list[tuple]:
    """What must agree between a notebook and its source."""
    return [(c.id, c.cell_type, c.source, c.metadata.get("tags", [])) for c in book.cells]


def targets(name: str) -> list[tuple[Path, Path, bool]]:
    """(source, notebook, is open) of every notebook whose lesson's name begins with `name`."""
    return [
        (source, ROOT / folder / f"{source.stem}.ipynb", folder == "lessons")
        for source in sorted((ROOT / "solutions").glob(f"{name}*.md"))
        if re.match(r"\d\d_", source.name)
        for folder in ("solutions", "lessons")
    ]


def main() -> int:
    """Build, or compare with `--check`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lesson", nargs="?", default="", help="how the lesson's name begins: 03")
    parser.add_argument("--check", action="store_true", help="compare; write nothing")
    options = parser.parse_args()
    status = 0
    for source, target, is_open in targets(options.lesson):
        book = notebook(source, is_open)
        if options.check:
            found = sources(nbformat.read(target, 4)) if target.exists() else None
            if found != sources(book):
                print(f"{target.relative_to(ROOT)} differs from its source: run lessons/build.py")
                status = 1
            continue
        execute(book)
        tidy(book, is_open)
        nbformat.validate(book)
        target.parent.mkdir(exist_ok=True)
        nbformat.write(book, target)
        print(f"{target.relative_to(ROOT)}: {len(book.cells)} cells")
    return status


if __name__ == "__main__":
    sys.exit(main())
