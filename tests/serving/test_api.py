"""What goes over the wire, on a model whose answer is known: the alphabet."""

from __future__ import annotations

import json

import httpx
import pytest
from live_server import EOS, Live, events_of, letters

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def stream(live: Live, path: str, body: dict) -> list:
    with live.client() as client, client.stream("POST", path, json={**body, "stream": True}) as got:
        assert got.status_code == 200 and got.headers["content-type"].startswith("text/event-str")
        return events_of(got)


def error_of(response: httpx.Response) -> dict:
    """The error of a response, which has all the fields that clients read and no others."""
    body = response.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and response.headers["x-request-id"]
    return body["error"]


# -- answers


def test_chat_answers_whole(live):
    response = live.post(CHAT, {"model": "letters", "messages": HELLO, "max_tokens": 3})
    body = response.json()
    assert response.status_code == 200 and body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "abc", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    usage = body["usage"]
    assert usage.pop("prompt_tokens_details")["cached_tokens"] in (0, len("u:hi\n") // 16 * 16)
    assert usage == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_chat_stream_is_role_then_text_then_reason_then_done(live):
    *chunks, done = stream(live, CHAT, {"messages": HELLO, "max_tokens": 3})
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1 and "usage" not in chunks[-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == "abc"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


def test_text_stream_carries_text_and_its_reason_last(live):
    *chunks, done = stream(live, TEXT, {"prompt": "hi", "max_tokens": 3})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert done == "[DONE]" and "".join(choice["text"] for choice in choices) == "abc"
    assert [c["finish_reason"] for c in choices][-1] == "length"


@pytest.mark.parametrize(
    ("options", "with_usage", "at_end"),
    [
        (None, 0, False),
        ({}, 0, False),
        ({"include_usage": False}, 0, False),
        ({"include_usage": True}, 1, True),
        ({"continuous_usage_stats": True}, "all", False),
        ({"include_usage": True, "continuous_usage_stats": True}, "all", True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "x"})])
def test_usage_comes_only_when_asked(live, path, prompt, options, with_usage, at_end):
    body = {**prompt, "max_tokens": 4, "stream_options": options}
    *chunks, _ = stream(live, path, body)
    filled = [chunk for chunk in chunks if chunk.get("usage")]
    assert len(filled) == (len(chunks) if with_usage == "all" else with_usage)
    assert (chunks[-1]["choices"] == []) is at_end
    if filled:
        assert filled[-1]["usage"]["completion_tokens"] == 4
        assert "cached_tokens" in filled[-1]["usage"]["prompt_tokens_details"]
        counts = [chunk["usage"]["completion_tokens"] for chunk in filled]
        assert counts == sorted(counts)
    if options and options.get("include_usage") and with_usage != "all":
        assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_cached_tokens_are_counted_on_the_second_time(live):
    body = {"prompt": "a prompt that fills more than two blocks of 16", "max_tokens": 2}
    first, second = (live.post(TEXT, body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 32
    *_, last, _ = stream(live, TEXT, {**body, "stream_options": {"include_usage": True}})
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_batch_of_prompts_keeps_their_order(live):
    prompts = ["one", "two", "three"]
    body = live.post(TEXT, {"prompt": prompts, "max_tokens": 2, "echo": True}).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == ["oneab", "twoab", "threeab"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 11 and body["usage"]["completion_tokens"] == 6


def test_token_ids_are_prompts_too(live):
    for prompt in ([104, 105], [[104, 105]], "hi"):
        body = live.post(TEXT, {"prompt": prompt, "max_tokens": 1, "echo": True}).json()
        assert [choice["text"] for choice in body["choices"]] == ["hia"]
    two = live.post(TEXT, {"prompt": [[104], [105]], "max_tokens": 1, "echo": True}).json()
    assert [choice["text"] for choice in two["choices"]] == ["ha", "ia"]


def test_stream_of_several_prompts_interleaves_and_each_one_ends(live):
    *chunks, _ = stream(live, TEXT, {"prompt": ["x", "y"], "max_tokens": 4})
    texts, reasons = {0: "", 1: ""}, {}
    for choice in (chunk["choices"][0] for chunk in chunks):
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {0: "abcd", 1: "abcd"} and reasons == {0: "length", 1: "length"}


def test_content_may_come_in_parts(live):
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    whole = {"messages": HELLO}
    assert live.post("/tokenize", body).json() == live.post("/tokenize", whole).json()


def test_an_answer_of_openais_client_can_be_sent_back(live):
    echo = {"role": "assistant", "content": "abc", "refusal": None, "annotations": [],
            "audio": None, "function_call": None, "tool_calls": None}  # fmt: skip
    response = live.post(CHAT, {"messages": [*HELLO, echo, *HELLO], "max_tokens": 1})
    assert response.status_code == 200


def test_fields_that_ask_for_nothing_are_as_if_left_out(live):
    nothing = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {},
        "store": False, "best_of": 1, "stop": None, "seed": None, "n": None, "logprobs": None,
        "temperature": None, "user": "me", "metadata": {"a": "b"}, "service_tier": "auto",
        "stream": None, "max_completion_tokens": 2, "suffix": "", "modalities": ["text"],
    }  # fmt: skip
    response = live.post(CHAT, {"messages": HELLO, **nothing})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_limits_a_chat(live, name):
    body = live.post(CHAT, {"messages": HELLO, name: 2}).json()
    assert body["usage"]["completion_tokens"] == 2


def test_defaults_are_16_for_text_and_the_documented_one_for_chat():
    with Live(step_s=0.0, default_max_tokens=30, max_model_len=50) as live:
        text = live.post(TEXT, {"prompt": "x"}).json()
        chat = live.post(CHAT, {"messages": HELLO}).json()
        most = live.post(CHAT, {"messages": [{"role": "user", "content": "x" * 30}]}).json()
        counts = [body["usage"]["completion_tokens"] for body in (text, chat, most)]
        assert counts == [16, 30, 50 - 33]


def test_stop_string_cuts_the_text_and_frees_the_blocks_at_once(live):
    for stop in ("de", ["xx", "de"]):
        before = live.num_steps()
        body = live.post(TEXT, {"prompt": "x", "max_tokens": 2000, "stop": stop}).json()
        assert body["choices"][0]["text"] == "abc"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 5
        live.wait_idle()
        assert live.num_steps() - before == 5
    *chunks, _ = stream(live, TEXT, {"prompt": "x", "max_tokens": 2000, "stop": "de"})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"


def test_end_of_sequence_ends_and_ignore_eos_goes_on():
    def token(row):
        return EOS if row.output_position == 2 else letters(row)

    with Live(step_s=0.0, token=token) as live:
        body = live.post(CHAT, {"messages": HELLO, "max_tokens": 5}).json()
        assert body["choices"][0]["message"]["content"] == "ab"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 3
        body = live.post(CHAT, {"messages": HELLO, "max_tokens": 5, "ignore_eos": True}).json()
        assert body["choices"][0]["message"]["content"] == "abde"
        assert body["choices"][0]["finish_reason"] == "length"
        body = live.post(CHAT, {"messages": HELLO, "max_tokens": 5, "stop_token_ids": [97]}).json()
        assert body["choices"][0]["message"]["content"] == ""
        assert body["choices"][0]["finish_reason"] == "stop"


def test_first_token_that_ends_everything_still_makes_a_whole_stream():
    with Live(step_s=0.0, token=lambda row: EOS) as live:
        *chunks, done = stream(live, CHAT, {"messages": HELLO})
        assert [c["choices"][0]["delta"] for c in chunks] == [
            {"role": "assistant", "content": ""},
            {},
        ]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop" and done == "[DONE]"


def test_half_characters_never_leave():
    text = "né 日本 🎉".encode()

    def decode(token_ids):
        return bytes(token_ids).decode("utf-8", "replace")

    with Live(step_s=0.0, token=lambda row: text[row.output_position]) as live:
        tokenizer = live.server.model.tokenizer
        tokenizer.decode = lambda ids, skip_special_tokens=True: decode(ids)
        tokenizer.token_bytes = lambda token_id: bytes([token_id])
        *chunks, _ = stream(live, TEXT, {"prompt": "x", "max_tokens": len(text)})
        pieces = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(pieces) == text.decode() and not any("\ufffd" in p for p in pieces)


# -- refusals


WRONG = [
    ({}, "messages", "missing_field"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_field"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
        "invalid_value",
    ),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools", "unsupported_field"),
    (
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        "response_format",
        "unsupported_field",
    ),
    ({"messages": HELLO, "logit_bias": {"5": 1}}, "logit_bias", "unsupported_field"),
    ({"messages": HELLO, "guided_json": {}}, "guided_json", "unknown_field"),
    ({"messages": HELLO, "temperature": -1}, "temperature", "invalid_value"),
    ({"messages": HELLO, "temperature": "1"}, "temperature", "invalid_value"),
    ({"messages": HELLO, "top_p": 0}, "top_p", "invalid_value"),
    ({"messages": HELLO, "n": 0}, "n", "invalid_value"),
    ({"messages": HELLO, "n": 1000}, "n", "invalid_value"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"messages": HELLO, "max_tokens": True}, "max_tokens", "invalid_value"),
    ({"messages": HELLO, "max_tokens": 1.5}, "max_tokens", "invalid_value"),
    ({"messages": HELLO, "seed": 2**70}, "seed", "invalid_value"),
    ({"messages": HELLO, "stop": ""}, "stop", "invalid_value"),
    ({"messages": HELLO, "stop": ["a", 5]}, "stop[1]", "invalid_value"),
    ({"messages": HELLO, "stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "unsupported_field"),
    ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"messages": HELLO, "stream_options": {}}, "stream_options", "unsupported_field"),
    ({"messages": HELLO, "min_tokens": 5, "max_tokens": 4}, "min_tokens", None),
    ({"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", None),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG, ids=lambda value: str(value)[-60:])
def test_wrong_body_is_400_and_names_the_field(live, body, param, code):
    response = live.post(CHAT, body)
    error = error_of(response)
    assert response.status_code == 400 and error["param"] == param
    assert code is None or error["code"] == code
    assert error["type"] == "invalid_request_error" and param.split("[")[0] in error["message"]


@pytest.mark.parametrize(
    "name", ["tenant", "cache_salt", "subject", "roles", "workload_class", "prompt_cache_key"]
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "x"})])
def test_body_that_says_who_it_is_from_is_refused(live, name, path, body):
    response = live.post(path, {**body, name: "kestrel"})
    error = error_of(response)
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("identity_in_body", name)


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [1, "a"], [True], [-1], [256], {"a": 1}])
def test_wrong_prompt_is_refused(live, prompt):
    response = live.post(TEXT, {"prompt": prompt})
    assert response.status_code == 400 and error_of(response)["param"] == "prompt"


def test_too_much_for_the_context_is_refused_and_says_how_much(live):
    response = live.post(TEXT, {"prompt": "x" * 9000, "max_tokens": 1})
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "8192" in error["message"] and "9000" in error["message"]
    response = live.post(TEXT, {"prompt": "x", "max_tokens": 8192})
    assert error_of(response)["param"] == "max_tokens"


@pytest.mark.parametrize("name", ["gpt-4", "", "LETTERS"])
def test_other_models_are_not_found(live, name):
    response = live.post(CHAT, {"model": name, "messages": HELLO})
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"messages": NaN}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"prompt": "\\ud800"}', "application/json"),
        (b'{"\\udfff": 1}', "application/json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "application/json"),
        (b'{"prompt": "x"}', "text/plain"),
        (b"prompt=x", "application/x-www-form-urlencoded"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_body_that_is_no_json_object_is_400(live, content, kind):
    with live.client() as client:
        response = client.post(TEXT, content=content, headers={"content-type": kind})
    assert response.status_code == 400
    error_of(response)


def test_paths_and_methods_that_are_not_there_have_the_same_shape(live):
    assert error_of(live.get("/v2/nothing")) and live.get("/v2/nothing").status_code == 404
    assert live.get(CHAT).status_code == 405 and error_of(live.get(CHAT))
    assert live.post("/v1/models", {}).status_code == 405
    assert live.get("/v1/models/gpt-4").status_code == 404


@pytest.mark.parametrize("is_chunked", [False, True])
def test_body_beyond_the_limit_is_413(is_chunked):
    with Live(max_body_bytes=1000) as live, live.client() as client:
        content = json.dumps({"prompt": "x" * 2000}).encode()
        chunks = iter([content[:900], content[900:]]) if is_chunked else content
        response = client.post(TEXT, content=chunks, headers={"content-type": "application/json"})
        assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
        assert live.post(TEXT, {"prompt": "x"}).status_code == 200


def test_body_that_does_not_arrive_is_408():
    with Live(body_s=0.1) as live:
        connection = live.connect({})
        first = b""
        while b"}}" not in first:  # headers and body may come apart
            first += connection.recv(4096)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
        connection.sendall(head)
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        connection.close()


# -- headers and neighbours


def test_request_id_comes_back_and_a_bad_one_is_replaced(live):
    assert live.get("/version", **{"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("", "x" * 200, "a b"):
        got = live.get("/version", **{"x-request-id": bad}).headers["x-request-id"]
        assert got != bad and got.startswith("req-")
    assert live.post(CHAT, {}, x_request_id="mine-2").headers["x-request-id"] == "mine-2"


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "99999999999", "٣"])
def test_deadline_that_is_none_is_refused(live, value):
    headers = {"x-deadline-ms": value.encode()}
    with live.client() as client:
        response = client.post(TEXT, json={"prompt": "x"}, headers=headers)
    assert response.status_code == 400 and error_of(response)["param"] == "x-deadline-ms"


def test_model_says_its_root_and_length(live):
    listed = live.get("/v1/models").json()
    assert listed["object"] == "list" and len(listed["data"]) == 1
    card = listed["data"][0]
    assert (card["id"], card["root"], card["max_model_len"]) == ("letters", "root/letters", 8192)
    assert live.get("/v1/models/letters").json() == card
    assert live.get("/v1/models/alias").json()["id"] == "alias"


def test_tokenize_and_detokenize_are_each_others_inverse(live):
    body = live.post("/tokenize", {"prompt": "hello"}).json()
    assert body == {"count": 5, "max_model_len": 8192, "tokens": [104, 101, 108, 108, 111]}
    assert live.post("/detokenize", {"tokens": body["tokens"]}).json() == {"prompt": "hello"}
    assert live.post("/detokenize", {"tokens": [256]}).status_code == 400
    assert live.post("/tokenize", {}).status_code == 400
    assert live.post("/tokenize", {"prompt": "x", "messages": HELLO}).status_code == 400


def test_state_is_told(live):
    assert live.get("/health").json() == {"status": "ok", "load": "normal"}
    assert live.get("/ready").json() == {"status": "ready"}
    assert live.get("/version").json()["version"]
    assert live.get("/openapi.json").json()["paths"].keys() >= {CHAT, TEXT, "/tokenize"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", "[::2]:80"])
def test_without_keys_only_this_machines_names_are_served(live, host):
    response = live.get("/v1/models", host=host)
    assert (response.status_code, error_of(response)["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8", "[::1]"])
def test_without_keys_this_machines_names_are_served(live, host):
    assert live.get("/v1/models", host=host).status_code == 200
