"""Replays: the same work for every policy, judged by its answers. No model is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minserve.cli import choices, replay_rows
from minserve.clock import VirtualClock
from minserve.events import Finished
from minserve.execution.simulated import SimulatedExecutor
from minserve.metrics import summarise
from minserve.northstar.replay import Replay
from minserve.northstar.traffic import at_rate, make_traffic


def encode(text: str) -> list[int]:
    return [sum(word.encode()) for word in text.split()]


@pytest.fixture(scope="module")
def timing():
    return make_traffic("timing", 60, encode, rate_per_s=20.0)


def serve(arrivals, policy="continuous", prefix=True, blocks=1024, **options):
    return replay_rows.serve(
        arrivals,
        SimulatedExecutor(blocks, 16, **options),
        VirtualClock(),
        choices.make_policy(policy, 8),
        prefix=prefix,
    )


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("policy", choices.POLICIES)
def test_every_policy_does_the_same_work(timing, policy, prefix):
    replay = serve(timing, policy, prefix)
    summary = replay.summarise()
    assert summary.num_ok == len(timing)
    assert summary.output_tokens == sum(a.sampling.max_tokens for a in timing)
    assert replay.tokens() == serve(timing).tokens()
    assert (summary.prefix_tokens_reused > 0) == prefix


def test_a_replay_on_the_virtual_clock_repeats_exactly(timing):
    assert serve(timing).summarise() == serve(timing).summarise()


def test_each_replay_starts_with_a_cold_prefix_cache(timing):
    executor = SimulatedExecutor(1024, 16)

    def again():
        policy = choices.make_policy("continuous", 8)
        return replay_rows.serve(timing, executor, VirtualClock(), policy, prefix=True).summarise()

    assert again().prefix_tokens_reused == again().prefix_tokens_reused


def test_no_block_is_shared_between_tenants(timing):
    """Alone, the first request of each tenant finds nothing; with the others too."""
    seen = set()
    replay = serve(timing)
    admitted = {o.request_id: o.num_cached_tokens for o in replay.outcomes()}
    for arrival in sorted(timing, key=lambda a: a.arrival_s):
        if arrival.identity.tenant not in seen:
            seen.add(arrival.identity.tenant)
            assert admitted[arrival.id] == 0


def test_refused_requests_are_reported_and_the_rest_is_served(timing):
    replay = serve(timing, blocks=40)
    summary = replay.summarise()
    assert summary.num_rejected > 0
    assert summary.num_ok + summary.num_rejected == len(timing)
    assert replay.num_finished == len(timing)


def test_continuous_beats_static_on_traffic_of_varied_lengths():
    arrivals = make_traffic("timing", 150, encode, rate_per_s=1.0)
    arrivals = at_rate(arrivals, 1.0, 60.0)
    ours = serve(arrivals, "continuous").summarise()
    theirs = serve(arrivals, "static").summarise()
    assert ours.tokens_per_s > 1.5 * theirs.tokens_per_s
    assert ours.ttft_p95_s < 0.5 * theirs.ttft_p95_s


def test_figures_are_kept_by_kind(timing):
    by_kind = serve(timing).summarise_by_kind()
    assert sum(summary.num_requests for summary in by_kind.values()) == len(timing)
    assert by_kind["report"].e2e_p50_s > by_kind["policy"].e2e_p50_s


class Scripted:
    """A client that answers each request with given token ids, or refuses it."""

    def __init__(self, answers):
        self.answers, self.sent = answers, []

    def send(self, request, listener=lambda event: None):
        self.sent.append((request, listener))

    def cancel(self, request_id):
        raise AssertionError("nobody cancels")

    def run(self):
        from minserve.events import Submitted, TokensProduced

        for request, listen in self.sent:
            tokens = self.answers(request)
            if tokens is None:
                listen(Finished(0.0, request.id, "error", 0, "refused"))
                continue
            listen(Submitted(0.0, request.id, request.num_prompt_tokens, "standard"))
            listen(TokensProduced(1.0, request.id, tokens))
            listen(Finished(1.0, request.id, "stop", len(tokens)))


def test_only_right_answers_that_ended_well_are_qualified():
    arrivals = make_traffic("quality", 20, encode, rate_per_s=1.0)
    right = {a.id: a.question.expected["v1"] for a in arrivals}
    numbers = {a.id: n for n, a in enumerate(arrivals)}

    def answers(request):
        number = numbers[request.id]
        return None if number % 4 == 0 else (number, number % 4)

    def decode(token_ids):
        number, kind = token_ids
        return right[arrivals[number].id] if kind == 1 else "I do not know."

    replay = Replay.of(arrivals)
    client = Scripted(answers)
    replay.run(client, client.run)
    qualified = replay.qualified(decode)
    assert qualified == {a.id for a in arrivals if numbers[a.id] % 4 == 1}
    summary = replay.summarise(1.0, qualified)
    assert (summary.num_qualified, summary.num_rejected) == (5, 5)


def test_progress_is_told_for_every_request(timing):
    told = []
    replay_rows.serve(
        timing,
        SimulatedExecutor(),
        VirtualClock(),
        choices.make_policy("static", 8),
        prefix=False,
        on_finished=told.append,
    )
    assert told == list(range(1, len(timing) + 1))


def test_efficiency_is_told_per_machine_hour_with_how_energy_is_known():
    def row(**figures):
        return replay_rows.Row("continuous", None, True, replace(summarise([], []), **figures))

    say_efficiency = replay_rows.say_efficiency

    told = say_efficiency(row(requests_per_hour=1200.0, qualified_per_hour=900.0))
    assert "1,200 requests and 900 qualified tasks per machine-hour. Energy: not meas" in told
    counted = row(energy_j=50.0, energy_source="RAPL", energy_per_qualified_task_j=2.5)
    assert "2.5 J a qualified task (RAPL)" in say_efficiency(counted)
    assert "qualified tasks not checked" in say_efficiency(row())
