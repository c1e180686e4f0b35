"""Lesson 3 in JupyterLab, as a learner opens it: all cells run, a slider moves the figure."""

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

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSON = ROOT / "lessons" / "03_kv_cache_memory.ipynb"
ARTIFACTS = ROOT / "artifacts"
READY_S, RUN_S = 90, 240  # generous: CI may be busy
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


@pytest.fixture
def jupyter(tmp_path):
    """A JupyterLab over a copy of the lesson, with folders of its own; yields its address."""
    root = tmp_path / "Kurs Élève"
    root.mkdir()
    (root / LESSON.name).write_bytes(LESSON.read_bytes())
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False}), encoding="utf-8"
    )
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


def test_lesson_opens_runs_and_its_slider_moves_the_figure(jupyter, page):
    page.goto(f"{jupyter}/lab/tree/{LESSON.name}?reset")
    # NOTE: the status bar says idle too early, and Run All then does nothing; this button does not.
    idle = page.get_by_role("button", name="Python 3 (ipykernel) | Idle")
    idle.wait_for(timeout=READY_S * 1000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('[data-command="runmenu:run-all"]').click()

    # NOTE: a slider's message waits in the kernel behind every cell that is queued.
    _await_end(page)
    slider = page.locator(".widget-slider .noUi-handle[role=slider]").first
    slider.wait_for(timeout=RUN_S * 1000)
    figure = page.locator(".widget-html img").first
    figure.wait_for(timeout=30_000)
    assert len(figure.get_attribute("alt")) > 30
    before, words_before = figure.get_attribute("src"), figure.get_attribute("alt")
    slider.scroll_into_view_if_needed()
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "before => document.querySelector('.widget-html img').src !== before", arg=before
    )
    assert figure.get_attribute("alt") != words_before
    ARTIFACTS.mkdir(exist_ok=True)
    page.locator(".jp-Notebook").first.screenshot(path=ARTIFACTS / "lesson3_calculator.png")

    told = page.locator(".jp-RenderedText[data-mime-type*=stderr]").all_inner_texts()
    assert [text for text in told if not text.startswith("... compiling")] == []
    status = page.locator(".jp-Cell", has=page.locator("text=What you have built"))
    status.last.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.locator(".jp-Notebook").first.screenshot(path=ARTIFACTS / "lesson3_end.png")
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.set_viewport_size({"width": 1280, "height": 16_000})  # JupyterLab draws what is in view
    page.wait_for_timeout(3000)
    page.locator(".jp-Notebook").first.screenshot(path=ARTIFACTS / "lesson3_whole.png")
    text = page.locator(".jp-Notebook").first.inner_text()
    assert "not yet: there is nothing to check so far" in text
    assert len(re.findall(r"Traceback", text)) == 0
    # Untouched starters: nothing of the learner's is installed.
    assert text.count("not yet") >= 4


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
