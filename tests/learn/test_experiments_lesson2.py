"""Lesson 2's experiments show what the lesson says they show, and could have shown otherwise."""

from __future__ import annotations

import pytest

from minserve.errors import ConfigError
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments import lesson2 as lab
from minserve.learn.experiments import lesson2_guessing as guessing
from minserve.learn.experiments.common import words
from minserve.learn.parts_of_engine import engine_step, ordering
from minserve.learn.policies import PolicyPart
from minserve.learn.widgets.batching import batch_explorer, batch_picture
from minserve.scheduling.batching import ContinuousBatching, StaticBatching
from minserve.scheduling.compatibility import anyone, same_adapter, same_tenant


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path))


def reference(name, **settings):
    return lab.policy(name, mine=False, **settings)


def test_short_answers_wait_behind_a_long_one_only_in_groups():
    groups = lab.simulate(reference("static_batching", batch_size=4), lab.lunch_hour())
    settings = {"token_budget": 512, "max_running": 4}
    places = lab.simulate(reference("continuous_batching", **settings), lab.lunch_hour())
    hal = [run.requests[-1].timeline.e2e_s for run in (groups, places)]
    assert hal[0] > 4 * hal[1]
    assert groups.span_s == pytest.approx(places.span_s, rel=0.1)


@pytest.mark.parametrize(
    ("part", "engines_own"),
    [
        (reference("static_batching", batch_size=8), StaticBatching(8)),
        (
            reference("continuous_batching", token_budget=256, max_running=8),
            ContinuousBatching(token_budget=256, max_running=8, max_bypasses=0),
        ),
    ],
)
def test_a_function_of_a_lesson_runs_the_engine_step_for_step_as_the_engines_own(part, engines_own):
    traffic = lab.chat_traffic(40)
    assert lab.simulate(part, traffic).events == lab.simulate(engines_own, traffic).events


def test_larger_budgets_trade_gaps_for_first_tokens():
    bursts = [
        lab.long_prompts(reference("continuous_batching", token_budget=b, max_running=64))
        for b in (8192, 512, 128)
    ]
    gaps, firsts = [b.longest_gap_ms for b in bursts], [b.long_ttft_s for b in bursts]
    assert gaps == sorted(gaps, reverse=True) and firsts == sorted(firsts)


def test_a_bounded_wait_fills_passes_and_costs_latency():
    runs = [
        lab.simulate(
            reference("dynamic_batching", batch_size=16, max_wait_s=wait_s),
            lab.embedding_traffic(),
            cost=lab.EMBEDDER,
        )
        for wait_s in (0.0, 0.05)
    ]
    assert len(runs[1].steps) < len(runs[0].steps) / 2
    assert runs[0].e2e_s(0.95) < runs[1].e2e_s(0.95) < runs[0].e2e_s(0.95) + 0.05 + 0.05


def test_adapters_that_cannot_share_a_step_halve_the_batch():
    policy = reference("continuous_batching", token_budget=512, max_running=8)
    mixed, apart = (
        lab.simulate(policy, lab.two_models(), compatible=rule) for rule in (anyone, same_adapter)
    )
    assert (mixed.mean_rows, apart.mean_rows) == (6.0, 3.0)


def test_an_installed_ordering_changes_who_goes_first():
    policy = reference("continuous_batching", token_budget=512, max_running=1)
    before, after = (
        lab.places(lab.simulate(policy, lab.busy_desk(), order=order)) for order in (None, ordering)
    )
    assert before["r12"] == 13 and [after[r] for r in ("r12", "r18", "r15")] == [2, 3, 4]


def test_the_engine_runs_on_nothing_but_a_step_function():
    requests = [words(f"r{n}", 30, 5 + n) for n in range(4)]
    run = lab.serve_with_step(engine_step, SimulatedExecutor(), requests)
    assert [r.num_output_tokens for r in run.requests] == [5, 6, 7, 8]
    idle = lab.serve_with_step(lambda *args: False, SimulatedExecutor(), requests)
    assert [r.num_output_tokens for r in idle.requests] == [0] * 4


@pytest.mark.parametrize("answer", [None, 3, ["a"], [("a", 1)]])
def test_an_answer_that_is_none_is_refused_in_words(answer):
    with pytest.raises(ConfigError, match="the policy (answers|runs)"):
        lab.simulate(PolicyPart(lambda view: answer), [words("a", 10, 2)])


def test_keeping_companies_apart_as_well_makes_batches_smaller_still():
    policy = reference("continuous_batching", token_budget=512, max_running=8)

    def same_both(a, b):
        return same_adapter(a, b) and same_tenant(a, b)

    run = lab.simulate(policy, lab.two_models(), compatible=same_both)
    assert run.mean_rows == 1.5


def test_good_guesses_help_everybody_and_bad_ones_harm_a_crowd_that_has_no_rule():
    def gaps(people, acceptance):
        return [float(cell) for cell in guessing.crowd(people, acceptance)[1:]]

    plain, always, ruled = gaps(1, 0.8)
    assert always < plain / 2 and ruled == always
    plain, always, ruled = gaps(128, 0.3)
    assert always > 1.2 * plain and ruled < 1.1 * plain


def test_the_lunch_hour_can_be_played_with():
    shown = batch_explorer()
    *_, view = shown.widget.children
    before = view.value
    shown.widget.children[0].value = "continuous"
    assert view.value != before and "people in a step" in view.value
    assert "Timeline of engine steps" in batch_picture("dynamic", places=8, report=40).alt
