"""Builds the documentation site from the whole repository: `make docs`.

The source folder is the repository's root, so that links between pages, lessons and files are the
same on the site as in a checkout. Notebooks are shown as they were run for the repository.
"""

from __future__ import annotations

import re

# NOTE: autodoc imports modules with TYPE_CHECKING set, which FastAPI's models do not bear: first.
import fastapi  # noqa: F401

from minserve import __version__

project, author, copyright = "minserve", "the minserve authors", "the minserve authors"  # noqa: A001
release = __version__
root_doc = "docs/index"
extensions = [
    "myst_nb",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    "lessons/*.ipynb",
    "lessons/README.md",
    "labs/*/*.ipynb",
    "docs/api/**.rst",
]
exclude_patterns = ["**.ipynb_checkpoints", "docs/_build/**"]

html_theme = "furo"
html_title = f"minserve {release}"

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

apidoc_modules = [
    {
        "path": "../minserve",
        "exclude_patterns": [
            "**/cli/**",
            "**/runners/**",
            "**/__main__.py",
            "**/experiments/**",
            "**/conformance/*",
            "**/benchmarks/**",
        ],
        "destination": "docs/api",
        "max_depth": 2,
        "separate_modules": True,
        "module_first": True,
    }
]
default_role = "code"
suppress_warnings = ["ref.python"]  # a short name in an annotation may be two classes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_mock_imports = ["triton"]  # only there where a GPU is


ARRANGED = re.compile(r"\s{2,}\S|.*\S {3,}\S")  # indented, or in columns
MARKED = re.compile(r"\s*(:|\.\. |[-*] |\d+\. )")  # a field, a directive, a list


def keep_what_was_arranged(app, what, name, obj, options, lines):
    """A paragraph of a docstring that is a drawing, a table or code keeps its lines."""
    shown = []
    for paragraph in "\n".join(lines).split("\n\n"):
        inside = paragraph.split("\n")
        if any(map(ARRANGED.match, inside)) and not any(map(MARKED.match, inside)):
            shown += [".. code-block:: text", "", *(f"    {line}" for line in inside), ""]
        else:
            shown += [*inside, ""]
    lines[:] = shown


def setup(app):
    """Sphinx calls this once."""
    app.connect("autodoc-process-docstring", keep_what_was_arranged, priority=900)
