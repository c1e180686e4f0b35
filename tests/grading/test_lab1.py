"""Lab 1's scoring: the vectors of starters and right ways hold for every hidden seed."""

import random

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.lab1 import released, solved
from autograder.scoring.lab1 import LAB
from autograder.scoring.lab1.subjects import SUBJECTS
from autograder.scoring.lab1.world import World, is_same
from tests.grading.in_process import opener, run_public

SEED = b"student 0"
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}


def test_each_variant_fails_each_part_in_its_own_way_and_keeps_what_it_has():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEED)[:4]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"first_token", "last_token", "token_count", "gaps", "single_token"}
    assert seen >= {"averaged", "trimmed", "intended", "failures", "attainment", "rates"}
    assert seen >= {"mixed", "fixed"}


def test_the_model_agrees_with_the_projects_own_measures():
    """The definitions are minserve's: the same records through its tally give the same figures."""
    from minserve.loadtest.measures import Objectives, Tally
    from minserve.loadtest.record import Record

    rng = random.Random(4)
    world = World(None, rng)
    records = [
        world.answer(
            t, rng.uniform(0.3, 1.3), rng.randint(1, 9), per_chunk=3, has_role=True, late_s=0.1
        )
        for t in world.times(41, 20)
    ]
    records += [world.failure("error", 21, 22, 3), world.failure("timeout", 21, 29)]
    due = world.expected(records)["cold"]
    tally = Tally(Objectives(ttft_s=world.ttft_limit_s, tpot_s=world.tpot_limit_s))
    for each in records:
        tokens = [chunk for chunk in each["chunks"] if chunk["num_tokens"]]
        tally.add(
            Record(
                each["id"],
                each["intended_s"],
                each["sent_s"],
                each["ended_s"],
                each["outcome"],
                times_s=[chunk["time_s"] for chunk in tokens],
                counts=[chunk["num_tokens"] for chunk in tokens],
            )
        )
    told = tally.measures()
    for ours, theirs in (("ttft_s", "ttft"), ("e2e_s", "e2e"), ("itl_s", "itl")):
        assert told[f"{theirs}.max"] == pytest.approx(due[ours]["max"])
    assert told["tpot.max"] == pytest.approx(due["tpot_s"]["max"])
    assert told.output_tokens == due["output_tokens"]
    assert told.output_tokens_per_s == pytest.approx(due["output_tokens_per_s"])
    assert told.attainment == pytest.approx(due["attainment"])


@pytest.mark.parametrize(
    "told, due, same",
    [
        (1.0, 1.0, True),
        (1, 1.0, True),
        (1.0 + 1e-9, 1.0, True),
        (1.001, 1.0, False),
        (10**400, 1.0, False),
        (float("nan"), 1.0, False),
        (True, 1, False),
        (1.0, 1, False),
        (True, 1.0, False),
        (None, 0.0, False),
        (None, None, True),
        ({"p50": 1.0}, {"p50": 1.0, "max": 1.0}, False),
        ({"not plain": "Near"}, 1.0, False),
        ([1.0], {"p50": 1.0}, False),
    ],
)
def test_figures_are_compared_as_plain_values_of_their_own_types(told, due, same):
    assert is_same(told, due) is same


def test_right_reports_pass_and_faulty_ones_fail_the_models_regression_test():
    cells = notebooks.source_cells(LAB.name)
    namespace = {}
    exec(cells["lab1-setup"], namespace)
    exec(planting.plant(cells["lab1-regression"], None), namespace)
    test = namespace["test_report"]
    for _, right in SUBJECTS.right:
        test(right)
    for name, (faulty, _) in SUBJECTS.faulty.items():
        with pytest.raises(AssertionError):
            test(faulty)
            pytest.fail(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_tests_pass_on_every_right_way(name, capsys):
    assert run_public(solved(SOURCES[name])) == {}
    assert "the test passes on your report" in capsys.readouterr().out


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(released(variant))
    parts = {cell.grade_id for cell in LAB.cells} - {"lab1-regression-check"}
    assert set(errors) == parts
    assert all(str(error) for error in errors.values())


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_evidence_shows_the_incident_of_every_variant(variant):
    """The true tail is ten times what the report says, or nearly; users and records agree."""
    cells = notebooks.source_cells(LAB.name)
    namespace = {}
    for name in ("lab1-setup", "lab1-bench"):
        exec(cells[name], namespace)
    records, seen = namespace["friday"]()
    waits_s = sorted(wait_s for asked_s, wait_s, outcome in seen if asked_s < 90)
    sad = sum(wait_s > 1 or outcome != "ok" for asked_s, wait_s, outcome in seen if asked_s < 90)
    assert sad / len(waits_s) > 0.2, "every fifth user, as the incident report says"

    def p95_s(report_class):
        return report_class(records, 1.0, 0.2).figures()["cold"]["ttft_s"]["p95"]

    source = "".join(cell(released(variant), "lab1-report")["source"])
    right_s = {round(p95_s(right), 9) for _, right in SUBJECTS.right}
    assert len(right_s) == 1
    assert 3 * p95_s(SUBJECTS.build(source)) < right_s.pop()
