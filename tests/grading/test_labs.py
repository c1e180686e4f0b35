"""What every lab must have: to be a lab is to pass this file."""

import json
from importlib import import_module

import pytest

from autograder import bank, notebooks, planting, release, scoring, selftest
from autograder.__main__ import main
from autograder.bank.base import set_source
from autograder.scoring.base import GATE_COST, seed_of, variant_of
from minserve.learn import labs as at_home
from tests.grading.in_process import vector

LABS = list(scoring.LABS.values())
VARIANTS = [(lab, variant) for lab in LABS for variant in lab.variants]
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name.partition("_")[0])
each_variant = pytest.mark.parametrize(
    "lab, variant", VARIANTS, ids=[f"{lab.name.partition('_')[0]}-{v}" for lab, v in VARIANTS]
)
RIGHT_WAYS = [(lab, way) for lab in LABS for way in ("solution", *bank.right_sources(lab.name))]
SEEDS = [f"student {number}".encode() for number in range(25)]
each_seeds = pytest.mark.parametrize(
    "seeds",
    [SEEDS[:5], pytest.param(SEEDS[5:], marks=pytest.mark.slow)],
    ids=["5 students", "20 more"],
)
QUICK = ("right: the solution", "untouched release", "hostile: os._exit")


def submissions(lab):
    return bank_of(lab).all_submissions()


def bank_of(lab):
    return import_module(f"autograder.bank.{bank.folder_of(lab.name)}")


def given(lab):
    return json.loads(notebooks.path_in(notebooks.LABS, lab.name).read_text("utf-8"))


def with_answers(lab, variant):
    """The released notebook with the answers of a variant; None is the solution."""
    notebook = given(lab)
    for name in lab.solutions:
        source = notebooks.source_cells(lab.name)[name]
        set_source(notebook, name, planting.plant(source, variant))
    return notebook


def checked(lab, variant, tmp_path):
    path = tmp_path / "notebook.ipynb"
    path.write_text(json.dumps(with_answers(lab, variant)))
    return at_home.check(at_home.find(lab.name), path)


# -- the score, for many hidden seeds


@each_seeds
@each_variant
def test_what_was_handed_out_earns_nothing_whatever_the_seed(lab, variant, seeds):
    notebook = bank_of(lab).released(variant)
    assert {vector(lab, notebook, seed) for seed in seeds} == {bank_of(lab).NONE}


@each_seeds
@pytest.mark.parametrize(
    "lab, way", RIGHT_WAYS, ids=[f"{lab.name.partition('_')[0]}-{way}" for lab, way in RIGHT_WAYS]
)
def test_every_right_way_earns_everything_whatever_the_seed(lab, way, seeds):
    source = bank.right_sources(lab.name)[way] if way != "solution" else None
    notebook = bank_of(lab).solved(source)
    assert {vector(lab, notebook, seed) for seed in seeds} == {bank_of(lab).FULL}


# -- the notebook


@each_lab
def test_points_match_the_notebook_and_cells_have_their_grade_ids(lab):
    marks = [c["metadata"]["nbgrader"] | {"id": c["id"]} for c in given(lab)["cells"] if graded(c)]
    told = {mark["grade_id"]: mark["points"] for mark in marks}
    assert told == {cell.grade_id: cell.points for cell in lab.cells} | lab.manual
    assert all(mark["id"] == mark["grade_id"] for mark in marks), "diffs and checksums stay stable"
    on_top = sum(told[name] for name in lab.bonus)
    assert lab.max_points == sum(told.values()) - on_top > 0 and lab.manual
    assert all("-bonus" in name for name in lab.bonus), "a learner's own check knows them by that"
    text = "".join(
        c["source"] if type(c["source"]) is str else "".join(c["source"])
        for c in given(lab)["cells"]
        if c["cell_type"] == "markdown"
    )
    assert "| points |" in text, "learners see what each behaviour is worth"


def graded(cell):
    return cell["metadata"].get("nbgrader", {}).get("grade")


@each_lab
def test_the_committed_release_leaks_nothing(lab):
    text = notebooks.path_in(notebooks.LABS, lab.name).read_text("utf-8")
    assert release.find_leaks(text, lab, release.DEFAULT_VARIANT) == []


@pytest.mark.nbgrader
@each_lab
def test_a_fresh_build_is_the_committed_release(lab):
    text = release.build(lab, release.DEFAULT_VARIANT)
    assert text == notebooks.path_in(notebooks.LABS, lab.name).read_text("utf-8")


@pytest.mark.nbgrader
@pytest.mark.slow
@each_variant
def test_every_variant_can_be_built_without_a_leak(lab, variant):
    release.build(lab, variant)


@each_variant
def test_every_variant_compiles_and_differs_from_the_solution(lab, variant):
    is_planted = False
    for source in notebooks.source_cells(lab.name).values():
        if planting.has_faults(source):
            planted = planting.plant(source, variant)
            compile(planted, variant, "exec")
            assert "###" not in planted
            is_planted = is_planted or planted != planting.plant(source, None)
    assert is_planted


@each_lab
def test_variants_and_hidden_values_belong_to_a_student_and_stay(lab):
    def seed(student, secret=b"s", offering="2026"):
        return seed_of(secret, offering, student, lab.name)

    assert seed("ann") == seed("ann")
    assert len({seed("ann"), seed("bob"), seed("ann", b"t"), seed("ann", offering="2027")}) == 4
    assert {variant_of(lab, seed(f"s{n}")) for n in range(60)} == set(lab.variants)
    assert len(lab.variants) >= 3


# -- the public tests


@each_lab
def test_public_tests_pass_on_the_solution(lab, tmp_path):
    told = checked(lab, None, tmp_path)
    assert [outcome for outcome in told.outcomes if not outcome.holds] == []
    assert told.points.startswith(f"{lab.auto_points:g} of {lab.auto_points:g} automatic, ")
    assert told.points.endswith(f"{sum(lab.manual.values()):g} by hand")


@each_lab
def test_public_tests_give_the_untouched_lab_nothing(lab):
    found = at_home.find(lab.name)
    told = at_home.check(found, found.path)
    assert told.is_untouched and told.points.startswith(f"0 of {lab.auto_points:g} automatic, ")
    assert [o.grade_id for o in told.outcomes if o.holds] == []
    assert [o.grade_id.endswith("-regression-check") for o in told.outcomes if o.is_to_do] == [True]


@each_variant
def test_public_tests_fail_on_every_variant_and_teach(lab, variant, tmp_path):
    failed = [outcome for outcome in checked(lab, variant, tmp_path).outcomes if not outcome.holds]
    assert failed
    for outcome in failed:
        assert len(outcome.rule) > 20 and outcome.seen and "line" in outcome.look


# -- the bank


@each_lab
def test_the_bank_is_rich_enough(lab):
    rows = submissions(lab)
    names = [row.name for row in rows]
    kinds = [name.partition(":")[0].partition(" ")[0] for name in names]
    assert len(set(names)) == len(names)
    assert kinds.count("right") >= 4, "the solution, and three other right ways"
    assert len(bank.right_sources(lab.name)) >= 2, "two of them written differently, not renamed"
    assert kinds.count("untouched") >= 1
    assert kinds.count("wrong") + kinds.count("partial") >= 10
    assert kinds.count("hostile") >= 30
    for row in (
        "a memorised public scenario",
        "another student's variant",
        "imports the reference",
    ):
        assert any(row in name for name in names), row


@each_lab
def test_expected_vectors_can_be_and_say_what_is_right(lab):
    points = tuple(cell.points for cell in lab.cells)
    for row in submissions(lab):
        if row.expected is None:
            continue
        assert len(row.expected) == len(points), row.name
        assert all(0 <= s <= p for s, p in zip(row.expected, points, strict=True)), row.name
        if row.name.startswith("right"):
            assert tuple(map(float, row.expected)) == points, row.name
        if row.name.startswith("untouched"):
            assert set(row.expected) == {0.0}, row.name
    scored = [cell.points for cell in lab.cells if cell.grade_id not in lab.bonus]
    assert min(scored) > GATE_COST, "a gate never costs a whole cell"


# -- through the grader


@pytest.mark.nbgrader
@each_lab
def test_one_of_each_kind_is_graded_as_written(lab, require_debian):
    require_debian("bubblewrap", "bwrap")
    rows = submissions(lab)
    wrong = next(r for r in rows if r.name.startswith("wrong") and r.through_nbgrader)
    chosen = (*QUICK, wrong.name)
    outcome = selftest.run(lab, only=lambda row: row.name in chosen)
    assert [line for line in outcome.lines if not line.is_equal] == []
    assert len(outcome.lines) == 8, "each directly, and each through nbgrader"


@pytest.mark.nbgrader
@pytest.mark.slow
@each_lab
def test_the_whole_selftest_is_equal_and_every_check_is_needed(lab, require_debian):
    require_debian("bubblewrap", "bwrap")
    outcome = selftest.run(lab)
    assert [line for line in outcome.lines if not line.is_equal] == []
    assert outcome.undetected == []
    assert len(outcome.lines) > 60
    for line in outcome.lines:
        for cell in line.cells:
            assert cell["feedback"] or cell["score"] == cell["points"], f"{line.name}: no words"
            for text in cell["feedback"]:
                if text.startswith("Seen:"):
                    assert "\n  Rule: " in text and "\n  Look at: " in text, line.name


def test_the_selftest_command_covers_all_labs_and_ends_with_all_equal(capsys, require_debian):
    require_debian("bubblewrap", "bwrap")
    with pytest.raises(SystemExit) as ended:
        main(["selftest", "--only", "untouched variant b", "--json"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended.value.code == 0 and told["all_equal"] is True
    assert [lab["lab"] for lab in told["labs"]] == [lab.name for lab in LABS]
    assert all(lab["num_lines"] == lab["num_equal"] > 0 for lab in told["labs"])
