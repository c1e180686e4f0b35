"""Lab 4's scoring: the vectors of starters and right ways hold for every hidden seed."""

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.lab4 import FULL, RIGHT, all_submissions, released, solved
from autograder.bank.lab4.wrong import WRONG
from autograder.scoring.lab4 import LAB, subjects
from tests.grading.in_process import opener, run_public, single_faults, vector

SEED = b"student 0"
FAULTS = single_faults(notebooks.source_cells(LAB.name)["lab4-cache"])
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}


def test_each_variant_fails_each_part_in_its_own_way():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEED)[:4]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"leak", "body", "wrong_tokens", "adapter", "mixed", "collision"}
    assert seen >= {"uncomputed", "nothing_left", "evicted", "channel"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_alone_costs_points(name):
    assert vector(LAB, solved(FAULTS[name]), SEED) < FULL


def test_right_caches_pass_and_faulty_ones_fail_the_models_regression_test():
    namespace = dict(subjects.bench())
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab4-regression"], None), namespace)
    test, bench = namespace["test_prefixes"], namespace["bench"]
    for _, right in subjects.SUBJECTS.right:
        test(bench(right))
    for name, (faulty, _) in subjects.SUBJECTS.faulty.items():
        with pytest.raises(AssertionError):
            test(bench(faulty))
            pytest.fail(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_tests_pass_on_every_right_way(name, capsys):
    assert run_public(solved(SOURCES[name])) == {}
    assert "the test passes on your cache" in capsys.readouterr().out


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(released(variant))
    parts = {cell.grade_id for cell in LAB.cells} - {"lab4-regression-check"}
    assert set(errors) == parts


def share(times):
    sent, unsent = times
    return sum(a < b for a in sent for b in unsent) / len(sent) / len(unsent)


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant):
    """A stranger tells by the clock what was sent, and some blocks hold something else."""
    replay = subjects.bench()["replay_monday"]
    source = "".join(cell(released(variant), "lab4-cache")["source"])
    times, wrong = replay(subjects.SUBJECTS.build(source))
    assert share(times["Globex"]) > 0.7 and share(times["colleague"]) > 0.99
    assert "another salt's block" in wrong and len(wrong) >= 2


@pytest.mark.parametrize("name, right", subjects.SUBJECTS.right)
def test_the_replay_of_a_right_cache_is_a_coin_to_strangers_alone(name, right):
    times, wrong = subjects.bench()["replay_monday"](right)
    assert 0.35 < share(times["Globex"]) < 0.65 and share(times["colleague"]) > 0.99
    assert wrong == {}


def test_points_add_up_to_twenty_and_match_the_notebook():
    told = {
        c["id"]: c["metadata"]["nbgrader"].get("points")
        for c in released()["cells"]
        if c["metadata"].get("nbgrader", {}).get("grade")
    }
    assert told == {c.grade_id: c.points for c in LAB.cells} | LAB.manual
    assert LAB.max_points == 20 and LAB.bonus == ("lab4-bonus-check",)


def test_the_bank_has_what_was_asked_for():
    assert len(bank.right_sources(LAB.name)) >= 3
    assert len([row for row in WRONG if row.name.startswith("wrong")]) >= 10
    names = [row.name for row in all_submissions() if row.files() is not None]
    assert len(set(names)) == len(names) and len(RIGHT) >= 5
