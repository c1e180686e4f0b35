from __future__ import annotations

import threading

import numpy as np
import openai
import pytest
from live_server import Live, wait_for

from minserve.reuse.embedding import HashedNgrams
from minserve.scheduling.admission import Admission
from minserve.serving.app import create_app
from minserve.serving.embeddings import Embeddings
from minserve.serving.identity import ApiKey, KeyRing, Quota, hash_of

TEXTS = ["The deposit is 40 EUR.", "Opening hours are 9 to 5.", "x"]


class Counting(HashedNgrams):
    """An embedder that remembers its batches, and fails on request."""

    def __init__(self) -> None:
        super().__init__(64)
        self.batches: list[list[str]] = []

    def embed(self, texts):
        self.batches.append(list(texts))
        if "fail" in texts:
            raise RuntimeError("cannot embed this")
        return super().embed(texts)


class LiveEmbeddings(Live):
    def __init__(self, keys=None, admission=lambda log: None, **settings) -> None:
        super().__init__(keys=keys, admission=admission)
        self.embedder = Counting()
        self.server.embeddings = Embeddings("hashed", self.embedder, len, 100, **settings)
        self.app = create_app(self.server)
        self.runner.config.app = self.app


@pytest.fixture(scope="module")
def server():
    with LiveEmbeddings() as live:
        yield live


def test_openais_client_gets_the_embedders_vectors_in_order(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        for encoding in ("float", openai.NOT_GIVEN):  # the client asks for base64 by itself
            answer = client.embeddings.create(model="hashed", input=TEXTS, encoding_format=encoding)
            got = np.array([item.embedding for item in answer.data], np.float32)
            np.testing.assert_allclose(got, HashedNgrams(64).embed(TEXTS), atol=1e-6)
            assert [item.index for item in answer.data] == [0, 1, 2]
            assert answer.usage.prompt_tokens == sum(map(len, TEXTS))


def test_texts_of_several_clients_share_a_batch():
    with LiveEmbeddings(max_wait_s=30.0, batch_size=4) as live:
        answers = []

        def ask(texts):
            answers.append(live.post("/v1/embeddings", {"input": texts}).status_code)

        threads = [threading.Thread(target=ask, args=(texts,)) for texts in (["a", "b"], ["c"])]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(live.server.embeddings.executor.texts) == 3)
        assert answers == [] and live.embedder.batches == []  # not full: it waits
        ask(["d"])
        for thread in threads:
            thread.join(20)
        assert answers == [200] * 3
        assert [sorted(batch) for batch in live.embedder.batches] == [["a", "b", "c", "d"]]


def test_the_embedders_thread_is_prepared_once_before_it_embeds():
    threads = []
    with LiveEmbeddings(prepare=lambda: threads.append(threading.current_thread())) as live:
        live.embedder.embed = lambda texts: (
            threads.append(threading.current_thread()) or np.zeros((len(texts), 64), np.float32)
        )
        for _ in range(2):
            assert live.post("/v1/embeddings", {"input": "x"}).status_code == 200
        assert threads == [live.server.embeddings.thread._thread] * 3


def test_text_that_fails_does_not_end_the_encoder(server):
    assert server.post("/v1/embeddings", {"input": "fail"}).status_code == 500
    assert server.post("/v1/embeddings", {"input": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [""]}, 400, "input[0]"),
        ({"input": [[1, 2]]}, 400, "input[0]"),
        ({"input": ["x", "x" * 101]}, 400, "input[1]"),
        ({"input": "x", "dimensions": 8}, 400, "dimensions"),
        ({"input": "x", "model": "other"}, 404, "model"),
        ({"input": "x", "tenant": "t"}, 400, "tenant"),
    ],
    ids=str,
)
def test_what_cannot_be_embedded_is_refused(server, body, status, param):
    response = server.post("/v1/embeddings", body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_a_tenants_tokens_are_charged_and_refused_when_they_are_used_up():
    """Of 10 tokens/s a bucket holds 100: what text was charged, embeddings cannot have."""
    keys = KeyRing(
        [
            ApiKey("a", hash_of("A"), "a", "s", quota=Quota(tokens_per_s=10)),
            ApiKey("b", hash_of("B"), "b", "s", quota=Quota(tokens_per_s=10)),
        ]
    )
    with LiveEmbeddings(keys, Admission) as live:
        text = {"prompt": "p" * 60, "max_tokens": 20, "ignore_eos": True}
        assert live.post("/v1/completions", text, "A").status_code == 200
        live.wait_idle()
        refused = live.post("/v1/embeddings", {"input": "x" * 90}, "A")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after-ms"]) > 0 and live.embedder.batches == []
        assert live.post("/v1/embeddings", {"input": "x" * 90}, "B").status_code == 200
        refused = live.post("/v1/embeddings", {"input": ["x" * 40, "x" * 40]}, "B")
        assert refused.json()["error"]["code"] == "rate_limited"


def test_open_embeddings_count_against_the_tenants_concurrency():
    ring = KeyRing([ApiKey("a", hash_of("A"), "a", "s", quota=Quota(max_concurrent=1))])
    with LiveEmbeddings(ring, Admission, max_wait_s=30.0, batch_size=2) as live:
        answers = []
        ask = {"input": "first"}
        thread = threading.Thread(
            target=lambda: answers.append(live.post("/v1/embeddings", ask, "A"))
        )
        thread.start()
        wait_for(lambda: len(live.server.embeddings.executor.texts) == 1)  # it waits for company
        text = {"prompt": "p", "max_tokens": 1000}
        refused = live.post("/v1/completions", text, "A")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        live.server.embeddings._ask("second")  # of nobody: the batch is full
        thread.join(20)
        assert [answer.status_code for answer in answers] == [200]
        assert live.post("/v1/completions", text | {"max_tokens": 2}, "A").status_code == 200
