"""The reader of streams: scripted bytes at scripted times, every figure exact (cases 11 and 12)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.loadtest import openai
from minserve.loadtest.datasets import Sample
from minserve.loadtest.mock_server import DONE, Chunk
from minserve.loadtest.record import ERROR, OK, REJECTED, Record
from minserve.request import SamplingParams

ROLE, END = Chunk(role="assistant", text=""), Chunk(text="", finish="stop")


def read(*events, is_chat=True, status=200) -> Record:
    """What the reader makes of (time, chunk or bytes) pairs."""
    record = Record("r", intended_s=0.0, sent_s=0.0)
    reader, now_s = openai.AnswerReader(record), 0.0
    for now_s, event in events:
        reader.feed(event if isinstance(event, bytes) else event.event(is_chat), now_s)
    reader.finish(status, now_s)
    return record


def test_role_and_empty_chunks_are_not_first_tokens():
    it = read((0.1, ROLE), (0.2, Chunk(text="")), (1.0, Chunk("a")), (1.5, Chunk("b")), (1.6, END))
    assert (it.outcome, it.ttft_s, it.e2e_s, it.counts) == (OK, 1.0, 1.5, [1, 1])
    assert it.gaps_s().tolist() == [0.5]


def test_late_usage_and_done_do_not_extend_the_latency():
    it = read(
        (1, Chunk("a")), (2, Chunk("b", finish="stop")), (9, Chunk(usage=(3, 2))), (9.5, DONE)
    )
    assert (it.e2e_s, it.tpot_s, it.ended_s) == (2, 1.0, 9.5)
    assert (it.num_prompt_tokens, it.num_output_tokens, it.count_source) == (3, 2, "usage")


def test_chunk_of_several_tokens_counts_them_where_each_chunk_has_its_usage():
    it = read(
        (1, Chunk("ab", usage=(5, 2))),
        (2, Chunk("cde", usage=(5, 5), finish="length")),
        (3, Chunk(usage=(5, 5))),
        (3, DONE),
    )
    assert it.counts == [2, 3] and it.gaps_s().tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert it.tpot_s == 1 / 4


def test_token_without_text_still_counts_where_usage_says_so():
    # Half of a character: the text comes with the next token.
    it = read((1, Chunk("", usage=(5, 1))), (2, Chunk("é", usage=(5, 2), finish="stop")), (2, DONE))
    assert (it.ttft_s, it.counts) == (1, [1, 1])


def test_usage_at_the_end_is_spread_over_chunks_by_their_text():
    it = read((1, Chunk("a")), (2, Chunk("bcdef")), (2, END), (2, Chunk(usage=(1, 4))), (2, DONE))
    assert it.counts == [1, 3] and "spread" in it.count_source
    assert it.tpot_s == 1 / 3


def test_without_usage_chunks_are_counted_and_the_report_can_say_so():
    it = read((1, Chunk("a")), (2, Chunk("b")), (2, END), (2, DONE))
    assert it.counts == [1, 1] and it.num_output_tokens is None
    assert "no usage" in it.count_source


def test_error_in_the_stream_is_an_error_and_not_a_short_answer():
    it = read((1, Chunk("a")), (2, Chunk(error="out of memory")), (2, DONE))
    assert (it.outcome, it.error) == (ERROR, "out of memory")


def test_stream_that_breaks_off_is_an_error():
    it = read((1, Chunk("a")), (2, Chunk("b")))
    assert it.outcome == ERROR and "broke off" in it.error


@pytest.mark.parametrize(("status", "outcome"), [(429, REJECTED), (503, REJECTED), (500, ERROR)])
def test_rejections_are_told_from_errors(status, outcome):
    it = read((1, b'{"error":\n "busy"}'), status=status)
    assert it.outcome == outcome and "busy" in it.error and it.ttft_s is None


def test_answer_that_is_not_streamed_is_one_chunk_of_all_its_tokens():
    content = {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}]}
    content["usage"] = {"prompt_tokens": 4, "completion_tokens": 3}
    it = read((2, json.dumps(content, indent=1).encode()))
    assert (it.outcome, it.counts, it.ttft_s) == (OK, [3], 2)


def test_nonsense_is_an_error_with_its_beginning():
    it = read((1, b"data: {nonsense\n\n"))
    assert it.outcome == ERROR and "nonsense" in it.error


@small(60)
@given(cuts=st.lists(st.integers(1, 400), max_size=12), is_chat=st.booleans())
def test_bytes_may_be_cut_anywhere(cuts, is_chat):
    chunks = [ROLE, Chunk("äb"), Chunk("c", finish="stop"), Chunk(usage=(2, 2))]
    stream = b"".join(chunk.event(is_chat) for chunk in chunks) + DONE
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parts = [stream[a:b] for a, b in zip(places, places[1:], strict=False)]
    it = read(*[(float(n), part) for n, part in enumerate(parts)], is_chat=is_chat)
    assert (it.outcome, it.counts) == (OK, [1, 1])


@given(total=st.integers(0, 60), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12))
def test_spread_tokens_add_up_and_leave_no_chunk_out_if_there_are_enough(total, sizes):
    counts = openai.spread(total, sizes)
    assert sum(counts) == total and len(counts) == len(sizes) and min(counts) >= 0
    assert total < len(sizes) or min(counts) >= 1


def test_bodies_ask_for_usage_and_never_name_a_tenant():
    sample = Sample("hello", sampling=SamplingParams(max_tokens=5, ignore_eos=True))
    chat = json.loads(openai.body(sample, "m", openai.CHAT))
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert chat["stream_options"]["include_usage"] and chat["ignore_eos"] is True
    plain = json.loads(openai.body(Sample(token_ids=(1, 2)), "m", chunk_usage=False))
    assert plain["prompt"] == [1, 2] and plain["stream_options"] == {"include_usage": True}
    assert not {"user", "tenant", "cache_salt"} & {*chat, *plain}
