"""The page at `/` in a real browser: it shows the engine live, and a person can chat."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from live_server import Live

from minserve.cached_service import CachedService
from minserve.northstar.caching import policy_table
from minserve.reuse.key import ModelTuple
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.scheduling.admission import Admission
from minserve.scheduling.overload import LadderState, Rung
from minserve.serving.identity import ApiKey, KeyRing, hash_of

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(require_debian):
    """A page that reports what it asks for and what goes wrong."""
    chromium = require_debian("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(20_000)
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        yield page
        browser.close()


def say(page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_label("Your message").press("Enter")


def test_the_page_shows_the_engine_and_streams_a_chat(page):
    with Live(step_s=0.02, admission=Admission) as live:
        page.goto(live.url)
        page.get_by_text("letters", exact=True).wait_for()
        page.locator("#blocks[aria-label^='Of 1024 KV blocks']").wait_for()
        live.post("/v1/completions", {"prompt": "w", "max_tokens": 1})

        say(page, "hello <b>you</b>")
        answer = page.locator(".turn.assistant")
        page.wait_for_function(  # while it streams: some of it, and the Stop button
            "() => /^abc/.test(document.querySelector('.turn.assistant')?.textContent)"
            " && document.querySelector('#send').textContent === 'Stop'"
        )
        page.locator("#running", has_text="1").wait_for()
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / "live_page.png")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Send").wait_for()
        live.wait_idle()
        assert live.reasons()[-1] == "cancelled"
        assert page.locator(".turn.user").inner_text() == "hello <b>you</b>"
        assert re.match(r"abc[a-z]*$", answer.inner_text())
        assert float(page.locator("#output").inner_text().replace(",", "")) >= 0

        live.server.engine.service.admission.ladder_state = LadderState(Rung.REJECT_LOW)
        page.get_by_text(re.compile(r"\(rung \d of 5\)")).wait_for()
        assert page.wrong == []
        assert {url.split("/")[2] for url in page.asked} == {live.url.split("/")[2]}


def test_a_whole_answer_says_how_long_it_took_and_the_talk_goes_on(page):
    with Live(step_s=0.001, token=lambda row: ord("a") if row.output_position < 5 else 0) as live:
        page.goto(live.url)
        say(page, "one")
        page.locator(".turn.assistant small", has_text="5 tokens").or_(
            page.locator(".turn.assistant small", has_text="6 tokens")
        ).wait_for()
        say(page, "two")
        page.locator(".turn.assistant small").nth(1).wait_for()
        assert page.locator(".turn").count() == 4 and page.wrong == []


def test_an_operator_sees_what_the_caches_answered_and_nobody_else(page):
    keys = KeyRing(
        [
            ApiKey("o", hash_of("operator's"), "t", "o", roles=("operator",)),
            ApiKey("k", hash_of("another's"), "t", "s"),
        ]
    )

    def wrap(service):
        return CachedService(service, ExactCache(MemoryStore(), policy_table()), ModelTuple("m"))

    body = {"prompt": "w", "temperature": 0, "stop": "f", "max_tokens": 20}
    with Live(step_s=0.001, keys=keys, wrap=wrap) as live:
        for _ in range(3):
            live.post("/v1/completions", body, "operator's")
        page.goto(live.url)
        page.get_by_label("API key").fill("another's")
        page.get_by_text("letters", exact=True).wait_for()
        assert page.locator("#reuse").is_hidden()
        page.get_by_label("API key").fill("operator's")
        page.get_by_text("exact cache: 2 of 3 answered").wait_for()
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / "live_page_reuse.png", full_page=True)
        assert page.wrong == []


def test_a_key_is_asked_for_kept_in_the_page_only_and_a_refusal_is_shown(page):
    keys = KeyRing([ApiKey("k", hash_of("secret"), "t", "s")])
    with Live(step_s=0.001, keys=keys) as live:
        page.goto(live.url)
        page.get_by_text("enter an API key").wait_for()
        say(page, "hello")
        page.locator(".turn.error", has_text="API key").wait_for()
        page.get_by_label("API key").fill("secret")
        page.get_by_text("letters", exact=True).wait_for()
        kept = "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert not any("secret" in told for told in (page.evaluate(kept), *page.asked))
        page.reload()
        page.get_by_text("enter an API key").wait_for()
        assert page.get_by_label("API key").input_value() == ""


def test_it_fits_a_telephone(page):
    with Live() as live:
        page.set_viewport_size({"width": 375, "height": 740})
        page.goto(live.url)
        page.get_by_text("letters", exact=True).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / "live_page_narrow.png", full_page=True)
