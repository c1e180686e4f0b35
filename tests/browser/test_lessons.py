"""The lessons in JupyterLab, as a learner opens them: all cells run, and the widgets move."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.ipynb"))
ARTIFACTS = ROOT / "artifacts"
READY_S, RUN_S = 240, 400  # generous: CI may be busy
WIDGET = re.compile(r"^\w*(calculator|explorer|slider)\(", re.M)
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    """A JupyterLab over copies of the lessons, with folders of its own; yields its address."""
    tmp_path = tmp_path_factory.mktemp("jupyter")
    root = tmp_path / "Kurs Élève"
    root.mkdir()
    for lesson in LESSONS:
        (root / lesson.name).write_bytes(lesson.read_bytes())
    for name, settings in {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},  # draw what is out of view too
    }.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
        "MINSERVE_HOME": str(tmp_path / "minserve home"),
    }
    log = (tmp_path / "jupyter.log").open("w")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            *(f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", "--IdentityProvider.token="),
            *(f"--ServerApp.root_dir={root}", "--ServerApp.port_retries=0"),
        ],
        env=env,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _await(f"{address}/api/status", server, tmp_path / "jupyter.log")
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _await(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).read()
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


@pytest.fixture
def page(require_debian):
    """A page in Debian's chromium."""
    chromium = require_debian("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        yield page
        browser.close()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_opens_runs_and_its_widgets_move(jupyter, page, lesson):
    page.goto(f"{jupyter}/lab/tree/{lesson.name}?reset")
    # NOTE: the status bar says idle too early, and Run All then does nothing; this button does not.
    idle = page.get_by_role("button", name="Python 3 (ipykernel) | Idle")
    idle.wait_for(timeout=READY_S * 1000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('[data-command="runmenu:run-all"]').click()
    # NOTE: a widget's message waits in the kernel behind every cell that is queued.
    _await_end(page)

    book = page.locator(".jp-Notebook").first
    text = book.inner_text()
    assert "Traceback" not in text
    assert "not yet: there is nothing to check so far" in text  # the starters are untouched
    told = page.locator(".jp-RenderedText[data-mime-type*=stderr]").all_inner_texts()
    assert [line for line in told if not line.startswith("... compiling")] == []

    ARTIFACTS.mkdir(exist_ok=True)
    for number, explorer in enumerate(_explorers(page), start=1):
        _move(page, explorer)
        explorer.screenshot(
            timeout=RUN_S * 1000, path=ARTIFACTS / f"{lesson.stem}_widget{number}.png"
        )
    cells = nbformat.read(lesson, 4).cells
    wanted = sum(bool(WIDGET.search(cell.source)) for cell in cells if cell.cell_type == "code")
    assert len(_explorers(page)) == wanted
    page.set_viewport_size({"width": 1280, "height": 16_000})
    page.wait_for_timeout(2000)
    page.screenshot(path=ARTIFACTS / f"{lesson.stem}_whole.png", timeout=RUN_S * 1000)
    _end_kernels(jupyter)


def _explorers(page) -> list:
    """Every group of controls above a view: see `minserve.learn.widgets.interactive`."""
    groups = page.locator(
        ".jp-OutputArea-output > .widget-vbox, .jp-OutputArea-output > div > .widget-vbox"
    )
    return [g for g in groups.all() if g.locator(".widget-html").count()]


def _move(page, explorer) -> None:
    """Move its first control, whatever it is; the view below must then show something else."""
    explorer.scroll_into_view_if_needed()
    view = explorer.locator(".widget-html").last
    pictures = view.locator("img")
    if pictures.count():
        assert len(pictures.first.get_attribute("alt")) > 30
    before = view.inner_html()
    handles = explorer.locator(".noUi-handle[role=slider]")
    if handles.count():
        handles.first.focus()
        page.keyboard.press("End")  # a single step may show the same picture
    elif explorer.locator("select").count():
        explorer.locator("select").first.select_option(index=1)
    else:
        explorer.locator("input[type=checkbox], button").last.click()
    for _ in range(600):
        if view.inner_html() != before:
            return
        page.wait_for_timeout(100)
    pytest.fail("the view did not follow its control")


def _await_end(page) -> None:
    """Until the kernel has been idle for a while, and no cell in view is queued.

    Between two cells it is idle for a moment too, so one look is not enough.
    """
    deadline = time.monotonic() + RUN_S
    num_idle = 0
    while time.monotonic() < deadline:
        page.wait_for_timeout(500)
        idle = page.get_by_role("button", name="Python 3 (ipykernel) | Idle").count()
        queued = page.locator(".jp-InputPrompt", has_text="[*]").count()
        num_idle = num_idle + 1 if idle and not queued else 0
        if num_idle == 5:
            return
    pytest.fail("the lesson did not run to its end")


def _end_kernels(address: str) -> None:
    """So that the next lesson has the machine to itself."""
    import httpx

    with httpx.Client(base_url=address, timeout=60) as client:
        client.get("/lab")  # for its cookie against forged requests
        headers = {"X-XSRFToken": client.cookies.get("_xsrf", "")}
        for session in client.get("/api/sessions").json():
            client.delete(f"/api/sessions/{session['id']}", headers=headers).raise_for_status()
