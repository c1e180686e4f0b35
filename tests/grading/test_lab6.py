"""Lab 6's scoring: the vectors of starters and right ways hold for every hidden seed."""

import random

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.lab6 import FULL, RIGHT, all_submissions, released, solved
from autograder.bank.lab6.wrong import WRONG
from autograder.harness import ChildMisbehaved, RemoteError
from autograder.scoring.lab6 import LAB, subjects
from autograder.scoring.lab6.world import World, draw
from tests.grading.in_process import opener, run_public, single_faults, vector

SEEDS = [f"student {number}".encode() for number in range(3)]
FAULTS = single_faults(notebooks.source_cells(LAB.name)["lab6-queue"])
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}
REPLAY = subjects.namespace()["replay_weekend"]


def test_each_variant_fails_each_part_in_its_own_way():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEEDS[0])[:4]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"paid_twice", "half", "key_forgotten", "lost", "unpaid", "other_body"}
    assert seen >= {"redelivered", "stuck", "zombie", "never_dead", "miscounted"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_alone_costs_points(name):
    assert vector(LAB, solved(FAULTS[name]), SEEDS[0]) < FULL


WRONG_QUEUES = [row for row in WRONG if row.name.startswith("wrong")]


@pytest.mark.slow
@pytest.mark.parametrize("row", WRONG_QUEUES, ids=lambda row: row.name)
def test_a_wrong_queue_is_found_out_whatever_the_seed(row):
    """No hidden draw lets it pass: its vector is the one written by hand, for other seeds too."""
    (name,) = row.files()
    notebook = notebooks.parse(row.files()[name].decode(), name)
    assert {vector(LAB, notebook, seed) for seed in SEEDS[:3]} == {tuple(map(float, row.expected))}


def test_right_queues_pass_and_faulty_ones_fail_the_models_regression_test():
    namespace = dict(subjects.namespace())
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab6-regression"], None), namespace)
    test, bench = namespace["test_delivery"], namespace["bench"]
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
    assert "the test passes on your queue" in shown
    assert not any(what in shown for what in ("paid twice", "never paid", "again and again"))


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant(variant):
    parts = {cell.grade_id for cell in LAB.cells} - {"lab6-regression-check"}
    assert set(run_public(released(variant))) == parts


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant):
    source = "".join(cell(released(variant), "lab6-queue")["source"])
    accepted, attempts, wrong = REPLAY(subjects.SUBJECTS.build(source))
    assert {"paid twice", "accepted, never paid"} <= set(wrong)
    assert len(accepted) > 80 and len(attempts) > 80


@pytest.mark.parametrize("seed", range(8))
def test_the_replay_of_a_right_queue_has_nothing_wrong(seed):
    right = dict(subjects.SUBJECTS.right)["right_objects"]
    accepted, attempts, wrong = REPLAY(right, seed=seed)
    assert wrong == {} and len(accepted) > 80 and len(attempts) > len(accepted)


class Unused:
    """A session that is only asked to make the queue."""

    names = frozenset()

    def new(self, class_name, args, serve):
        pass


@pytest.mark.parametrize(
    "writes",
    [
        None,
        [["jobs", "x"]],
        [[1, "x", {}]],
        [["jobs", None, {}]],
        {"jobs": {}},
        [["ledger", "x", None]],
        [["jobs", "x", "z" * 3_000_000]],
    ],
)
def test_the_store_refuses_what_is_no_commit_and_stays_as_it_was(writes):
    world = World(Unused(), draw(random.Random(1)))
    with pytest.raises(RemoteError):
        world.serve("store", "commit", [writes])
    assert world.store.tables == {}
    for name, method, args in (("bank", "get", ["a", "b"]), ("store", "get", ["a"])):
        with pytest.raises(ChildMisbehaved):
            world.serve(name, method, args)


def test_points_add_up_to_twenty_and_match_the_notebook():
    told = {
        c["id"]: c["metadata"]["nbgrader"].get("points")
        for c in released()["cells"]
        if c["metadata"].get("nbgrader", {}).get("grade")
    }
    assert told == {c.grade_id: c.points for c in LAB.cells} | LAB.manual
    assert LAB.max_points == 20 and LAB.bonus == ("lab6-bonus-check",)


def test_the_bank_has_what_was_asked_for():
    assert len(bank.right_sources(LAB.name)) >= 3
    assert len([row for row in WRONG if row.name.startswith("wrong")]) >= 10
    names = [row.name for row in all_submissions() if row.files() is not None]
    assert len(set(names)) == len(names) and len(RIGHT) >= 5
