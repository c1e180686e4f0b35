"""Lab 5's scoring: the vectors of starters and right ways hold for every hidden seed."""

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.lab5 import FULL, RIGHT, all_submissions, released, solved
from autograder.bank.lab5.wrong import WRONG
from autograder.scoring.lab5 import LAB, subjects
from tests.grading.in_process import opener, run_public, single_faults, vector

SEED = b"student 0"
FAULTS = single_faults(notebooks.source_cells(LAB.name)["lab5-cache"])
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}


def test_each_variant_fails_each_part_in_its_own_way():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEED)[:4]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"other_tenant", "other_user", "fields_merge", "types_merge", "text_merge"}
    assert seen >= {"stale_time", "stale_policy", "stale_source", "left_behind", "incomplete"}
    assert seen >= {"acts", "opposite", "unsure", "model_failed"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_alone_costs_points(name):
    assert vector(LAB, solved(FAULTS[name]), SEED) < FULL


def test_right_caches_pass_and_faulty_ones_fail_the_models_regression_test():
    namespace = dict(subjects.bench())
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab5-regression"], None), namespace)
    test, bench = namespace["test_reuse"], namespace["bench"]
    for _, right in subjects.SUBJECTS.right:
        test(bench(right))
    for name, (faulty, _) in subjects.SUBJECTS.faulty.items():
        with pytest.raises(AssertionError):
            test(bench(faulty))
            pytest.fail(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_tests_pass_on_every_right_way(name, capsys):
    assert run_public(solved(SOURCES[name])) == {}
    shown = capsys.readouterr().out
    assert "the test passes on your cache" in shown
    assert "thresholds on similarity alone: {}" in shown, "the opposite is always the nearest"


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(released(variant))
    parts = {cell.grade_id for cell in LAB.cells} - {"lab5-regression-check"}
    assert set(errors) == parts


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant):
    """A splendid hit rate, and wrong answers of several kinds: as the report says."""
    replay = subjects.bench()["replay_friday"]
    source = "".join(cell(released(variant), "lab5-cache")["source"])
    asked, served, wrong = replay(subjects.SUBJECTS.build(source))
    assert served / asked > 0.7 and len(wrong) >= 4
    assert {"not what was asked", "not complete"} <= set(wrong)


@pytest.mark.parametrize("name, right", subjects.SUBJECTS.right)
def test_the_replay_of_a_right_cache_has_nothing_wrong_and_still_hits(name, right):
    asked, served, wrong = subjects.bench()["replay_friday"](right)
    assert wrong == {} and served / asked > 0.3


def test_points_add_up_to_twenty_and_match_the_notebook():
    told = {
        c["id"]: c["metadata"]["nbgrader"].get("points")
        for c in released()["cells"]
        if c["metadata"].get("nbgrader", {}).get("grade")
    }
    assert told == {c.grade_id: c.points for c in LAB.cells} | LAB.manual
    assert LAB.max_points == 20 and LAB.bonus == ("lab5-bonus-check",)


def test_the_bank_has_what_was_asked_for():
    assert len(bank.right_sources(LAB.name)) >= 3
    assert len([row for row in WRONG if row.name.startswith("wrong")]) >= 10
    names = [row.name for row in all_submissions() if row.files() is not None]
    assert len(set(names)) == len(names) and len(RIGHT) >= 5
