"""`minserve gateway` before a real `minserve serve`, with OpenAI's client; then, before a server in
this process whose every event can be looked at, what happens when either side goes away.
"""

from __future__ import annotations

import threading

import httpx
import openai
import pytest
from live_server import Characters, Live, events_of, iterate, wait_for

from minserve.cli.gateway import make_gateway
from minserve.cli.jobs import open_store
from minserve.cli.served_engine import EngineSettings
from minserve.errors import ConfigError
from minserve.serving.app import create_app
from minserve.serving.calls import ServedModel
from minserve.serving.identity import ApiKey, KeyRing, Quota, hash_of
from minserve.serving.run import Runner, bind, url_of
from minserve.serving.upstream_client import Upstream
from minserve.serving.upstream_dialects import DIALECTS
from minserve.serving.upstream_start import check_tokens, find

EVIDENCE = "Evidence:\n- The deposit of Umber Club is 40 EUR.\nQuestion: What is the deposit of Umber Club?"  # noqa: E501
ASK = {
    "model": "northstar-nano",
    "messages": [{"role": "user", "content": EVIDENCE}],
    "temperature": 0,
    "max_tokens": 48,
}


def ask(process, tenant="kestrel", **more):
    """A chat through OpenAI's client, and the answer's headers."""
    create = process.client(tenant).chat.completions.with_raw_response.create
    raw = create(**{**ASK, **more})
    return raw.parse(), raw.headers


# -- real processes, OpenAI's client


def test_gateway_says_what_its_upstream_says(nano, gateway):
    direct, _ = ask(nano)
    through, _ = ask(gateway)
    assert through.choices[0].message.content == direct.choices[0].message.content
    assert "40 EUR" in through.choices[0].message.content
    assert through.choices[0].finish_reason == "stop"
    assert through.usage.completion_tokens == direct.usage.completion_tokens
    assert through.usage.prompt_tokens == direct.usage.prompt_tokens


def test_stream_brings_the_same_text_and_usage(gateway):
    more = {"temperature": 1.3, "seed": 11}
    whole, _ = ask(gateway, **more)
    *chunks, last = gateway.client().chat.completions.create(
        **{**ASK, **more}, stream=True, stream_options={"include_usage": True}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_stop_n_and_seeds_are_the_upstream_s(nano, gateway):
    stopped, _ = ask(gateway, stop=[" EUR"])
    assert stopped.choices[0].message.content.endswith("40")
    assert stopped.choices[0].finish_reason == "stop"
    sampled = {"n": 3, "temperature": 1.5, "seed": 5, "max_tokens": 8}
    direct, _ = ask(nano, **sampled)
    through, _ = ask(gateway, **sampled)
    said = [choice.message.content for choice in through.choices]
    assert said == [choice.message.content for choice in direct.choices]
    assert through.usage.completion_tokens == direct.usage.completion_tokens


def test_what_the_upstream_cannot_be_asked_is_refused_by_name(gateway):
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported") as caught:
        ask(gateway, logprobs=True)
    assert caught.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(gateway, extra_body={"tenant": "alder"})
    assert caught.value.code == "identity_in_body"


def test_tenants_share_no_prefix_though_the_gateway_has_one_key(gateway):
    prompt = "A prefix that nobody else in this file sends, longer than a block. " * 6
    sampled = {"temperature": 1, "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}

    def num_cached(tenant) -> int:
        answer, _ = ask(gateway, tenant, **sampled)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert num_cached("kestrel") == 0
    own = num_cached("kestrel")
    assert own >= 16
    assert num_cached("alder") == 0
    assert num_cached("alder") == own


def test_response_cache_answers_a_tenant_again_and_no_other(gateway):
    asked = {"messages": [{"role": "user", "content": EVIDENCE + " And why?"}]}
    first, headers = ask(gateway, **asked)
    assert headers["x-cache"] == "miss"
    again, headers = ask(gateway, **asked)  # another client of the same tenant
    assert headers["x-cache"] == "hit"
    assert again.choices[0].message.content == first.choices[0].message.content
    _, headers = ask(gateway, "alder", **asked)
    assert headers["x-cache"] == "miss"


def test_metrics_are_the_gateway_s_own_and_name_no_tenant(gateway):
    ask(gateway, temperature=1)
    key = {"authorization": "Bearer key-of-operator"}
    text = httpx.get(f"{gateway.url}/metrics", headers=key).text
    assert 'minserve_admission_decisions_total{decision="admit"' in text
    assert "vllm:time_to_first_token_seconds_count" in text
    assert "vllm:kv_cache_usage_perc" not in text
    assert "kestrel" not in text and "alder" not in text


# -- servers in this process


KEYS = KeyRing(
    [
        ApiKey("ann", hash_of("ann"), "a", "ann"),
        ApiKey("bob", hash_of("bob"), "b", "bob", quota=Quota(max_concurrent=1)),
    ]
)


class Gateway:
    """A gateway before `upstream_url`, whose tokens are characters. Use it in a `with`."""

    def __init__(
        self, upstream_url: str, key: str = "", keys: KeyRing | None = None, jobs=None, **more
    ):
        upstream = Upstream(upstream_url, "letters", DIALECTS["minserve"], key, **more)
        model = ServedModel(("letters",), "root/letters", Characters(), 256, 8192)
        self.server = make_gateway(model, upstream, EngineSettings(), keys)
        self._listener = bind("127.0.0.1", 0, has_keys=keys is not None)
        self.url = url_of(self._listener)
        self._ready = threading.Event()
        self.runner = Runner(create_app(self.server, jobs), self.server, self._ready.set)
        self._thread = threading.Thread(
            target=self.runner.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> Gateway:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_) -> None:
        self.runner.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the gateway does not stop"

    def client(self, key: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def post(self, body: dict, key: str = "") -> httpx.Response:
        with self.client(key) as client:
            return client.post("/v1/completions", json=body)

    def is_idle(self) -> bool:
        load = self.server.engine.service.admission.look(self.server.engine.now_s())
        requests = self.server.client.engine.scheduler
        held = [*requests.running, *requests.waiting]
        return not (self.server.num_open or held or any(load.num_unfinished.values()))


LONG = {"prompt": "hello", "temperature": 0, "max_tokens": 4000}


def test_client_that_leaves_ends_its_request_upstream():
    with Live() as upstream, Gateway(upstream.url) as gateway:
        with (
            gateway.client() as client,
            client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as stream,
        ):
            assert isinstance(next(iterate(stream.iter_lines())), dict)
        wait_for(lambda: upstream.reasons() == ["cancelled"])
        upstream.wait_idle()
        wait_for(gateway.is_idle)


def test_upstream_that_dies_ends_streams_with_an_error_and_then_is_missed():
    with Live(drain_s=0.1) as upstream, Gateway(upstream.url) as gateway:
        with (
            gateway.client() as client,
            client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as stream,
        ):
            events = iterate(stream.iter_lines())
            assert next(events)["choices"][0]["text"]
            upstream.stop()
            *_, error, done = events
        assert done == "[DONE]" and error["error"]["type"] == "server_error"
        assert error["error"]["code"] in ("upstream_failed", "upstream_lost")
        upstream._thread.join(30)
        refused = gateway.post(LONG)
        assert refused.status_code == 503 and float(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "upstream_unavailable"
        with gateway.client() as client:
            wait_for(lambda: client.get("/health").status_code == 503)
        wait_for(gateway.is_idle)


def test_quota_of_a_tenant_holds_at_the_gateway():
    with Live(step_s=0.005) as upstream, Gateway(upstream.url, keys=KEYS) as gateway:
        with (
            gateway.client("bob") as client,
            client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as stream,
        ):
            events = iterate(stream.iter_lines())  # kept: its end would end the stream
            assert next(events)
            refused = gateway.post(LONG, "bob")
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "too_many_requests"
            assert gateway.post(LONG | {"max_tokens": 3}, "ann").json()["usage"][
                "completion_tokens"
            ] == 3  # fmt: skip
        wait_for(gateway.is_idle)
        assert gateway.post(LONG | {"max_tokens": 3}, "bob").status_code == 200


def test_upstream_s_own_refusal_is_passed_on_with_its_time():
    with Live(max_open=0) as upstream, Gateway(upstream.url) as gateway:
        refused = gateway.post(LONG)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "requests are open" in refused.json()["error"]["message"]
        wait_for(gateway.is_idle)


def test_upstream_s_word_on_a_wrong_body_and_on_a_wrong_key():
    with Live(max_model_len=64) as upstream, Gateway(upstream.url) as gateway:
        wrong = gateway.post(LONG)
        assert wrong.status_code == 400
        assert "maximum context length" in wrong.json()["error"]["message"]
    with Live(keys=KEYS) as upstream, Gateway(upstream.url, key="not-one") as gateway:
        wrong = gateway.post(LONG)
        assert wrong.status_code == 502 and wrong.json()["error"]["code"] == "upstream_key"
        assert "not-one" not in wrong.text


def test_upstream_that_says_nothing_is_given_up():
    # A step far longer than the gateway waits: no order of events depends on the clock.
    with Live(step_s=2.0, drain_s=0.1) as upstream, Gateway(upstream.url, stall_s=0.3) as gateway:
        late = gateway.post(LONG)
        assert late.status_code == 504 and late.json()["error"]["code"] == "upstream_timeout"
        wait_for(gateway.is_idle)


def test_chat_becomes_a_job_while_the_upstream_is_away(tmp_path):
    jobs = open_store(f"sqlite:///{tmp_path}/jobs.db")
    listener = bind("127.0.0.1", 0, has_keys=False)
    url = url_of(listener)
    listener.close()
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    with Gateway(url, jobs=jobs) as gateway, gateway.client() as client:
        assert client.post("/v1/chat/completions", json=chat).status_code == 503
        assert jobs.counts().num_open == 0, "nobody asked for a job"
        prefer = {"prefer": "respond-async"}
        assert client.post("/v1/chat/completions", json=chat, headers=prefer).status_code == 202
        assert jobs.counts().num_open == 1
        wait_for(gateway.is_idle)


def test_counts_come_out_right_for_several_choices():
    body = {"prompt": "hello", "n": 2, "max_tokens": 5, "temperature": 1, "stream": True}
    with Live() as upstream, Gateway(upstream.url) as gateway:
        options = {"stream_options": {"include_usage": True}}
        *_, last, done = events_of(gateway.post(body | options))
        assert done == "[DONE]" and last["usage"]["completion_tokens"] == 10


# -- at the start


def test_upstream_is_found_by_what_it_says_of_itself():
    with Live(keys=KEYS) as server:
        upstream, card = find(server.url + "/v1/", "ann")
        assert (upstream.url, upstream.model) == (server.url, "letters")
        assert upstream.dialect.name == "minserve" and card["max_model_len"] == 8192
        with pytest.raises(ConfigError, match="has no model 'other'"):
            find(server.url, "ann", model="other")
        with pytest.raises(ConfigError, match="does not take the gateway's key"):
            find(server.url)
    said = []
    with pytest.raises(ConfigError, match=f"{server.url} cannot be reached"):
        find(server.url, wait_s=0.01, say=said.append)
    assert len(said) == 1 and server.url in said[0]


def test_another_tokenizer_is_found_out():
    class Shifted(Characters):
        def encode(self, text, add_special_tokens=True):
            return [token + 1 for token in super().encode(text)]

    with Live() as server:
        upstream, _ = find(server.url)
        assert check_tokens(upstream, Characters()) is True
        assert check_tokens(upstream, Shifted()) is False
    assert check_tokens(upstream, Characters()) is None, "nobody is there to say"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://u:p@host:1"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError, match="--upstream"):
        find(url)
