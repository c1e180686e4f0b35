"""A cascade of two real models behind the real command."""

from __future__ import annotations

import json

import httpx
import pytest

from minserve.models.registry import known_models
from minserve.northstar.corpus import load_corpus
from minserve.northstar.paths import data_dir
from minserve.northstar.prompts import as_messages
from minserve.northstar.questions import is_qualified, load_questions

pytestmark = pytest.mark.slow

COUNT = 6


@pytest.fixture(scope="module")
def smollm2():
    if "smollm2" not in {model.name for model in known_models() if model.folder}:
        pytest.skip("smollm2 is not on this machine: minserve generate Hello --model smollm2")


def test_what_the_first_model_cannot_answer_the_second_does_and_says_so(smollm2, start_process):
    """SmolLM2 reads poorly; the check against the evidence of the request finds it out."""
    server = start_process(
        *("--model", "smollm2", "--cascade-to", "nano", "--demo-keys"),
        *("--response-cache", "memory", "--num-blocks", "256"),
    )
    corpus = load_corpus("v1")
    secrets = json.loads((data_dir() / "demo_keys.json").read_text("utf-8"))["keys"]
    questions = [question for question in load_questions() if question.kind == "policy"][:COUNT]
    users = {tenant.id: tenant.users[0].id for tenant in corpus.tenants}
    routes, rejected = [], 0
    for question in questions:
        evidence = corpus.lines(question.evidence)
        headers = {
            "authorization": f"Bearer {secrets[users[question.tenant]]}",
            "x-answer-class": "policy",
        }
        body = {
            "messages": as_messages(corpus.system_prompt, evidence, question.text),
            "temperature": 0,
            "max_tokens": 48,
        }
        url = f"{server.url}/v1/chat/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        assert is_qualified(question, text, "v1"), (question.text, text)
        routes.append(answer.headers["x-route"])
        assert answer.json()["model"] == routes[-1]
        rejected += len(answer.json()["usage"].get("rejected_attempts", ()))
        again = httpx.post(url, json=body, headers=headers, timeout=120)
        assert (again.headers["x-cache"], again.headers["x-route"]) == ("hit", routes[-1])
    assert rejected == routes.count("northstar-nano") > 0
