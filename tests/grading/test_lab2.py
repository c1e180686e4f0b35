"""Lab 2's scoring: the vectors of starters and right ways hold for every hidden seed."""

import pytest

from autograder import bank, notebooks, planting
from autograder.bank.base import cell
from autograder.bank.lab2 import released, solved
from autograder.scoring.lab2 import LAB, World
from autograder.scoring.lab2.subjects import SUBJECTS
from tests.grading.in_process import Local, opener, run_public

SEED = b"student 0"
SOURCES = {"the solution": None, **bank.right_sources(LAB.name)}


def planner(variant):
    source = notebooks.source_cells(LAB.name)["lab2-planner"]
    return SUBJECTS.build(planting.plant(source, variant))


def test_each_variant_fails_each_part_in_its_own_way_and_keeps_what_it_has():
    kinds = {}
    for variant in LAB.variants:
        cells = LAB.score(opener(LAB, released(variant)), SEED)[:4]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for failed in kinds.values() for each in failed for kind in each}
    assert seen >= {"gap", "left_out", "overspent", "idle", "blocked", "starved"}
    assert seen >= {"victim_runs", "victims"}


def world_of(planner_class, num_blocks):
    local = Local({"StepPlanner": planner_class})
    return World(local, 48, 20, 3, block_size=8, num_blocks=num_blocks)


def test_the_world_computes_each_token_once_or_again_after_its_owner_was_put_out():
    world, computed = world_of(planner(None), 12), {}
    commit = world._commit

    def counted(ref, num_tokens):
        computed[ref.id] = computed.get(ref.id, 0) + num_tokens
        commit(ref, num_tokens)

    world._commit = counted
    for index, (prompt, answer) in enumerate([(24, 20), (22, 9), (24, 30), (23, 2)]):
        world.submit(f"r{index}", prompt, answer)
    world.drain(200)
    assert world.found == [] and world.num_free == 12
    needed = {ref.id: ref.prompt + ref.output - 1 for ref in world.refs.values()}
    assert all(ref.is_done for ref in world.refs.values())
    assert computed["r0"] == needed["r0"], "the oldest is never put out"
    assert sum(computed.values()) > sum(needed.values()), "others are, and do it again"


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"rows": []},
        [[], [], []],
        [[["r", 1.0]], []],
        [[["r", True]], []],
        [[["r", 9]], []],
    ],
)
def test_an_answer_of_another_shape_is_no_plan(told):
    class Odd:
        def __init__(self, *args):
            pass

        def plan(self, running, waiting, num_free_blocks):
            return told

    world = world_of(Odd, 12)
    world.submit("r", 5, 2)
    world.step()
    assert "tokens" in {finding.kind for finding in world.found}


def test_right_planners_pass_and_faulty_ones_fail_the_models_regression_test():
    cells = notebooks.source_cells(LAB.name)
    namespace = {}
    exec(cells["lab2-setup"], namespace)
    exec(planting.plant(cells["lab2-regression"], None), namespace)
    test = namespace["test_planner"]
    for _, right in SUBJECTS.right:
        test(right)
    for name, (faulty, _) in SUBJECTS.faulty.items():
        with pytest.raises(AssertionError):
            test(faulty)
            pytest.fail(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_tests_pass_on_every_right_way(name, capsys):
    assert run_public(solved(SOURCES[name])) == {}
    assert "the test passes on your planner" in capsys.readouterr().out


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(released(variant))
    parts = {cell.grade_id for cell in LAB.cells} - {"lab2-regression-check"}
    assert set(errors) == parts
    assert all(str(error) for error in errors.values())


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant):
    """The longest pause is far above the limit, and the mean is not: as the report says."""
    cells = notebooks.source_cells(LAB.name)
    namespace = {"__name__": __name__}
    for name in ("lab2-setup", "lab2-bench"):
        exec(cells[name], namespace)

    def chats(planner_class):
        jobs = namespace["wednesday"]()
        log, _ = namespace["replay"](planner_class, jobs)
        gaps_s = [gap for job in jobs if job.id.startswith("chat") for gap in job.gaps_s]
        return max(gaps_s), sum(gaps_s) / len(gaps_s), sum("preempted" in x for _, x in log)

    limit_s = namespace["GAP_LIMIT_S"]
    right_worst_s, right_mean_s, _ = chats(planner(None))
    source = "".join(cell(released(variant), "lab2-planner")["source"])
    worst_s, mean_s, num_lines = chats(SUBJECTS.build(source))
    assert right_worst_s < limit_s
    assert worst_s > 4 * limit_s and mean_s < limit_s / 3, "hidden in the mean"
    assert num_lines > 0 and mean_s < 2 * right_mean_s


def test_the_reference_planner_is_not_in_the_learners_process():
    assert set(LAB.limits.shared) == {"__init__.py", "errors.py"}
