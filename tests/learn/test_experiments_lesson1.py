"""Lesson 1's experiments show what the lesson says, and could have shown otherwise."""

from __future__ import annotations

from statistics import fmean

import pytest

from minserve.learn.experiments import lesson1 as lab
from minserve.learn.parts_of_engine import decode_loop
from minserve.learn.parts_of_load import request_measures
from minserve.learn.reference import roofline


@pytest.fixture(scope="module")
def nano():
    from minserve.execution.torch_executor import TorchExecutor

    return TorchExecutor("nano", num_blocks=64, batch_invariant=True)


def test_loop_over_forward_writes_the_engines_tokens_and_the_right_answer(nano):
    prompts = [lab.question(nano, number)[1] for number in range(2)]
    written = [decode_loop(lab.Forward(nano), p, 24, nano.eos_token_ids) for p in prompts]
    assert written == lab.engine_tokens(nano, prompts, 24)
    assert "718 EUR" in nano.tokenizer.decode(written[0])


def test_forward_in_pieces_gives_the_same_logits_and_counts_what_is_cached(nano):
    prompt = lab.question(nano)[1]
    whole = lab.Forward(nano)(prompt)
    forward = lab.Forward(nano)
    assert forward.num_cached == 0
    forward(prompt[:100])
    pieces = forward(prompt[100:])
    assert (whole == pieces).all() and whole.shape == (nano.config.vocab_size,)
    assert forward.num_cached == forward.num_read == len(prompt)
    assert forward.kv_bytes == len(prompt) * 2 * 6 * 2 * 64 * 4


def test_shapes_of_q_k_v_are_the_configs_and_the_model_is_left_as_it_was(nano):
    before = nano.decoder.attention
    shapes = [shape for _, shape in lab.q_k_v(nano, [5, 6, 7])]
    assert shapes == ["3 x 4 x 64", "3 x 2 x 64", "3 x 2 x 64"]
    assert nano.decoder.attention is before


def test_average_falls_while_long_prompts_starve():
    before, after = lab.noon(short_first=False), lab.noon(short_first=True)
    assert fmean(lab.ttfts_s(after)) < fmean(lab.ttfts_s(before)) / 2
    long_before, long_after = (lab.ttfts_s(run, lab.is_long) for run in (before, after))
    assert fmean(long_after) > 1.5 * fmean(long_before)
    assert len(long_after) < len(after.requests) / 5


@pytest.mark.parametrize("together", [1, 2, 5])
def test_stream_measures_as_the_engine_counts(together):
    for request in lab.three_people().requests:
        measured = request_measures(request.arrival_s, lab.stream(request, together))
        timeline = request.timeline
        assert measured.ttft_s == timeline.ttft_s
        assert measured.e2e_s == timeline.e2e_s
        assert measured.tpot_s == pytest.approx(timeline.tpot_s)
        assert sum(measured.itl_s) == pytest.approx(sum(timeline.itl_s))


def test_littles_law_holds_while_as_many_leave_as_come_and_not_while_it_fills():
    steady = lab.little(lab.crowd(4, num_people=16), 0.0, 10.0, every_s=0.01)
    assert steady.in_system == pytest.approx(steady.rate_per_s * steady.time_s, rel=0.02)
    filling = lab.little(lab.noon(short_first=False), 0.0, 12.0)
    assert filling.in_system < 0.8 * filling.rate_per_s * filling.time_s


def test_work_of_a_step_by_hand():
    matrices = 30 * (576 * (2 * 576 + 2 * 192) + 3 * 576 * 1536) + 49_152 * 576
    flops, moved = lab.work(lab.SMOLLM2, [(1, 1)])
    norms = 30 * 2 * 576 + 576
    assert flops == 2 * (matrices + norms) + 4 * 30 * 576
    assert moved == 2 * (lab.SMOLLM2.num_parameters + 2 * 30 * 192)
    one, eight = lab.work(lab.SMOLLM2, [(1, 512)]), lab.work(lab.SMOLLM2, [(1, 512)] * 8)
    assert eight[0] == 8 * one[0]
    assert eight[1] - one[1] == 7 * 512 * 2 * 2 * 30 * 192


def test_a_chunked_prefill_does_the_same_arithmetic_but_for_logits():
    whole, _ = lab.work(lab.SMOLLM2, [(512, 512)])
    halves, _ = lab.work(lab.SMOLLM2, [(256, 256), (256, 512)])
    assert halves - whole == 2 * 49_152 * 576


def test_decode_is_bound_by_memory_and_prefill_by_compute():
    bounds = {
        name: roofline(*lab.work(lab.SMOLLM2, rows), lab.A100.peak_flops, lab.A100.bytes_per_s)[1]
        for name, rows in lab.STEPS.items()
    }
    assert bounds["decode, 1 person"] == bounds["decode, 64 people"] == "memory"
    assert bounds["prefill, 512 tokens"] == "compute"
