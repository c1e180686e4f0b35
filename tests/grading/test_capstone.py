"""The capstone's scoring: the vectors of starters and right ways hold for every hidden seed."""

import json
import random
from importlib import import_module

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.capstone import FULL, released, solved
from autograder.bank.capstone.wrong import WRONG
from autograder.scoring.capstone import LAB
from autograder.scoring.capstone.subjects import SUBJECTS
from autograder.scoring.capstone.world import figures, is_same
from tests.grading.in_process import opener, run_public, single_faults, vector

SEEDS = [f"student {number}".encode() for number in range(3)]
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}
FAULTS = single_faults(notebooks.source_cells(LAB.name)["capstone-calculator"])
EVIDENCE = ("capstone-bench", "capstone-evidence")


def without_evidence(notebook):
    """The notebook without its replay, which takes seconds and grades nothing."""
    notebook["cells"] = [each for each in notebook["cells"] if each["id"] not in EVIDENCE]
    return notebook


def test_each_variant_fails_each_part_in_its_own_way_and_keeps_what_it_has():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEEDS[0])[:5]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"tail", "intended", "late", "attainment", "unqualified", "leaked", "failed"}
    assert seen >= {"twice", "idle", "worse_kind", "shares", "leak", "weaker", "shared", "job"}
    assert seen >= {"replayed", "overload", "unknown", "refused", "slow", "unmeasured", "no_cost"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_alone_costs_points(name):
    assert vector(LAB, solved(FAULTS[name]), SEEDS[0]) < FULL


def test_wrong_ones_score_as_written_for_more_than_one_seed():
    """The selftest plays each of them once, in the sandbox."""
    for submission in WRONG:
        if submission.name.startswith("wrong"):
            notebook = json.loads(next(iter(submission.files().values())))
            told = {vector(LAB, notebook, seed) for seed in SEEDS[:2]}
            assert told == {tuple(map(float, submission.expected))}, submission.name


def test_the_model_agrees_with_the_projects_own_measures():
    """The definitions are minserve's: the same requests through its metrics give these figures."""
    from minserve.events import Finished, TokensProduced
    from minserve.metrics import summarise
    from minserve.request import Request, SamplingParams

    rng, requests, events, records = random.Random(4), [], [], []
    # NOTE: 41 answers: their 95th percentile is a value, however one interpolates.
    for number, outcome in enumerate(["ok"] * 41 + ["error"] * 9 + ["cancelled"] * 5):
        asked_s = rng.uniform(0, 50)
        first_s = asked_s + rng.uniform(0.1, 3)
        ended_s, deadline_s = first_s + rng.uniform(0.1, 3), rng.choice((None, 2.0, 4.0))
        request = Request(
            f"r{number}",
            (1, 2),
            SamplingParams(max_tokens=2),
            arrival_s=asked_s,
            deadline_s=None if deadline_s is None else asked_s + deadline_s,
        )
        reason = "stop" if outcome == "ok" else outcome
        requests.append(request)
        events += [
            TokensProduced(first_s, request.id, (5,)),
            Finished(ended_s, request.id, reason, 1),
        ]
        records.append(
            {
                "id": request.id,
                "task": request.id,
                "class": "interactive",
                "intended_s": asked_s,
                "sent_s": asked_s,
                "first_s": first_s,
                "ended_s": ended_s,
                "deadline_s": deadline_s,
                "outcome": outcome,
                "is_qualified": number % 2 == 0,
                "is_leak": False,
            }
        )
    qualified = {record["id"] for record in records if record["is_qualified"]}
    told = summarise(requests, events, qualified=qualified, price_per_hour=3.0)
    due = figures(records, told.duration_s, 3.0)
    assert told.ttft_p95_s == pytest.approx(due["ttft_p95_s"]["interactive"])
    assert told.deadline_attainment == pytest.approx(due["attainment"]["interactive"])
    assert told.num_qualified == due["qualified"]
    assert told.cost_per_qualified_task == pytest.approx(due["cost_per_qualified"])


@pytest.mark.parametrize(
    "told, due, same",
    [
        (1, 1.0, True),
        (1.001, 1.0, False),
        (10**400, 1.0, False),
        (float("nan"), 1.0, False),
        (True, 1, False),
        (None, None, True),
        ([], [], True),
        (["leak"], ["leak", "quality"], False),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, False),
        ({"not plain": "Near"}, 1.0, False),
    ],
)
def test_values_are_compared_as_plain_ones_of_their_own_types(told, due, same):
    assert is_same(told, due) is same


def test_right_calculators_pass_and_faulty_ones_fail_the_models_regression_test():
    cells = notebooks.source_cells(LAB.name)
    namespace = {}
    exec(cells["capstone-setup"], namespace)
    exec(planting.plant(cells["capstone-regression"], None), namespace)
    test = namespace["test_plan"]
    for _, right in SUBJECTS.right:
        test(right)
    for name, (faulty, _) in SUBJECTS.faulty.items():
        with pytest.raises(AssertionError):
            test(faulty)
            pytest.fail(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_tests_pass_on_every_right_way(name, capsys):
    assert run_public(without_evidence(solved(SOURCES[name]))) == {}
    assert "the test passes on your calculator" in capsys.readouterr().out


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(without_evidence(released(variant)))
    assert set(errors) == {cell.grade_id for cell in LAB.cells} - {"capstone-regression-check"}
    assert all(str(error) for error in errors.values())


def test_the_replay_makes_the_recommended_variant_the_cheapest_that_keeps_every_promise(capsys):
    """And the released calculator comes to another end: the evidence shows the fault."""
    assert run_public(solved()) == {}
    shown = capsys.readouterr().out
    assert "your class recommends: + prefix, exact, jobs" in shown
    assert "one cache for all" in shown and "authorisation, leak" in shown


def test_the_document_asks_for_all_its_headings_and_the_model_answer_has_them():
    sources = notebooks.source_cells(LAB.name)
    template = "".join(cell(solved(), "capstone-document-text")["source"])
    headings = [line.split("*")[1] for line in template.split("\n") if line[:1].isdigit()]
    assert len(headings) == 11
    for heading in headings:
        assert f"**{heading}.**" in sources["capstone-document"], heading
    points = import_module("autograder.scoring.capstone").LAB.manual["capstone-document"]
    assert sources["capstone-document"].count("1 point") == points
