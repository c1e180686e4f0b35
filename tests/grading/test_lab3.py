"""Lab 3's scoring: the vectors of starters and right ways hold for every hidden seed."""

import contextlib
import itertools
import json
import random

import matplotlib
import pytest

from autograder import notebooks, planting, scoring
from autograder.bank.base import cell
from autograder.bank.lab3 import released
from autograder.child import plain
from autograder.harness import Raised, RemoteError
from autograder.scoring import lab3
from autograder.scoring.lab3 import World, subjects
from autograder.scoring.stories import findings

LAB = scoring.find("lab3")
SEEDS = [f"student {number}".encode() for number in range(25)]
ENGINE_CELLS = [cell for cell in LAB.cells if cell.grade_id in lab3.STORIES]


class Local:
    """A session in this process, for trusted code: quick enough for many seeds."""

    names: set = set()

    def __init__(self, engine_class):
        self.engine_class = engine_class

    def new(self, class_name, args, serve):
        self.engine = self.engine_class(
            Pool(serve), lambda *event: serve("emit", "__call__", [*event])
        )

    def call(self, method, args, serve):
        try:
            return json.loads(json.dumps(plain(getattr(self.engine, method)(*args))))
        except Exception as error:
            raise Raised(type(error).__name__, str(error), "here") from None


class Pool:
    def __init__(self, serve):
        self.serve = serve

    def _ask(self, method, *args):
        from minserve import errors

        try:
            return self.serve("pool", method, [*args])
        except RemoteError as error:
            raise getattr(errors, error.kind)(str(error)) from None

    def allocate(self, num_tokens):
        return self._ask("allocate", num_tokens)

    def release(self, table):
        self._ask("release", list(table))
        table.clear()

    def blocks_for(self, num_tokens):
        return self._ask("blocks_for", num_tokens)

    @property
    def num_free(self):
        return self._ask("num_free")


def engine(variant):
    source = notebooks.source_cells(LAB.name)["lab3-engine"]
    return subjects.SUBJECTS.build(planting.plant(source, variant))


def vector(engine_class, seed):
    open_local = lambda: contextlib.nullcontext(Local(engine_class))  # noqa: E731
    return [LAB.score_cell(cell, open_local, seed).score for cell in ENGINE_CELLS]


def test_every_right_way_earns_everything_whatever_the_seed():
    for name, right in subjects.SUBJECTS.right:
        got = {tuple(vector(right, seed)) for seed in SEEDS}
        assert got == {(4.0, 4.0, 3.0, 3.0)}, name


def test_each_planted_variant_has_one_path_that_forgets_and_one_that_releases_twice():
    for variant in LAB.variants:
        make = lambda: World(Local(engine(variant)), 24, 4)  # noqa: B023, E731
        kinds = set()
        for story in itertools.chain(*lab3.STORIES.values()):
            kinds |= {f.kind for f in findings(make, story.play, random.Random(1))}
        assert "stranded" in kinds and "released_twice" in kinds, variant


def test_right_engines_pass_and_faulty_ones_fail_the_models_regression_test():
    namespace = {}
    exec(planting.plant(notebooks.source_cells(LAB.name)["lab3-regression"], None), namespace)
    test = namespace["test_cancellation"]
    for _, right in subjects.SUBJECTS.right:
        test(bench()(right))
    for name, (faulty, _) in subjects.SUBJECTS.faulty.items():
        with pytest.raises(Exception):  # noqa: B017  the pool's error is a failure too
            test(bench()(faulty))
            pytest.fail(name)


def bench():
    namespace = {}
    for name in ("lab3-setup", "lab3-bench"):
        exec(notebooks.source_cells(LAB.name)[name], namespace)
    return namespace["bench"]


def run_public(notebook):
    """Run a notebook's code cells in order; {cell: error} of those that raise."""
    matplotlib.use("Agg")
    namespace, errors = {"__name__": "autograder.scoring.lab3.subjects"}, {}
    for each in notebook["cells"]:
        if each["cell_type"] == "code":
            try:
                exec("".join(each["source"]), namespace)
            except Exception as error:
                errors[each["id"]] = error
    return errors


@pytest.mark.parametrize("variant", LAB.variants)
def test_public_tests_fail_on_every_variant_and_say_why(variant, capsys):
    notebook = released()
    source = planting.plant(notebooks.source_cells(LAB.name)["lab3-engine"], variant)
    cell(notebook, "lab3-engine")["source"] = source
    errors = run_public(notebook)
    assert set(errors) == {"lab3-returned", "lab3-exact", "lab3-storm", "lab3-others"}
    shown = capsys.readouterr().out
    assert "at the end: " in shown and " 0 needed" not in shown.split("at the end: ")[0]


@pytest.mark.parametrize("variant", LAB.variants)
def test_the_replay_shows_the_incident_of_every_variant(variant):
    """Blocks are held for nobody and requests wait: the picture that the lab describes."""
    namespace = {}
    for name in ("lab3-setup", "lab3-bench"):
        exec(notebooks.source_cells(LAB.name)[name], namespace)
    log, faulty = namespace["replay_tuesday"](engine(variant))
    _, right = namespace["replay_tuesday"](engine(None))
    assert right[-1][1:] == (0, 0, 0) and all(held == needed for _, held, needed, _ in right)
    _, held, needed, waiting = faulty[-1]
    assert held > 0 and needed == 0 and waiting > 0, "nobody runs, and nobody is admitted"
    assert any("ERROR" in line for _, line in log), "and somebody's step was dropped"
