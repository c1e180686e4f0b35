"""What a notebook imports from minserve is there: a name that moves must move in notebooks too."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(
    path
    for folder in ("lessons", "labs", "solutions")
    for path in (ROOT / folder).rglob("*.ipynb")
    if ".ipynb_checkpoints" not in path.parts
)


def nodes(notebook: Path):
    """The syntax of its code cells; cells for the shell, or unfinished on purpose, are left out."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            try:
                yield from ast.walk(ast.parse("".join(cell["source"])))
            except SyntaxError:
                continue


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_imported_from_minserve_are_there(notebook):
    modules = {}  # as they are called in the notebook
    for node in nodes(notebook):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "minserve":
            for alias in node.names:
                assert is_there(node.module, alias.name), f"{node.module}.{alias.name}"
                value = getattr(importlib.import_module(node.module), alias.name, None)
                if isinstance(value, ModuleType):
                    modules[alias.asname or alias.name] = value
    for node in nodes(notebook):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), f"{module}: {node.attr}"
