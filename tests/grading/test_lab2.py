"""Lab 2's scoring: the vectors of starters and right ways hold for every hidden seed."""

import contextlib
import json

import matplotlib
import pytest

from autograder import bank, notebooks, planting, scoring
from autograder.bank.base import cell, set_source
from autograder.bank.lab2 import released, solved
from autograder.child import plain
from autograder.harness import Raised
from autograder.scoring import lab2
from autograder.scoring.lab2 import World, subjects

LAB = scoring.find("lab2")
SEEDS = [f"student {number}".encode() for number in range(25)]
PLANNER_CELLS = [cell for cell in LAB.cells if cell.grade_id in lab2.STORIES]


class Local:
    """A session in this process, for trusted code: quick enough for many seeds."""

    names: set = set()

    def __init__(self, namespace):
        self.namespace = namespace

    def new(self, class_name, args, serve):
        self.subject = self.namespace[class_name](*args)

    def call(self, method, args, serve):
        try:
            return json.loads(json.dumps(plain(getattr(self.subject, method)(*args))))
        except Exception as error:
            raise Raised(type(error).__name__, str(error), "here") from None


def planner(variant):
    source = notebooks.source_cells(LAB.name)["lab2-planner"]
    return subjects.build(planting.plant(source, variant))


def session_of(planner_class):
    return Local({"StepPlanner": planner_class})


def vector(planner_class, seed):
    open_local = lambda: contextlib.nullcontext(session_of(planner_class))  # noqa: E731
    return tuple(LAB.score_cell(cell, open_local, seed).score for cell in PLANNER_CELLS)


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_untouched_planner_earns_nothing_whatever_the_seed(variant):
    faulty = planner(variant)
    assert {vector(faulty, seed) for seed in SEEDS} == {(0.0, 0.0, 0.0, 0.0)}


@pytest.mark.parametrize("name, right", subjects.right())
def test_every_right_way_earns_everything_whatever_the_seed(name, right):
    assert {vector(right, seed) for seed in SEEDS} == {(4.0, 4.0, 3.0, 3.0)}


@pytest.mark.parametrize("variant, score", [(None, 1.0), ("a", 0.0)])
def test_the_bonus_is_earned_by_the_solution_alone(variant, score):
    namespace = {}
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab2-bonus"], variant), namespace)
    (bonus,) = [cell for cell in LAB.cells if cell.grade_id in LAB.bonus]
    for seed in SEEDS:
        open_local = lambda: contextlib.nullcontext(Local(namespace))  # noqa: E731
        assert LAB.score_cell(bonus, open_local, seed).score == score


def test_each_variant_fails_each_part_in_its_own_way():
    kinds = {}
    for variant in LAB.variants:
        open_local = lambda: contextlib.nullcontext(session_of(planner(variant)))  # noqa: B023, E731
        cells = [LAB.score_cell(cell, open_local, SEEDS[0]) for cell in PLANNER_CELLS]
        assert all(cell.failed and not cell.gates for cell in cells), variant
        kinds[variant] = tuple(tuple(sorted(cell.failed)) for cell in cells)
    assert len(set(kinds.values())) == len(LAB.variants)
    seen = {kind for cells in kinds.values() for failed in cells for kind in failed}
    assert {"gap", "left_out", "overspent", "idle", "blocked", "starved"} <= seen
    assert {"victim_runs", "victims"} <= seen


def test_a_model_engine_computes_each_token_once_and_ends_everybody():
    """The world itself: work done is prompts and answers, plus what victims had to do again."""
    world = World(session_of(planner(None)), 48, 20, 3, block_size=8, num_blocks=12)
    computed = {}
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


def test_right_planners_pass_and_faulty_ones_fail_the_models_regression_test():
    namespace = {}
    exec(notebooks.source_cells(LAB.name)["lab2-setup"], namespace)
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab2-regression"], None), namespace)
    test = namespace["test_planner"]
    for _, right in subjects.right():
        test(right)
    for name, (faulty, _) in subjects.faulty().items():
        with pytest.raises(AssertionError):
            test(faulty)
            pytest.fail(name)


def run_public(notebook):
    """Run a notebook's code cells in order; {cell: error} of those that raise."""
    matplotlib.use("Agg")
    namespace, errors = {"__name__": "autograder.scoring.lab2.subjects"}, {}
    for each in notebook["cells"]:
        if each["cell_type"] == "code":
            try:
                exec("".join(each["source"]), namespace)
            except Exception as error:
                errors[each["id"]] = error
    return errors


@pytest.mark.parametrize(
    "name, source", [("solution", None), *bank.right_sources(LAB.name).items()]
)
def test_public_tests_pass_on_right_ways(name, source, capsys):
    assert run_public(solved(source)) == {}
    assert "the test passes on your planner" in capsys.readouterr().out


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant):
    errors = run_public(released(variant))
    assert set(errors) == {
        "lab2-gap",
        "lab2-budget",
        "lab2-fair",
        "lab2-memory",
        "lab2-bonus-check",
    }
    assert all(str(error) for error in errors.values())


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant, capsys):
    """The longest pause is far above the limit, and the mean is not: as the report says."""
    namespace = {"__name__": "autograder.scoring.lab2.subjects"}
    for name in ("lab2-setup", "lab2-bench"):
        exec(notebooks.source_cells(LAB.name)[name], namespace)

    def gaps(planner_class):
        jobs = namespace["wednesday"]()
        log, _ = namespace["replay"](planner_class, jobs)
        gaps_s = [gap for job in jobs if job.id.startswith("chat") for gap in job.gaps_s]
        return max(gaps_s), sum(gaps_s) / len(gaps_s), sum("preempted" in x for _, x in log)

    limit_s = namespace["GAP_LIMIT_S"]
    right_max_s, right_mean_s, _ = gaps(planner(None))
    worst_s, mean_s, num_lines = gaps(planner(variant))
    assert right_max_s < limit_s
    assert worst_s > 4 * limit_s and mean_s < limit_s / 3, "hidden in the mean"
    assert num_lines > 0 and mean_s < 2 * right_mean_s


def test_points_add_up_to_twenty_and_a_bonus_and_match_the_notebook():
    told = {
        c["id"]: c["metadata"]["nbgrader"].get("points")
        for c in released()["cells"]
        if c["metadata"].get("nbgrader", {}).get("grade")
    }
    assert told == {c.grade_id: c.points for c in LAB.cells} | LAB.manual
    assert LAB.max_points == 20 and LAB.auto_points == 17


def test_the_reference_planner_is_not_in_the_learners_process():
    assert not any("scheduling" in name or "engine" in name for name in LAB.limits.shared)


def test_the_release_is_the_build_of_its_source():
    for name in LAB.solutions:
        source = notebooks.source_cells(LAB.name)[name]
        assert "".join(cell(released(), name)["source"]) == planting.plant(source, "a")


def test_an_answer_of_another_shape_is_no_plan():
    class Odd:
        def __init__(self, *args):
            pass

        def plan(self, running, waiting, num_free_blocks):
            return ODD.pop()

    ODD = [None, [], {"rows": []}, [[], [], []], [[["r", 1.0]], []], [[["r", True]], []]]
    while ODD:
        world = World(session_of(Odd), 48, 20, 3)
        world.submit("r", 5, 2)
        world.step()
        assert "tokens" in {finding.kind for finding in world.found}


def test_the_bank_has_what_was_asked_for():
    from autograder.bank.lab2 import RIGHT, WRONG, all_submissions

    assert len(bank.right_sources(LAB.name)) >= 3
    assert len([row for row in WRONG if row.name.startswith("wrong")]) >= 10
    names = [row.name for row in all_submissions()]
    assert len(set(names)) == len(names) and len(RIGHT) >= 6


def test_a_leaked_answer_is_found():
    from autograder import release

    notebook = set_source(
        released(),
        "lab2-bonus",
        planting.plant(notebooks.source_cells(LAB.name)["lab2-bonus"], None),
    )
    assert release.find_leaks(json.dumps(notebook), LAB, release.DEFAULT_VARIANT) != []
    assert release.find_leaks(json.dumps(released()), LAB, release.DEFAULT_VARIANT) == []
