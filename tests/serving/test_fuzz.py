"""Bodies made from the server's own schema: never a 5xx, never a hang, always an error's shape."""

from __future__ import annotations

import json
import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from live_server import Live

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.fixture(scope="module")
def quick():
    """A small model that answers at once, so that an example takes milliseconds."""
    with Live(step_s=0.0, max_model_len=256, default_max_tokens=8) as live:
        yield live
        live.wait_idle()


def fuzz(live: Live, path: str, mode: schemathesis.GenerationMode, max_examples: int) -> None:
    schema = schemathesis.openapi.from_dict(live.get("/openapi.json").json())
    cases = schema[path]["POST"].as_strategy(generation_mode=mode)

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=bool(os.environ.get("MINSERVE_CI")),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check(case) -> None:
        try:
            body = json.dumps(case.body)
        except TypeError:  # not every body that schemathesis makes is JSON
            body = str(case.body)
        headers = {"content-type": "application/json"}
        answer = client.post(path, content=body.encode("utf-8", "replace"), headers=headers)
        assert answer.status_code < 500, (case.body, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")

    with httpx.Client(base_url=live.url, timeout=20) as client:
        check()


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", PATHS)
def test_no_body_breaks_the_server(quick, path, mode):
    fuzz(quick, path, mode, 25)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", PATHS)
def test_no_body_of_many_breaks_the_server(quick, path, mode):
    fuzz(quick, path, mode, 150)
