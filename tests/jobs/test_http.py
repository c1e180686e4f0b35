"""Jobs and batches over HTTP: who sees what, and what a client is told."""

from __future__ import annotations

import asyncio
import json

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from live_server import Live

from minserve.jobs.job import Progress, State
from minserve.jobs.kinds import KINDS
from minserve.jobs.store import JobStore
from minserve.request import Identity
from minserve.scheduling.admission import Admission
from minserve.scheduling.rates import Rates
from minserve.serving import jobs as http
from minserve.serving.app import _response
from minserve.serving.errors import ApiError
from tests.jobs.conftest import FakeClock

NAP = {"kind": "nap", "payload": {"seconds": 1}}
ANN, BOB = {"x-who": "acme/ann"}, {"x-who": "bolt/bob"}


def identity_of(request) -> Identity:
    return Identity(*request.headers.get("x-who", "acme/ann").split("/"))


@pytest.fixture
def store(tmp_path):
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", KINDS, clock=FakeClock(), max_open=6)
    yield store
    store.close()


@pytest.fixture
def client(store):
    app = FastAPI()
    app.add_exception_handler(ApiError, lambda request, error: _response(error))
    app.include_router(http.router(store, identity_of))
    return TestClient(app)


def test_job_is_accepted_with_its_location_and_all_that_it_has(client):
    answer = client.post("/v1/jobs", json=NAP | {"deadline_s": 60})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" == job["status_url"]
    assert client.get(job["status_url"]).json() == job
    assert job["scope"] == {"tenant": "acme", "subject": "ann"} and job["state"] == "queued"
    assert job["deadline_at"] == job["created_at"] + 60


def test_reused_key_is_the_same_job_or_a_422(client):
    key = {"idempotency-key": "k"}
    first = client.post("/v1/jobs", json=NAP, headers=key).json()["id"]
    assert client.post("/v1/jobs", json=NAP, headers=key).json()["id"] == first
    other = client.post("/v1/jobs", json=NAP | {"priority": 1}, headers=key)
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert client.post("/v1/jobs", json=NAP, headers=key | BOB).json()["id"] != first


@pytest.mark.parametrize(
    "more", [{"tenant": "bolt"}, {"salt": "x"}, {"payload": {"seconds": -1}}, {"kind": "none"}]
)
def test_body_cannot_name_a_tenant_or_ask_nonsense(client, store, more):
    assert client.post("/v1/jobs", json=NAP | more).status_code in (400, 422)
    assert store.counts().num_open == 0


def test_job_of_another_is_not_there(client):
    where = client.post("/v1/jobs", json=NAP, headers=ANN).json()["status_url"]
    for path in (where, f"{where}/result", f"{where}/events"):
        assert client.get(path, headers=BOB).status_code == 404
    assert client.delete(where, headers=BOB).status_code == 404
    assert client.get("/v1/jobs", headers=BOB).json()["data"] == []
    assert client.get(where, headers=ANN).json()["state"] == "queued"


def test_result_is_202_then_200_and_410_when_there_is_none(client, store):
    where = client.post("/v1/jobs", json=NAP).json()["status_url"]
    assert client.get(f"{where}/result").status_code == 202
    store.complete(store.claim("w")[0], 1.5)
    assert client.get(f"{where}/result").json() == 1.5
    other = client.post("/v1/jobs", json=NAP).json()["status_url"]
    assert client.delete(other).json()["state"] == "cancelled"
    gone = client.get(f"{other}/result")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "job_cancelled")


def test_delete_says_which_terminal_state_won(client, store):
    where = client.post("/v1/jobs", json=NAP).json()["status_url"]
    store.complete(store.claim("w")[0], 1)
    assert client.delete(where).json()["state"] == "done"


def test_full_queue_is_a_429_that_says_when_to_return(client):
    for _ in range(3):
        client.post("/v1/jobs", json=NAP)
    full = client.post("/v1/jobs", json=NAP)
    assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1


def test_events_tell_each_change_and_end_with_the_job(client, store, monkeypatch):
    job_id = client.post("/v1/jobs", json=NAP).json()["id"]
    steps = [
        lambda: store.leases.append(store.claim("w")[0]),
        lambda: store.renew([Progress(job_id, 1, 1, 2)]),
        lambda: store.complete(store.leases[0], 1),
    ]
    store.leases = []
    monkeypatch.setattr(http.time, "sleep", lambda seconds: steps.pop(0)())
    told = client.get(f"/v1/jobs/{job_id}/events").text
    names = [line[7:] for line in told.splitlines() if line.startswith("event: ")]
    assert names == ["queued", "running", "running", "done"]
    data = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    assert data[2]["progress"] == {"completed": 1, "total": 2}


def line(number, **more):
    body = {"messages": [{"role": "user", "content": f"{number}"}]}
    entry = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps(entry | {"body": body} | more)


def upload(client, text, who=ANN):
    files = {"file": ("in.jsonl", text.encode()), "purpose": (None, "batch")}
    return client.post("/v1/files", files=files, headers=who).json()["id"]


def ask(client, file_id, who=ANN):
    order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions"}
    return client.post("/v1/batches", json=order, headers=who)


def test_batch_is_a_job_a_line_and_its_output_comes_back_in_order(client, store):
    text = line(1) + "\n" + line(2) + "\n"
    file_id = upload(client, text)
    assert client.get(f"/v1/files/{file_id}/content").text == text
    batch = ask(client, file_id).json()
    assert batch["status"] == "in_progress" and batch["request_counts"]["total"] == 2
    first, second = store.claim("w", 2)
    store.complete(second, {"n": 2})
    store.fail(first, "no", is_permanent=True)
    batch = client.get(f"/v1/batches/{batch['id']}").json()
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    output = json.loads(client.get(f"/v1/files/{batch['output_file_id']}/content").text)
    assert (output["custom_id"], output["response"]["body"]) == ("c2", {"n": 2})
    errors = json.loads(client.get(f"/v1/files/{batch['error_file_id']}/content").text)
    assert (errors["custom_id"], errors["error"]["message"]) == ("c1", "no")


def test_batch_with_one_bad_line_is_refused_whole(client, store):
    for text in (
        "not json", line(1, url="/v1/other"), line(1) + "\n" + line(1), line(1, body={}), ""
    ):  # fmt: skip
        assert ask(client, upload(client, line(9) + "\n" + text if text else "")).status_code == 400
    assert store.counts().num_open == 0 and client.get("/v1/batches").json()["data"] == []


def test_batch_is_cancelled_whole_and_is_its_owners_only(client, store):
    batch = ask(client, upload(client, line(1) + "\n" + line(2))).json()["id"]
    assert client.post(f"/v1/batches/{batch}/cancel", headers=BOB).status_code == 404
    assert client.get(f"/v1/files/output-{batch}/content", headers=BOB).status_code == 404
    assert ask(client, upload(client, line(1)), BOB).status_code == 404
    assert client.post(f"/v1/batches/{batch}/cancel").json()["status"] == "cancelled"
    assert store.counts().by_state == {State.CANCELLED: 2}


def test_lists_are_filtered_and_bounded(client, store):
    ids = [client.post("/v1/jobs", json=NAP).json()["id"] for _ in range(3)]
    store.complete(store.claim("w")[0], 1)
    assert [job["id"] for job in client.get("/v1/jobs?state=done").json()["data"]] == ids[:1]
    assert len(client.get("/v1/jobs?limit=2").json()["data"]) == 2
    assert len(client.get("/v1/jobs?limit=-5").json()["data"]) == 1
    assert client.get("/v1/jobs?state=odd").status_code == 422
    store.max_open = store.max_open_per_tenant = 100
    batches = [ask(client, upload(client, line(n))).json()["id"] for n in range(3)]
    (shown,) = client.get("/v1/batches?limit=1").json()["data"]
    assert shown["id"] in batches


def test_file_that_is_none_and_batch_that_cannot_be_are_refused(client):
    for files in (
        {"purpose": (None, "batch")},
        {"file": ("in.jsonl", b"{}"), "purpose": (None, "fine-tune")},
        {"file": ("in.jsonl", b"\xff"), "purpose": (None, "batch")},
    ):
        assert client.post("/v1/files", files=files).status_code == 400
    assert client.post("/v1/files", content=b"plain").status_code == 400
    odd = {"purpose": (None, b"\xff"), "file": ("a.jsonl", b"")}
    assert client.post("/v1/files", files=odd).json()["error"]["param"] == "purpose"
    file_id = upload(client, line(1))
    order = {"input_file_id": file_id, "endpoint": "/v1/chat/completions"}
    for more in ({"endpoint": "/v1/odd"}, {"completion_window": "1h"}, {"input_file_id": "none"}):
        assert client.post("/v1/batches", json=order | more).status_code in (400, 404)
    assert client.get("/v1/batches").json()["data"] == []


def test_events_of_a_job_that_is_purged_meanwhile_end_with_an_error(client, store, monkeypatch):
    job_id = client.post("/v1/jobs", json=NAP).json()["id"]

    def cancelled_and_purged(seconds):
        store.cancel(None, job_id)
        store._clock.pass_s(8 * 86_400)
        assert store.purge() == 1

    monkeypatch.setattr(http.time, "sleep", cancelled_and_purged)
    told = client.get(f"/v1/jobs/{job_id}/events").text
    names = [each[7:] for each in told.splitlines() if each.startswith("event: ")]
    assert names == ["queued", "error"]


def refused(may_become_job):
    error = ApiError(429, "its deadline cannot be met", code="deadline_infeasible")
    error.may_become_job = may_become_job
    return error


@pytest.mark.parametrize("prefer", ["respond-async", "wait=1, Respond-Async"])
def test_refused_chat_becomes_a_job_where_it_may_and_the_client_prefers_it(store, prefer):
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}

    def answer(prefer, error):
        scope = {"type": "http", "headers": [(b"prefer", prefer.encode())]}
        return asyncio.run(http.as_job(store, Request(scope), Identity("acme", "ann"), chat)(error))

    assert answer("", refused(True)) is None and answer(prefer, refused(False)) is None
    response = answer(prefer, refused(True))
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "respond-async"
    (job,) = store.list(Identity("acme", "ann"))
    assert response.headers["location"] == f"/v1/jobs/{job.id}"
    assert job.payload == {"messages": chat["messages"]}
    store.max_open = 1
    assert answer(prefer, refused(True)) is None, "the refusal stands when jobs are full too"


def test_chat_whose_deadline_cannot_be_met_becomes_a_job_over_real_http(tmp_path):
    """A step takes 50 ms, so 100 tokens take 5 s; they have 1 s."""
    jobs = JobStore(f"sqlite:///{tmp_path}/jobs.db", KINDS)
    chat = {
        "model": "letters",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 100,
    }
    late, prefer = {"x-deadline-ms": "1000"}, {"prefer": "respond-async"}
    rates = Rates(decode_step_s=0.05)
    with Live(0.05, admission=lambda log: Admission(log, rates=rates), jobs=jobs) as live:
        refused = live.post("/v1/chat/completions", chat, **late)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            429,
            "deadline_infeasible",
        )
        assert jobs.counts().num_open == 0, "nobody asked for a job"
        for stream in (False, True):
            body = chat | {"stream": stream}
            answer = live.post("/v1/chat/completions", body, **late, **prefer)
            assert answer.status_code == 202
            assert answer.headers["preference-applied"] == "respond-async"
            shown = live.get(answer.headers["location"]).json()
            assert (shown["kind"], shown["state"]) == ("chat_completion", "queued")
        lease, _ = jobs.claim("w", 2)
        assert lease.job.payload == chat
        jobs.complete(lease, {"object": "chat.completion"})
        result = live.get(f"/v1/jobs/{lease.job.id}/result")
        assert result.json() == {"object": "chat.completion"}
        soon = live.post("/v1/chat/completions", chat | {"max_tokens": 2}, **late, **prefer)
        assert soon.status_code == 200, "what can be in time is answered in time"
    jobs.close()
