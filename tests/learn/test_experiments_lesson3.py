"""The experiments show what the lesson says they show, and could have shown otherwise."""

from __future__ import annotations

import pytest

from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments import lesson3 as lab
from minserve.learn.experiments import lesson3_overload as rush
from minserve.learn.experiments.common import northstar_requests, words
from minserve.learn.reference import make_room, paged_attention


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path))


def crowd():
    return [words(f"r{n}", 100 + 40 * n, 30) for n in range(10)]


def test_slabs_and_blocks_hold_the_same_memory_and_blocks_hold_more_requests():
    slabs = lab.serve(SimulatedExecutor(6, 1024), crowd())
    blocks = lab.serve(SimulatedExecutor(384, 16), crowd())
    assert slabs.pool_tokens == blocks.pool_tokens
    assert (slabs.peak_running, blocks.peak_running) == (6, 10)
    assert slabs.useful_share < 0.5 < 0.9 < blocks.useful_share
    assert all(resident <= held for resident, held in slabs.steps + blocks.steps)


def test_useful_share_falls_as_blocks_grow():
    rows = lab.block_size_sweep((1, 16, 256, 1024), crowd())
    shares = [float(row[1].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True) and shares[0] > 2 * shares[-1]


def test_cancelled_blocks_come_back_when_the_step_in_flight_has_ended_and_not_before():
    told, _ = lab.cancellation()
    untold, _ = lab.cancellation(cancels=False)
    cancelled = next(m for m in told if m.what == "long ends: cancelled")
    after = told[told.index(cancelled) + 1]
    assert cancelled.blocks_used == told[told.index(cancelled) - 1].blocks_used
    assert after.what.endswith("has ended") and after.blocks_used < cancelled.blocks_used
    assert lab.freed_ms(told, "long") == after.time_ms
    assert lab.freed_ms(told, "long") < lab.freed_ms(untold, "long") / 2
    assert told[-1].blocks_used == untold[-1].blocks_used == 0


def test_overload_policies_differ_as_the_lesson_says():
    reserve, preempt, refuse = (rush.overload(kind) for kind in ("reserve", "preempt", "refuse"))
    assert reserve.num_preemptions == 0 and reserve.kv_used_share < preempt.kv_used_share
    assert preempt.num_preemptions > 0 and preempt.recomputed_tokens > 0
    assert reserve.recomputed_tokens == 0
    assert reserve.num_served == preempt.num_served == preempt.num_asked
    assert refuse.num_served + refuse.num_refused == refuse.num_asked
    assert reserve.attained < preempt.attained < refuse.attained


def test_make_room_of_a_learner_chooses_the_victims():
    asked = []

    def noting(running, num_missing):
        victims = make_room(running, num_missing)
        asked.append((num_missing, victims))
        return victims

    result = rush.overload("preempt", make_room=noting)
    assert result.num_served == result.num_asked
    assert any(missing > 0 and victims for missing, victims in asked)
    assert result.num_preemptions >= sum(len(victims) > 0 for _, victims in asked) > 0


def test_more_users_fill_the_memory_while_compute_stays_idle():
    few, many = rush.dashboard(32), rush.dashboard(64)
    assert many[2] == "100%" and int(many[1].rstrip("%")) < 10
    assert float(many[3]) > 2 * float(few[3])


# -- on the real model


@pytest.fixture(scope="module")
def nano():
    from minserve.execution.torch_executor import TorchExecutor

    return TorchExecutor("nano", num_blocks=64, block_size=16, max_model_len=256)


def test_attention_of_a_learner_runs_in_every_layer_of_the_real_model(nano):
    backend = nano.decoder.attention
    same, difference = lab.compare_attention(nano, paged_attention)
    assert same and difference < 1e-3
    assert nano.decoder.attention is backend


@pytest.mark.parametrize("mistake", ["one token short", "no scale", "another block"])
def test_wrong_attention_is_noticed_on_the_real_model(nano, mistake):
    def wrong(query, keys, values, table, num_context):
        if mistake == "one token short":
            return paged_attention(query, keys, values, table, max(1, num_context - 1))
        if mistake == "no scale":
            return paged_attention(query * query.shape[1] ** 0.5, keys, values, table, num_context)
        return paged_attention(query, keys, values, table[::-1], num_context)

    _, difference = lab.compare_attention(nano, wrong)
    assert difference > 1e-3


def test_preempted_answers_are_the_same_on_the_real_model():
    from minserve.execution.torch_executor import TorchExecutor

    preemptions, same = lab.same_answers_when_preempted(
        lambda num_blocks: TorchExecutor("nano", num_blocks=num_blocks, batch_invariant=True)
    )
    assert preemptions > 0 and same


def test_northstar_requests_are_the_same_for_the_same_seed(nano):
    def lengths(seed):
        requests = northstar_requests(6, nano.tokenizer.encode, seed=seed, max_answer=32)
        return [(r.num_prompt_tokens, r.sampling.max_tokens) for r in requests]

    assert lengths(0) == lengths(0) != lengths(1)
    assert all(answer <= 32 for _, answer in lengths(0))


@pytest.mark.slow
def test_int8_holds_more_requests_in_the_same_bytes_and_loses_no_answer_of_nano():
    plain, int8 = lab.precisions(cache_bytes=9_000_000)
    assert int(plain[1].replace(",", "")) == 6144 and int(int8[1].replace(",", "")) == 1584
    assert int(int8[3]) > 3 * int(plain[3])
    assert plain[4] == int8[4] == "24 of 24"
