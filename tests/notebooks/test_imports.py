"""What a notebook imports from minserve is there: a name that moves must move in notebooks too."""

from __future__ import annotations

import ast
import importlib
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


def imported(module: str, name: str) -> object:
    """What `from module import name` gives. Raises if there is no such thing."""
    package = importlib.import_module(module)
    if not hasattr(package, name):
        importlib.import_module(f"{module}.{name}")
    return getattr(package, name)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_imported_from_minserve_are_there(notebook):
    modules = {}  # as they are called in the notebook
    for node in nodes(notebook):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "minserve":
            for alias in node.names:
                value = imported(node.module, alias.name)
                if isinstance(value, ModuleType):
                    modules[alias.asname or alias.name] = value
    for node in nodes(notebook):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            assert module is None or hasattr(module, node.attr), f"{module}: {node.attr}"
