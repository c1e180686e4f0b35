"""The page a learner gets: it teaches, it stands alone, and nothing hidden is on it."""

import json
import re

import nbformat
import pytest

from autograder import feedback, grading, intake, notebooks, planting, sandbox, scoring, selftest
from autograder.bank import lab3 as bank
from autograder.bank.base import append, set_source
from autograder.report import Standing
from autograder.scoring.base import Advice, seed_of
from minserve.errors import ConfigError

LAB = scoring.find("lab3")
BANK = {submission.name: submission for submission in bank.all_submissions()}
# An engine that says in every way it can what it was given: these must not reach its author.
TELLS = """
import builtins
_cancel = CancellableEngine.cancel
def cancel(self, request_id):
    told = "SECRET:" + ";".join(f"{r.id},{r.num_prompt_tokens}" for r in self.requests.values())
    print(told)
    self.emit(told, told, told)
    if request_id != "a":
        raise type(told, (KeyError,), {})(told)
    exec(compile("raise KeyError(told)", f"<{told}, line 1>", "exec"), {"told": told})
CancellableEngine.cancel = cancel
"""


def result_of(name, tmp_path, notebook=None):
    folder = tmp_path / "student" / LAB.name
    selftest.hand_in(notebook or BANK[name], folder)
    taken = intake.transplant(intake.take(folder, LAB), LAB)
    seed = seed_of(b"a secret", "2026", "ann", LAB.name)
    return grading.score_notebook(taken, LAB, seed, sandbox.best_level()) | {"version": "v1"}


def taken(notebook):
    return intake.transplant(nbformat.reads(json.dumps(notebook), as_version=4), LAB)


def page_of(result, **more):
    fields = {"automatic": result["score"], "total": result["score"]} | more
    return feedback.page(Standing("ann", "A", "Ann", "", LAB, result, **fields), {})


def test_each_broken_behaviour_has_a_symptom_a_rule_a_place_and_an_example(tmp_path):
    page = page_of(result_of("wrong: releases at once, even in flight", tmp_path))
    assert "13 of 20 points so far" in page and "13 of 17 automatic, 3 by hand" in page
    for text in (
        "<dt>What was seen</dt><dd>blocks went back to the pool while the step",
        "<dt>The rule</dt><dd>from begin_step to finish_step",
        "<dt>Example</dt><dd>cancelled while",
        "<dt>Look at</dt><dd>`cancel`, when the request is part of",
    ):
        assert text in page
    assert page.count("Everything that is scored here holds.") == 4


def test_an_example_stands_between_the_rule_and_the_place():
    advice = Advice("a", "b", "c")
    assert advice.text("d").split("\n  ") == ["Seen: a.", "Rule: b.", "Example: d.", "Look at: c."]
    assert "Example" not in advice.text("")


def test_the_page_fetches_nothing_and_runs_nothing(tmp_path):
    page = page_of(result_of("hostile: script in text and output", tmp_path))
    assert "&lt;script&gt;alert" in page, "what the learner printed is shown as text"
    assert not re.search(r"<(script|link|img|iframe|object)\b", page)
    assert not re.search(r"""(src|href)=|url\(|@import|https?:""", page)
    assert "default-src 'none'" in page


def test_what_hidden_scenarios_hold_cannot_be_told_back_through_the_feedback(tmp_path):
    notebook = append(bank.solved(), "lab3-engine", TELLS)
    submission = bank.row("tells", lambda: notebook, None)
    result = result_of("", tmp_path, submission)
    assert result["score"] < LAB.auto_points
    page = page_of(result)
    assert "SECRET" not in page and "SECRET" not in str(result["notes"])
    assert "an exception of your own" in page


def test_what_one_hand_in_smuggles_out_is_worth_nothing_for_the_next(course, monkeypatch):
    """A line number, a status or the machine's file cache can carry values to the page."""
    seeds = []

    def score(notebook, lab, seed, level):
        seeds.append(seed)
        return {"status": "graded", "score": 0.0}

    monkeypatch.setattr(grading, "score_notebook", score)
    works = [bank.solved(), bank.solved(), append(bank.solved(), "lab3-engine", "x = 1")]
    works += [bank.own_cell(bank.solved(), "x = 1"), bank.own_cell(bank.solved(), "x = 2")]
    for work in works:
        grading.score_submission(course, LAB, "ann", taken(work))
    assert seeds[0] == seeds[1], "a regrade gives the same values"
    assert len(set(seeds)) == 4
    explained = set_source(bank.solved(), "lab3-explanation", "Because.")
    grading.score_submission(course, LAB, "ann", taken(explained))
    assert seeds[-1] == seeds[0], "only code counts: words cannot buy another draw"


def test_the_time_of_all_processes_of_a_submission_is_bounded(tmp_path, monkeypatch):
    """A minute for each of fourteen processes would be a quarter of an hour."""
    monkeypatch.setattr(grading, "SUBMISSION_S", 0.5)
    slow = append(bank.solved(), "lab3-engine", "import time\ntime.sleep(0.6)")
    result = result_of("", tmp_path, bank.row("slow", lambda: slow, None))
    assert [bool(cell["stopped"]) for cell in result["cells"]] == [False, True, True, True, True]
    assert result["status"] == "partly" and "in all its processes" in str(result["notes"])


def test_no_submission_runs_where_isolation_has_become_weak(course, monkeypatch):
    monkeypatch.setattr(sandbox, "best_level", lambda: "plain")
    monkeypatch.delenv(sandbox.ACCEPTS_WEAK, raising=False)
    with pytest.raises(ConfigError, match="isolation is only 'plain'"):
        grading.score_submission(course, LAB, "ann", taken(bank.solved()))


@pytest.mark.parametrize("name", [name for name in BANK if name.startswith("wrong")][::5])
def test_no_page_holds_the_solution_or_a_path(tmp_path, name):
    page = page_of(result_of(name, tmp_path))
    for cell, source in notebooks.source_cells(LAB.name).items():
        for variant in LAB.variants if planting.has_faults(source) else ():
            for piece in planting.replaced(source, variant):
                assert piece.strip() not in page, cell
        if cell in LAB.manual:
            assert source[:60] not in page
    assert str(sandbox.REPOSITORY) not in page and "/shared" not in page


def test_a_persons_comment_and_a_correction_are_on_the_page(tmp_path):
    result = result_of("right: the solution", tmp_path)
    standing = Standing(
        "ann",
        "A",
        "Ann",
        "",
        LAB,
        result,
        days_late=1,
        automatic=17.0,
        by_hand=2.5,
        corrected=("lab3-storm",),
        penalty=2.0,
        total=17.5,
    )
    page = feedback.page(standing, {"lab3-explanation": "Good, <b>but</b> short."})
    assert "Good, &lt;b&gt;but&lt;/b&gt; short." in page
    assert "2.5 of 3" in page and "corrected by a person" in page and "-2" in page
    assert "17.5 of 20 points</p>" in page
