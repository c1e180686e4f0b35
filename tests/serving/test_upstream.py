"""What the gateway makes of engines that are not here: their fields, their streams, their pace."""

from __future__ import annotations

import json

import pytest

from minserve.errors import ConfigError
from minserve.events import Admitted, Finished, Submitted, TokensProduced
from minserve.request import FinishReason, Request, SamplingParams, WorkloadClass
from minserve.service import Ended, Piece, Started
from minserve.serving.errors import ApiError
from minserve.serving.upstream_answer import AnswerReader, UpstreamFailed
from minserve.serving.upstream_dialects import DIALECTS, dialect_of
from minserve.serving.upstream_gateway import SeenRates

# -- what is sent


def request(priority=0, kind=WorkloadClass.STANDARD, **sampling) -> Request:
    return Request(
        "r", (5, 6), SamplingParams(**sampling), priority=priority, workload_class=kind,
        cache_salt="salt-of-a",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["vllm", "sglang", "minserve"])
def test_every_field_is_written_out_so_that_no_default_of_the_engine_s_counts(name):
    body = DIALECTS[name].body(request(temperature=0.5, seed=9), "m")
    assert body["prompt"] == [5, 6] and body["model"] == "m" and body["stream"] is True
    assert (body["temperature"], body["top_p"], body["min_p"], body["seed"]) == (0.5, 1, 0, 9)
    assert (body["repetition_penalty"], body["presence_penalty"], body["n"]) == (1, 0, 1)
    assert body["top_k"] == (0 if name == "minserve" else -1)
    assert body["min_tokens"] == 0 and body["ignore_eos"] is False
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_salts_go_where_each_engine_takes_them():
    asked = request()
    for name in ("vllm", "sglang"):
        assert DIALECTS[name].body(asked, "m")["cache_salt"] == "salt-of-a"
        assert DIALECTS[name].headers(asked) == {}
    # minserve takes no salt from a body, whoever sends it.
    assert "cache_salt" not in DIALECTS["minserve"].body(asked, "m")
    assert DIALECTS["minserve"].headers(asked) == {"x-cache-partition": "salt-of-a"}
    assert [name for name, d in DIALECTS.items() if not d.keeps_apart] == ["openai"]


def test_priorities_point_the_same_way_everywhere():
    urgent = request(priority=3)
    assert DIALECTS["vllm"].body(urgent, "m")["priority"] == -3  # there the lowest goes first
    assert DIALECTS["minserve"].body(urgent, "m")["priority"] == 3
    assert "priority" not in DIALECTS["vllm"].body(request(), "m")  # refused there unless enabled
    assert DIALECTS["minserve"].body(request(kind=WorkloadClass.BATCH), "m")["service_tier"]


@pytest.mark.parametrize(
    "name,field,asked",
    [
        ("openai", "top_k", {"top_k": 5}),
        ("openai", "min_p", {"min_p": 0.1}),
        ("openai", "repetition_penalty", {"repetition_penalty": 1.1}),
        ("openai", "stop_token_ids", {"stop_token_ids": (3,)}),
        ("openai", "ignore_eos", {"ignore_eos": True}),
        ("openai", "priority", {"priority": 1}),
        ("sglang", "priority", {"priority": 1}),
        ("sglang", "logprobs", {"logprobs": 2}),
        ("minserve", "logprobs", {"logprobs": 0}),
    ],
)
def test_what_an_engine_cannot_be_asked_is_refused(name, field, asked):
    with pytest.raises(ApiError, match=field) as caught:
        DIALECTS[name].check(request(**asked))
    assert (caught.value.status, caught.value.param) == (400, field)
    DIALECTS["vllm"].check(request(**asked))  # which can


def test_plain_openai_is_sent_nothing_of_others():
    dialect = DIALECTS["openai"]
    dialect.check(request(stop=("x",), n=2, presence_penalty=0.5))
    body = dialect.body(request(stop=("x",)), "m")
    assert body["stop"] == ["x"] and body["stream_options"] == {"include_usage": True}
    assert not {"top_k", "min_p", "ignore_eos", "cache_salt", "priority"} & set(body)


def test_kind_is_taken_from_the_owner_or_as_told():
    assert dialect_of("auto", "vllm").name == "vllm"
    assert dialect_of("auto", "somebody").name == "openai"
    assert dialect_of("sglang", "somebody").name == "sglang"
    with pytest.raises(ConfigError, match="dialect 'tgi'"):
        dialect_of("tgi", "")


# -- what comes back


def event(text=None, index=0, reason=None, usage=None, logprobs=None, **more) -> bytes:
    choices = [{"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}]
    told = {"choices": [] if text is None else choices, "usage": usage, **more}
    return b"data: " + json.dumps(told, ensure_ascii=False).encode() + b"\n\n"


def usage(completion, cached=None) -> dict:
    details = None if cached is None else {"cached_tokens": cached}
    return {"completion_tokens": completion, "prompt_tokens_details": details}


DONE = b"data: [DONE]\n\n"
STOP = Ended(0, FinishReason.STOP)


def read(data: bytes, size: int | None = None, **sampling) -> list:
    """The outputs of a stream that comes `size` bytes at a time."""
    reader = AnswerReader(SamplingParams(**sampling))
    step = size or len(data) or 1
    outputs = [o for i in range(0, len(data), step) for o in reader.feed(data[i : i + step])]
    return outputs + reader.close()


@pytest.mark.parametrize("size", [1, 7, None])
def test_stream_is_read_however_it_is_cut(size):
    # U+2028 and U+0085 end lines for Python, and not in a stream of events.
    data = b": a comment\n\n" + event("a\u2028b\x85", usage=usage(2, 16))
    data += event("é", usage=usage(3)) + event("", reason="stop", usage=usage(4)) + DONE
    assert read(data, size) == [
        Started(16), Piece(0, "a\u2028b\x85", 2), Piece(0, "é", 1), Piece(0, "", 1), STOP,
    ]  # fmt: skip


def test_counts_without_usage_in_chunks_are_put_right_at_the_end():
    data = event("ab") + event("c", reason="length") + event(usage=usage(5, 32)) + DONE
    assert read(data) == [
        Started(0), Piece(0, "ab", 1), Piece(0, "c", 1),
        Started(32), Piece(0, "", 3), Ended(0, FinishReason.LENGTH),
    ]  # fmt: skip


def test_choices_end_as_they_end_and_the_last_after_the_usage():
    data = event("x", 1, usage=usage(1)) + event("y", 0, "stop", usage(1))
    data += event("z", 1, "length", usage(2)) + event(usage=usage(4)) + DONE
    assert read(data, n=2) == [
        Started(0), Piece(1, "x", 1), Piece(0, "y", 1), STOP, Piece(1, "z", 1),
        Piece(1, "", 1), Ended(1, FinishReason.LENGTH),
    ]  # fmt: skip


def test_logprobs_come_by_token_id():
    told = {
        "tokens": ["token_id:7"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:9": -1.0, "token_id:7": -0.5, "token_id:3": -2.0}],
    }
    outputs = read(event("a", reason="stop", logprobs=told) + DONE, logprobs=2)
    piece = outputs[1]
    assert piece.token_ids == (7,) and piece.num_tokens == 1
    assert piece.logprobs[0].logprob == -0.5
    assert piece.logprobs[0].top == ((7, -0.5), (9, -1.0))


@pytest.mark.parametrize(
    "data,why",
    [
        (event("a"), "broke off"),
        (event("a") + DONE, "broke off"),
        (b"", "broke off"),
        (event("a") + event(error={"message": "out of memory"}), "out of memory"),
        (event("a", reason="abort"), "reason 'abort'"),
        (event("a", index=1), "not an answer"),
        (b"data: nonsense\n\n", "not an answer"),
        (b"data: []\n\n", "not an answer"),
        (b"data: " + b"x" * (1 << 21), "exceeds"),
    ],
)
def test_what_is_no_whole_answer_fails(data, why):
    with pytest.raises(UpstreamFailed, match=why) as caught:
        read(data)
    assert caught.value.why.status == 502


# -- its pace


def test_pace_is_the_best_second_of_late_and_no_less_than_was_said():
    rates = SeenRates(100.0)
    rates.note(Submitted(10.0, "r", 400, "standard"))
    rates.note(Admitted(10.5, "r", 0))
    assert rates.prefill_tokens_per_s == pytest.approx(800)
    for tick in range(40):
        rates.note(TokensProduced(10.5 + tick * 0.05, "r", (0,) * 10))
    assert rates.decode_step_s == pytest.approx(0.005)
    assert rates.tokens_per_s == pytest.approx(600)  # the prompt, and a second's 20 chunks of 10
    rates.note(Finished(12.5, "r", "stop", 400))
    for tick in range(100):  # hours of next to nothing
        rates.note(TokensProduced(1000.0 + 600 * tick, "s", (0,)))
    assert rates.tokens_per_s == 100.0
