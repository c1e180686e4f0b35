"""The documentation: every link leads somewhere, and the site builds without a warning."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "lessons/*.md", "lessons/*.ipynb", "labs/*/*.ipynb")
    for path in ROOT.glob(pattern)
)


def text_of(path):
    if path.suffix == ".md":
        return FENCE.sub("", path.read_text("utf-8"))
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def anchors_of(path):
    """The names that GitHub and the site give to a page's headings."""
    headings = re.findall(r"^#+ +(.+?)\s*$", text_of(path), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page):
    broken = []
    for target in (a or b for a, b in LINK.findall(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue  # another site's
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        is_there = path.is_relative_to(ROOT) and path.exists()
        has_anchors = is_there and path.suffix in (".md", ".ipynb")
        if not is_there or (anchor and has_anchors and anchor not in anchors_of(path)):
            broken.append(target)
    assert broken == []


def test_a_broken_link_is_noticed(tmp_path):
    assert LINK.findall("see [jobs](jobs.md#no) and [x](y.md)") == [
        ("jobs.md#no", ""),
        ("y.md", ""),
    ]
    page = tmp_path / "a.md"
    page.write_text("# One `two` three?\n\n```\n# not a heading\n```\n")
    assert anchors_of(page) == {"one-two-three"}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo", reason='the site is built with pip install -e ".[docs]"')
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2"]
    command += ["-c", "docs", "-b", "html", "-d", str(tmp_path / "doctrees"), "."]
    done = subprocess.run(
        [*command, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    index = (tmp_path / "site" / "docs" / "index.html").read_text("utf-8")
    assert "lessons/03_kv_cache_memory" in index
    assert (tmp_path / "site" / "docs" / "api" / "minserve.engine.html").exists()


def techniques():
    """Rows of the table of techniques: (module, answers to the five questions)."""
    page = (ROOT / "docs" / "reuse.md").read_text("utf-8")
    _, table = page.split("## Every technique, the same five questions")
    rows = re.findall(r"^\| [^|]+\(`([^`]+)`\) \|(.+)\|$", table.split("\n## ")[0], re.M)
    return {module: [cell.strip() for cell in cells.split("|")] for module, cells in rows}


@pytest.mark.parametrize("module", techniques())
def test_every_technique_states_what_is_reused_how_long_by_whom_in_what_order_and_if_cancelled(
    module,
):
    answers = techniques()[module]
    assert len(answers) == 5 and all(answers)
    said = ast.get_docstring(ast.parse((ROOT / "minserve" / module).read_text("utf-8")))
    for word in ("equivalent inputs:", "valid", "scope", "order", "cancelled"):
        assert word in said.lower(), word


def test_no_technique_is_left_out():
    assert {Path(module).stem for module in techniques()} >= {
        *("compatibility", "tables", "prefix", "speculative", "response", "key", "semantic"),
        *("flight", "cascade", "hedging", "intake", "outcomes"),
    }
