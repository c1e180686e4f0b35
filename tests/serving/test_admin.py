"""What operators may ask, and nobody else: usage by tenant, and that prefixes be forgotten."""

from __future__ import annotations

import subprocess
import sys

import pytest
from live_server import Live
from support import ask

from minserve.metrics import Outcome
from minserve.request import Identity
from minserve.scheduling.admission import Admission
from minserve.serving.identity import ApiKey, KeyRing, Quota, hash_of
from minserve.serving.usage import Usage

TEXT = "/v1/completions"


def key(name: str, tenant: str, *roles: str, tokens_per_s: float | None = None) -> ApiKey:
    return ApiKey(name, hash_of(name), tenant, name, roles, quota=Quota(None, tokens_per_s))


@pytest.fixture(scope="module")
def live():
    limited = key("bob", "b", tokens_per_s=1.0)
    keys = KeyRing([key("ann", "a"), limited, key("ops", "o", "operator")])
    with Live(keys=keys, admission=Admission) as server:
        server.server.region = "north"
        yield server
        server.wait_idle()


def complete(live: Live, who: str, prompt: str, max_tokens: int = 4) -> dict:
    return live.post(TEXT, {"prompt": prompt, "max_tokens": max_tokens}, who).json()


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("who", ["ann", "bob"])
def test_only_operators_administer(live, who):
    assert live.get("/admin/usage", who).status_code == 403
    assert live.post("/admin/prefix-cache/clear", {}, who).status_code == 403


def test_usage_is_told_by_tenant_with_the_region_and_metrics_have_neither(live):
    before = live.get("/admin/usage", "ops").json()["tenants"].get("a", {"requests": 0})
    complete(live, "ann", "usage of a", 4)
    answers = [live.post(TEXT, {"prompt": "y" * 400, "max_tokens": 40}, "bob") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    live.wait_idle()
    told = live.get("/admin/usage", "ops").json()
    assert told["region"] == "north" and told["others"] is None
    assert told["tenants"]["a"]["requests"] == before["requests"] + 1
    assert told["tenants"]["a"]["by_reason"]["length"] >= 1
    assert told["tenants"]["a"]["prompt_tokens"] >= len("usage of a")
    assert told["tenants"]["a"]["ttft_p95_at_most_s"] > 0
    assert told["tenants"]["b"]["refused"] == 1 and told["tenants"]["b"]["requests"] == 1
    metrics = live.get("/metrics", "ops").text
    assert "north" not in metrics and 'tenant="' not in metrics


def test_cleared_prefixes_are_found_by_nobody_and_are_computed_anew(live):
    prompt = "z" * 64
    complete(live, "ann", prompt)
    assert cached(complete(live, "ann", prompt)) == 48
    forgotten = live.post("/admin/prefix-cache/clear", {}, "ops").json()["forgotten_blocks"]
    assert forgotten >= 4
    assert cached(complete(live, "ann", prompt)) == 0
    live.wait_idle()
    live.engine.check_integrity()


def test_books_of_many_tenants_are_bounded_and_lose_no_count():
    usage = Usage(max_tenants=3)
    for number in [0, 1, 2, 0, 3, 4, 0]:
        request = ask(f"r{number}", 4, 1, identity=Identity(f"t{number}"))
        done = Outcome("r", 0.0, 1.0, 4, finished_s=0.5, reason="stop", chunks=[(0.4, 1)])
        usage.note_finished(request, done)
        usage.note_refused(request)
    told = usage.report()
    assert set(told["tenants"]) == {"t0", "t3", "t4"}
    assert told["tenants"]["t0"]["requests"] == 3 and told["others"]["requests"] == 2
    assert told["others"]["refused"] == 2 and told["others"]["prompt_tokens"] == 8
    assert told["tenants"]["t0"]["ttft_p95_at_most_s"] == 0.5
    assert told["tenants"]["t0"]["deadline_misses"] == 0


def test_a_server_that_crashes_leaves_no_image_of_its_memory():
    resource = pytest.importorskip("resource")
    program = (
        "import resource; from minserve.serving.run import forbid_core_dumps\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_CORE)\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "forbid_core_dumps(); print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are off on this machine already")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr
