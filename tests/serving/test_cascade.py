"""A cascade behind the real server: what is wrong is never shown, and who answered is told."""

from __future__ import annotations

import json

import pytest
from live_server import EOS, Characters, Live, wait_for

from minserve.cached_service import CachedService
from minserve.cascaded_service import CascadedService, Route
from minserve.client import LocalClient
from minserve.engine import Engine
from minserve.events import Submitted
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.northstar.caching import policy_table
from minserve.northstar.checks import CHECKS
from minserve.northstar.prompts import render_user, split_user
from minserve.request import Request
from minserve.reuse.key import ModelTuple
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.reuse.validation import Validation
from minserve.service import Service
from minserve.serving.identity import ApiKey, KeyRing, hash_of

CHAT, JSON = "/v1/chat/completions", {"type": "json_object"}
ROLES = {"ann": (), "eve": (), "ops": ("operator",)}
KEYS = KeyRing(
    ApiKey(name, hash_of(f"key of {name}"), name, name, roles, answer_classes=("policy",))
    for name, roles in ROLES.items()
)


class Cascaded(Live):
    """Two engines that say what the test has them say, and a cache before them."""

    def __init__(self, **options) -> None:
        self.says = {"letters": "", "dear": ""}
        self.num_asked = 0
        super().__init__(token=lambda row: self._token("letters", row), wrap=self.wrap, **options)

    def _token(self, model: str, row) -> int:
        said = [*map(ord, self.says[model]), EOS]
        return said[min(row.output_position, len(said) - 1)]

    def wrap(self, service: Service) -> CachedService:
        dear = SimulatedExecutor(
            1024,
            cost=CostModel(0.001, 0, 0, 0),
            eos_token_ids=frozenset({EOS}),
            token=lambda row: self._token("dear", row),
        )
        words, loop = Characters(), service.client.loop
        self.dear = Engine(dear)
        self.dear.log.listen(self._count)
        dearer = Service(LocalClient(self.dear, loop), words.detokenizer)

        def ask(request, wording, id):
            text = "".join(turn.content for turn in wording.messages)
            return Request(id, words.encode(text), request.sampling, request.identity)

        validation = Validation(policy_table(), CHECKS)
        cascade = CascadedService(
            service,
            "letters",
            [Route("dear", dearer, ask)],
            lambda w: validation.check_of(w.answer_class, w.messages, w.response_format),
        )
        self.store = MemoryStore()
        cache = ExactCache(self.store, policy_table(), validate=validation.is_right)
        return CachedService(cascade, cache, ModelTuple("letters"), split=split_user)

    def _count(self, event) -> None:
        self.num_asked += isinstance(event, Submitted)


@pytest.fixture(scope="module")
def server():
    with Cascaded(keys=KEYS) as server:
        yield server
        server.wait_idle()


@pytest.fixture(autouse=True)
def afresh(server, request):
    server.num_asked, server.name = 0, request.node.name
    server.says = {"letters": "not JSON", "dear": '{"a": 1}'}


def ask(server, who="ann", headers=None, **more):
    """Every test asks what no other does."""
    body = {"messages": [{"role": "user", "content": server.name}], "temperature": 0}
    with server.client(f"key of {who}") as client:
        body |= {"response_format": JSON, **more}
        return client.post(CHAT, json=body, headers=headers or {})


def content(answer) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def test_a_right_answer_comes_from_the_first_model(server):
    server.says["letters"] = '{"b": 2}'
    answer = ask(server)
    assert (content(answer), answer.headers["x-route"]) == ('{"b": 2}', "letters")
    assert "rejected_attempts" not in answer.json()["usage"] and server.num_asked == 0


def test_a_wrong_one_is_asked_of_the_dearer_model_and_everything_says_so(server):
    answer = ask(server)
    told = answer.json()
    assert (content(answer), told["model"], answer.headers["x-route"]) == (
        '{"a": 1}',
        "dear",
        "dear",
    )
    usage = told["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(server.name), 9)
    (rejected,) = usage["rejected_attempts"]
    assert (rejected["model"], rejected["completion_tokens"]) == ("letters", 9)
    assert rejected["outcome"] == "failed"
    trace = server.get(f"/v1/traces/{told['id']}", "key of ann").json()
    assert [(a["model"], a["outcome"]) for a in trace["attempts"]] == [
        ("letters", "failed"),
        ("dear", "passed"),
    ]
    assert trace["attempts"][0]["end_s"] <= trace["attempts"][1]["start_s"]
    assert server.get(f"/v1/traces/{told['id']}", "key of eve").status_code == 404


@pytest.mark.parametrize("is_right", [True, False])
def test_a_stream_shows_nothing_that_has_not_passed(server, is_right):
    if is_right:
        server.says["letters"] = '{"b": 2}'
    answer = ask(server, stream=True, stream_options={"include_usage": True})
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line[6:7] == "{"]
    text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
    assert text == ('{"b": 2}' if is_right else '{"a": 1}') and "not JSON" not in answer.text
    assert {event["model"] for event in events} == {"letters" if is_right else "dear"}
    assert events[-1]["usage"]["completion_tokens"] == 9 and answer.text.endswith("[DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_no_answer_is_better_than_one_that_failed(server, stream):
    server.says["dear"] = "no JSON either"
    answer = ask(server, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (502, "no_valid_answer")
    assert answer.headers["x-should-retry"] == "false" and "JSON either" not in answer.text
    assert server.store.size()[0] == len(server.store._entries) and "x-route" not in answer.headers
    server.says["dear"] = '{"a": 1}'
    assert ask(server).headers["x-cache"] == "miss"  # nothing of it was kept


def test_what_passed_is_answered_from_the_cache_and_still_says_by_whom(server):
    assert ask(server).headers["x-cache"] == "miss"
    again = ask(server)
    assert (again.headers["x-cache"], again.headers["x-route"]) == ("hit", "dear")
    assert content(again) == '{"a": 1}' and server.num_asked == 1
    assert ask(server, who="eve").headers["x-cache"] == "miss"


def test_a_schema_is_held_to(server):
    server.says["letters"] = '{"a": "1"}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    assert content(ask(server, response_format=asked)) == '{"a": 1}'


def test_a_class_that_names_a_check_is_held_to_the_evidence_of_its_request(server):
    lines = ["The late fee of Umber Club is 5 EUR.", "The late fee of Blue Club is 7 EUR."]
    server.says = {"letters": lines[0], "dear": lines[1]}
    question = render_user(lines, "What is the late fee of Blue Club?")
    body = {"messages": [{"role": "user", "content": question}], "response_format": None}
    answer = ask(server, headers={"x-answer-class": "policy"}, **body)
    assert (content(answer), answer.headers["x-route"]) == (lines[1], "dear")
    plain = ask(server, **body)  # says nothing of itself, so it is taken as it is
    assert content(plain) == lines[0] and "x-route" not in plain.headers


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"n": 2}, "response_format"),
        ({"logprobs": True}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            "response_format",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(server, asked, param):
    answer = ask(server, **asked)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert server.num_asked == 0


def test_a_server_without_a_cascade_refuses_a_format_that_it_could_not_hold_to(live):
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": JSON}
    error = live.post(CHAT, body).json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "unsupported_field")


def test_a_client_that_leaves_ends_the_dearer_models_work_too(server):
    server.says["dear"] = "x" * 10_000
    with server.client("key of ann") as client:
        body = {"messages": [{"role": "user", "content": server.name}], "max_tokens": 5000}
        with pytest.raises(Exception, match="timed out"):
            client.post(CHAT, json=body | {"response_format": JSON}, timeout=0.3)
    wait_for(lambda: server.num_asked == 1 and not server.dear.has_unfinished)
    server.wait_idle()
    server.dear.check_integrity()


def test_metrics_count_attempts_by_model_and_outcome(server):
    def count(route, outcome):
        text = server.get("/metrics", "key of ops").text
        lines = [line for line in text.splitlines() if line.startswith("minserve_cascade_attempts")]
        return sum(
            float(line.split()[-1])
            for line in lines
            if f'outcome="{outcome}"' in line and f'route="{route}"' in line
        )

    before = count("letters", "failed"), count("dear", "passed")
    ask(server)
    assert (count("letters", "failed"), count("dear", "passed")) == (before[0] + 1, before[1] + 1)
