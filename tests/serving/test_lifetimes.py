"""Clients that leave or do not read, engines that die, servers that are asked to stop."""

from __future__ import annotations

import random
import threading
import time

import httpx
import pytest
from live_server import Live, events_of, iterate, wait_for

from minserve.events import Admitted, Finished
from minserve.execution.simulated import CostModel, SimulatedExecutor

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 5000}


def read_some(connection, count: int = 2000) -> None:
    """Read until some of the answer's text has come."""
    data = b""
    while len(data) < count:
        data += connection.recv(4096)


# -- disconnects


@pytest.mark.parametrize("is_stream", [True, False])
def test_disconnect_reaches_the_executor_within_two_steps(is_stream):
    with Live(step_s=0.05) as live:
        connection = live.connect({**LONG, "stream": is_stream})
        wait_for(lambda: live.num_steps() >= 5)
        steps_before = live.num_steps()
        connection.close()
        wait_for(lambda: live.reasons() == ["cancelled"])
        live.wait_idle()
        assert live.num_steps() - steps_before <= 2
        assert live.get("/health").status_code == 200


def test_disconnect_cancels_every_prompt_of_the_call():
    with Live(step_s=0.02) as live:
        connection = live.connect({"prompt": ["x", "y", "z"], "max_tokens": 5000, "stream": True})
        wait_for(lambda: live.num_steps() >= 3)
        connection.close()
        wait_for(lambda: live.reasons() == ["cancelled"] * 3)
        live.wait_idle()


def test_client_that_leaves_the_queue_never_prefills():
    from minserve.scheduling.batching import ContinuousBatching

    with Live(step_s=0.02) as live:
        live.engine.scheduler.policy = ContinuousBatching(8, max_running=1)
        first = live.connect({**LONG, "stream": True})
        wait_for(lambda: live.num_steps() >= 3)
        second = live.connect({**LONG, "stream": True})
        wait_for(lambda: live.server.num_open == 2)
        second.close()
        wait_for(lambda: live.reasons() == ["cancelled"])
        gone = next(e.request_id for e in live.events if isinstance(e, Finished))
        first.close()
        live.wait_idle()
        assert live.steps_of(gone) == []
        assert gone not in [e.request_id for e in live.events if isinstance(e, Admitted)]


def test_storm_of_disconnects_leaves_nothing_behind():
    rng = random.Random(5)
    with Live(step_s=0.001, num_blocks=256, max_model_len=2048) as live:

        def visit(delay_s: float, is_stream: bool) -> None:
            body = {"prompt": "x" * rng.randrange(1, 400), "max_tokens": 1500}
            connection = live.connect({**body, "stream": is_stream})
            time.sleep(delay_s)
            connection.close()

        visits = [
            threading.Thread(target=visit, args=(rng.random() * 0.3, rng.random() < 0.7))
            for _ in range(100)
        ]
        for visit_ in visits:
            visit_.start()
        for visit_ in visits:
            visit_.join()
        live.wait_idle()
        assert live.post(TEXT, {"prompt": "x", "max_tokens": 3}).json()["choices"][0]["text"]
        assert set(live.reasons()) <= {"cancelled", "length"}


# -- slow readers


def test_slow_reader_holds_bounded_memory_and_is_ended():
    limits = {"max_held_tokens": 50, "write_s": 1.0}
    with Live(step_s=0.0, num_blocks=4096, max_model_len=60_000, **limits) as live:
        body = {"prompt": "x", "max_tokens": 50_000, "stream": True}
        # A chunk is some 180 bytes: the answer would be 9 MB. What the kernel takes is not ours.
        connection = live.connect(body, SO_RCVBUF=4096)
        wait_for(lambda: live.reasons() == ["cancelled"], 30)
        live.wait_idle()
        finished = next(e for e in live.events if isinstance(e, Finished))
        assert finished.num_output_tokens < 50_000
        # Others are served meanwhile.
        assert live.post(TEXT, {"prompt": "y", "max_tokens": 2}).status_code == 200
        connection.close()


def test_reader_that_pauses_for_less_than_the_bound_loses_nothing():
    with Live(step_s=0.0) as live, live.client() as client:
        body = {"prompt": "x", "max_tokens": 400, "stream": True}
        with client.stream("POST", TEXT, json=body) as response:
            text = ""
            for event in iterate(response.iter_lines()):
                time.sleep(0.0005)
                if event != "[DONE]":
                    text += event["choices"][0]["text"]
        assert text == ("abcdefghijklmnopqrstuvwxyz" * 20)[:400]


def test_request_that_takes_too_long_is_ended_with_an_error():
    with Live(step_s=0.02, request_s=0.3) as live:
        response = live.post(TEXT, LONG)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        assert response.headers["x-should-retry"] == "false"
        body = {**LONG, "stream": True}
        with live.client() as client, client.stream("POST", TEXT, json=body) as got:
            *chunks, error, done = events_of(got)
        assert chunks and error["error"]["code"] == "timeout" and done == "[DONE]"
        live.wait_idle()
        assert live.reasons() == ["cancelled"] * 2


# -- the engine dies


class Faulty(SimulatedExecutor):
    """Fails in the step after `fail` is set, by an error or, as `kind` says, by a bug."""

    fail = False

    def launch(self, plan, now_s):
        if self.fail:
            raise RuntimeError("the device fell off")
        return super().launch(plan, now_s)


def faulty(step_s: float = 0.02) -> Live:
    return Live(executor=Faulty(cost=CostModel(step_s, 0, 0, 0), token=lambda row: 97))


def test_death_of_the_engine_ends_every_open_request_with_an_error():
    with faulty() as live:
        answers = {}

        def ask(is_stream: bool) -> None:
            with live.client() as client:
                if is_stream:
                    body = {**LONG, "stream": True}
                    with client.stream("POST", TEXT, json=body) as got:
                        answers[is_stream] = events_of(got)
                else:
                    answers[is_stream] = client.post(TEXT, json=LONG)

        threads = [threading.Thread(target=ask, args=(kind,)) for kind in (True, False)]
        for thread in threads:
            thread.start()
        wait_for(lambda: live.num_steps() >= 5 and live.server.num_open == 2)
        live.executor.fail = True
        for thread in threads:
            thread.join(20)
        *_, error, done = answers[True]
        assert "the device fell off" in error["error"]["message"] and done == "[DONE]"
        assert answers[False].status_code in (500, 503)
        assert "the device fell off" in answers[False].json()["error"]["message"]
        wait_for(lambda: live.server.engine.failure)
        for path in ("/health", "/ready"):
            assert live.get(path).status_code == 503
        response = live.post(TEXT, LONG)
        assert response.status_code == 503 and response.json()["error"]["code"] == "engine_dead"
        assert live.get("/version").status_code == 200


def test_bug_on_the_engines_thread_is_a_death_too():
    with faulty() as live:
        connection = live.connect({**LONG, "stream": True})
        wait_for(lambda: live.num_steps() >= 3)
        live.engine.scheduler.policy = None  # whatever goes wrong, wherever
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
            if b"[DONE]" in data:
                break
        assert b'"error"' in data
        wait_for(lambda: live.server.engine.failure)
        assert live.get("/health").status_code == 503


def test_engine_that_hangs_is_not_healthy():
    with Live(health_s=0.2) as live:
        gate = threading.Event()
        live.server.engine.ask(lambda: gate.wait(20))
        response = live.get("/health")
        assert response.status_code == 503 and "not answered" in response.text
        gate.set()
        wait_for(lambda: live.get("/health").status_code == 200)


# -- stopping


def test_open_requests_finish_after_the_server_is_asked_to_stop():
    with Live(step_s=0.01, drain_s=20) as live:
        with live.client() as client:
            body = {"prompt": "x", "max_tokens": 60, "stream": True}
            with client.stream("POST", TEXT, json=body) as response:
                lines = iterate(response.iter_lines())
                next(lines)
                live.stop()
                wait_for(lambda: live.server.is_draining)
                with pytest.raises(httpx.HTTPError):  # nobody new is let in
                    live.post(TEXT, {"prompt": "x"})
                *_, last, done = lines
        assert last["choices"][0]["finish_reason"] == "length" and done == "[DONE]"


def test_open_requests_are_told_when_the_time_to_finish_is_over():
    with Live(step_s=0.01, drain_s=0.5) as live:
        body = {**LONG, "stream": True}
        with live.client() as client, client.stream("POST", TEXT, json=body) as response:
            lines = iterate(response.iter_lines())
            next(lines)
            live.stop()
            *_, error, done = lines
        assert error["error"]["code"] == "shutting_down" and done == "[DONE]"


def test_more_than_may_be_open_are_told_to_return():
    with Live(step_s=0.02, max_open=2) as live:
        connections = [live.connect(LONG) for _ in range(2)]
        wait_for(lambda: live.server.num_open == 2)
        response = live.post(TEXT, LONG)
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        for connection in connections:
            connection.close()
        live.wait_idle()
        assert live.post(TEXT, {"prompt": "x"}).status_code == 200
