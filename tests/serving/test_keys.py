"""Identity over HTTP on the quick server, and the commands that make keys."""

from __future__ import annotations

import json

import pytest
from live_server import Live

from minserve.request import WorkloadClass
from minserve.serving.identity import ApiKey, KeyFile, KeyRing, Quota, Salts, Scope, hash_of

TEXT = "/v1/completions"
LONG = {"prompt": "the same prompt of more than two blocks for all", "max_tokens": 1}


def key(tenant: str, subject: str = "s", **more) -> ApiKey:
    name = f"{tenant}-{subject}"
    return ApiKey(name, hash_of(name), tenant, subject, **more)


def ring(**more) -> KeyRing:
    return KeyRing([key("a", "x", **more), key("a", "y", **more), key("b", "x", **more)])


def cached(live: Live, name: str) -> int:
    usage = live.post(TEXT, LONG, key=name).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("scope", "hits"),
    [
        (Scope.USER, (0, 0)),
        (Scope.TENANT, (32, 0)),
        (Scope.APPLICATION, (32, 32)),
        (Scope.GLOBAL, (32, 32)),
    ],
    ids=str,
)
def test_prefix_is_shared_as_the_scope_says(scope, hits):
    with Live(step_s=0.0, keys=ring(application="bot"), salts=Salts(scope)) as live:
        assert cached(live, "a-x") == 0
        assert (cached(live, "a-y"), cached(live, "b-x")) == hits
        assert cached(live, "a-x") == 32


def test_request_is_whoever_its_key_says_it_is():
    keys = KeyRing([key("a", workload_class=WorkloadClass.INTERACTIVE, roles=("editor",))])
    with Live(step_s=0.0, keys=keys) as live:
        seen = []
        submit = live.server.engine.submit
        live.server.engine.submit = lambda request, *more: (
            seen.append(request) or submit(request, *more)
        )
        live.post(TEXT, {"prompt": "x", "user": "b"}, key="a-s")
        live.post(TEXT, {"prompt": "x", "service_tier": "flex"}, key="a-s", x_deadline_ms="5000")
        first, second = seen
        assert (first.identity.tenant, first.identity.subject) == ("a", "s")
        assert first.identity.roles == {"editor"}
        assert first.workload_class is WorkloadClass.INTERACTIVE and first.deadline_s is None
        assert second.workload_class is WorkloadClass.BATCH
        assert second.deadline_s == pytest.approx(second.arrival_s + 5)


def test_priority_beyond_the_keys_highest_is_refused():
    with Live(step_s=0.0, keys=ring(quota=Quota(max_priority=2))) as live:
        assert live.post(TEXT, {"prompt": "x", "priority": 2}, key="a-x").status_code == 200
        refused = live.post(TEXT, {"prompt": "x", "priority": 3}, key="a-x")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")


@pytest.mark.parametrize("header", ["", "a-x", "Basic a-x", "Bearer", "Bearer nobody"])
def test_request_without_a_valid_key_is_401_and_reaches_nothing(header):
    with Live(step_s=0.0, keys=ring()) as live, live.client() as client:
        response = client.post(TEXT, json={"prompt": "x"}, headers={"authorization": header})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert live.num_steps() == 0


def test_keys_command_makes_lists_and_revokes(command_line, tmp_path):
    file = tmp_path / "keys.json"

    def run(*options: str):
        return command_line.run("keys", *options)

    made = run("create", str(file), "--tenant", "a", "--subject", "x", "--json")
    made = json.loads(made.stdout.splitlines()[-1])
    assert KeyFile(file).find(made["key"]).identity.tenant == "a"
    assert made["key"] not in file.read_text()
    listed = run("list", str(file))
    assert made["id"] in listed.stdout and made["key"] not in listed.stdout
    assert run("revoke", str(file), made["id"]).returncode == 0
    assert KeyFile(file).find(made["key"]) is None
    again = run("revoke", str(file), made["id"])
    assert again.returncode == 2 and "there is no key" in again.stderr


def test_without_keys_the_server_does_not_listen_to_strangers(command_line):
    done = command_line.run("serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2 and "without API keys" in done.stderr
