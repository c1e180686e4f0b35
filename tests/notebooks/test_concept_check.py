"""The ten questions as a notebook: it runs as it is, and it ends in a chat with one's own parts."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "lessons" / "concept_check.ipynb"


def test_every_question_has_its_line_and_nothing_is_answered():
    cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, 4).cells}
    for when in ("before", "after"):
        assert [f"    {n}: None," in cells[when] for n in range(2, 11)] == [True] * 9
        assert f'check.concept_check("{when}"' in cells[when]
    assert "progress()" in cells["progress"] and "chat_with_parts(" in cells["serve"]


@pytest.mark.slow
def test_it_runs_as_it_is_and_chats_through_the_reference(tmp_path):
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, 4)
    client = NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=os.environ | {"MINSERVE_HOME": str(tmp_path / "home")})
    cells = {cell.id: cell for cell in book.cells if cell.cell_type == "code"}

    def text(id: str) -> str:
        outputs = cells[id].outputs
        return "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)

    assert "Not yet, still open: 1, 2" in text("before")
    assert "The late fee of Umber Club is 5 EUR." in text("serve")
    assert "decode_loop" in text("serve") and "the reference" in text("serve")
