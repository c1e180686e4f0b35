"""The experiments show what lesson 4 says they show, and could have shown otherwise."""

from __future__ import annotations

import pytest

from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments import lesson4 as lab
from minserve.learn.experiments import lesson4_timing as timing
from minserve.learn.prefix import Caller, LeafFirstCache, cache_salt


def test_the_same_pieces_in_another_order_are_reused_or_not():
    header_first, system_first = (lab.simulate(lab.morning(order)) for order in ("hsq", "shq"))
    assert header_first.num_prompt_tokens == system_first.num_prompt_tokens
    assert header_first.num_reused_tokens == 0
    assert system_first.num_prefilled_tokens < header_first.num_prefilled_tokens / 10
    assert system_first.ttft_s(0.95) < header_first.ttft_s(0.95)


def test_what_is_reused_is_not_computed_and_decode_stays_what_it_was():
    requests = lab.morning("shq", 6)
    without = lab.serve(SimulatedExecutor(1024), requests)
    reusing = lab.serve(SimulatedExecutor(1024), requests, LeafFirstCache)
    saved = without.num_prefilled_tokens - reusing.num_prefilled_tokens
    assert saved == reusing.num_reused_tokens == 5 * 1200
    assert without.num_decoded_tokens == reusing.num_decoded_tokens > 0
    assert without.answers == reusing.answers


@pytest.mark.parametrize("position", [0, 15, 16, 100, 255])
def test_reuse_ends_at_the_block_of_the_first_token_that_differs(position):
    prompt = lab.tokens("prompt", 256)
    two = [lab.ask("a", prompt), lab.ask("b", lab.changed(prompt, position))]
    run = lab.serve(SimulatedExecutor(256), two, LeafFirstCache)
    assert run.requests[1].num_cached_tokens == position // 16 * 16


def test_gaps_between_tokens_are_the_same_cold_and_warm():
    rows = {row[0]: row[1:] for row in lab.long_and_short_answers()}
    for answer in ("20 tokens", "400 tokens"):
        cold, warm = rows[f"{answer}, cold"], rows[f"{answer}, warm"]
        assert cold[1] == warm[1] and float(warm[0]) < float(cold[0]) / 10


def test_hit_rates_in_requests_and_in_tokens_rank_two_services_the_other_way_round():
    greetings, document = lab.simulate(lab.greetings()), lab.simulate(lab.one_document())
    assert greetings.request_hit_rate > 0.9 > 0.05 > greetings.token_hit_rate
    assert document.request_hit_rate < 0.4 < 0.8 < document.token_hit_rate


def test_leaf_first_keeps_nothing_out_of_reach_and_reuses_more_than_plain_lru():
    prompts = lab.documents()
    for num_blocks in (60, 100, 140):
        leaf, plain = (lab.replay(m, prompts, num_blocks) for m in (LeafFirstCache, lab.PlainLru))
        assert leaf.out_of_reach == 0 < plain.out_of_reach
        assert leaf.num_found > plain.num_found


def test_a_salt_hides_from_other_tenants_what_a_shared_cache_shows():
    assert timing.probe(cache_salt, "global").accuracy > 0.9
    assert 0.4 < timing.probe(cache_salt, "tenant").accuracy < 0.6
    colleague = Caller("acme", "carl")
    assert timing.probe(cache_salt, "tenant", attacker=colleague).accuracy > 0.9
    assert 0.4 < timing.probe(cache_salt, "user", attacker=colleague).accuracy < 0.6


def test_wider_scopes_reuse_more():
    scopes = ("user", "tenant", "application", "global")
    rates = [lab.simulate(timing.neighbours(cache_salt, s)).token_hit_rate for s in scopes]
    assert rates == sorted(rates) and rates[0] < rates[1] < rates[2]


def test_a_benchmark_run_twice_is_warm_the_second_time():
    cold, warm = lab.run_twice()
    assert cold[1] == "0%" and float(warm[2]) < float(cold[2]) / 2
