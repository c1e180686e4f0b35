"""What stock nbgrader 0.9.6 grades wrongly, and the test or submission that holds it right here.

Each row was reproduced with the real nbgrader before it was written down. A submission of the bank
stands in every lab with its exact vector and status (see test_labs.py); what no single notebook can
show has a test.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from autograder import bank, scoring

HERE = Path(__file__).parent

# what happens -> (what stock nbgrader does, submissions of every lab's bank, tests of this folder)
ROWS = {
    "a warning or log line on stderr in a test cell": (
        "0 points",
        ["hostile: noise on stderr, warnings and logs"],
        [],
    ),
    "partial credit is the cell's last expression, or printed": (
        "full marks for False, -1, or a printed value",
        ["hostile: forged last expression", "hostile: printed and displayed points"],
        [],
    ),
    "partial credit above the maximum": (
        "the submission is lost",
        [
            "hostile: partial credit above the maximum",
            "hostile: more points in the metadata",
        ],
        [],
    ),
    "an infinite loop": (
        "0 for the cell, nothing explained",
        [
            "hostile: infinite loop when loaded",
            "hostile: infinite loop in a method",
            "hostile: infinite loop in an experiment",
        ],
        ["test_sandbox.py::test_an_endless_loop_is_stopped_by_its_processor_time"],
    ),
    "a loop that ignores SIGINT; os._exit; SIGKILL; out of memory": (
        "the submission is dropped, 0.0 in the CSV",
        [
            "hostile: a loop that ignores signals",
            "hostile: os._exit",
            "hostile: os._exit in an experiment",
            "hostile: kills itself in a method",
            "hostile: kills its parent",
            "hostile: out of memory",
            "hostile: out of memory in an experiment",
            "hostile: sys.exit in a method",
        ],
        ["test_course.py::test_the_csv_has_a_status_empty_scores_and_no_formula"],
    ),
    "a copied cell (duplicate grade_id)": (
        "the whole notebook is rejected",
        ["hostile: a copied cell"],
        ["test_intake.py::test_of_two_copies_the_last_counts_and_the_first_still_runs_before_it"],
    ),
    "nbgrader metadata stripped; corrupt JSON; renamed file": (
        "0.0 in the CSV, or an error",
        [
            "hostile: stripped metadata",
            "hostile: corrupt JSON",
            "hostile: no text at all",
            "hostile: JSON, but no notebook",
            "hostile: deeply nested JSON",
            "hostile: renamed file",
        ],
        [
            "test_intake.py::test_what_is_no_notebook_is_unreadable_in_one_line",
            "test_course.py::test_no_score_is_made_up_for_what_cannot_be_graded",
        ],
    ),
    "a deleted test cell": (
        "waits for a manual grade",
        ["hostile: deleted test cell", "hostile: deleted main answer cell"],
        [],
    ),
    "an object whose __eq__ is always True; a patched assert helper": (
        "full marks",
        [
            "hostile: always-equal object",
            "hostile: always-equal answers from a right class",
            "hostile: patched builtins and json",
        ],
        ["test_sandbox.py::test_only_plain_builtin_values_are_told"],
    ),
    "an input-transformer hook, or reading the source notebook by path": (
        "hidden tests leak",
        [
            "hostile: transformer and import hooks",
            "hostile: hooks beside the untouched class",
            "hostile: reads the solution by its path",
        ],
        ["test_sandbox.py::test_inside_there_is_no_repository_no_home_no_network_and_no_root"],
    ),
    "a background process left running": (
        "it survives grading",
        ["hostile: leaves a process running", "hostile: forks without end"],
        ["test_sandbox.py::test_a_process_left_running_dies_with_the_sandbox"],
    ),
    "feedback shows hidden tests and tracebacks": (
        "hidden tests and values leak",
        [],
        [
            "test_feedback.py::test_no_page_holds_the_solution_or_a_path",
            "test_feedback.py::test_what_hidden_scenarios_hold_cannot_be_told_back_through_the_feedback",
            "test_sandbox.py::test_what_reaches_a_learner_of_an_exception_carries_no_hidden_value",
        ],
    ),
    "the score is computed in the learner's kernel": (
        "a same-named module beside the notebook earned full marks",
        [
            "hostile: modules that shadow the grader's",
            "hostile: forged score lines",
            "hostile: forged answers",
            "hostile: floods the line",
        ],
        ["test_sandbox.py::test_forged_lines_are_tampering"],
    ),
    "a script in a cell's output": (
        "it reaches the feedback page and the formgrader",
        ["hostile: script in text and output"],
        [
            "test_course.py::test_the_autograded_notebook_of_the_formgrader_has_no_script",
            "test_feedback.py::test_the_page_fetches_nothing_and_runs_nothing",
        ],
    ),
    "a student's name or text with a comma, or starting with =": (
        "columns shift, a formula is exported",
        [],
        ["test_exports.py::test_names_with_commas_or_formulas_stay_text_in_one_column"],
    ),
    "a manual score at a regrade": (
        "it wins silently",
        [],
        [
            "test_course.py::test_a_regrade_changes_no_score_and_keeps_a_manual_one_aloud",
            "test_classes.py::"
            "test_a_persons_score_stays_is_listed_and_is_looked_at_again_if_the_work_is_new",
        ],
    ),
    "a missing submission": (
        "exported as 0.0",
        ["hostile: nothing handed in"],
        ["test_exports.py::test_the_table_and_the_csv_say_it_in_the_same_words"],
    ),
    "the submitter writes the timestamp file, or submits as somebody else": (
        "accepted, or only warned",
        [],
        [
            "test_collecting.py::test_a_timestamp_file_of_the_submitter_is_not_read",
            "test_collecting.py::test_the_exchange_gives_the_time_of_the_machine_not_the_submitters",
            "test_collecting.py::"
            "test_a_folder_of_another_owner_goes_to_quarantine_until_somebody_accepts_it",
        ],
    ),
    "symbolic links": (
        "not tried",
        [
            "hostile: the notebook is a link to the solution",
            "hostile: a link beside the notebook",
        ],
        [
            "test_intake.py::test_links_are_not_followed",
            "test_collecting.py::test_a_link_is_collected_as_a_link_and_never_followed",
            "test_collecting.py::test_a_link_in_the_exchange_is_refused",
        ],
    ),
    "zip paths that climb": (
        "not tried",
        [],
        [
            "test_collecting.py::test_a_zip_path_that_climbs_is_refused",
            "test_collecting.py::test_links_and_floods_in_a_zip_file_are_refused",
        ],
    ),
    "huge outputs": ("not tried", ["hostile: huge output"], []),
    "a foreign kernelspec": ("not tried", ["hostile: a foreign kernel"], []),
    "code that detects the grader": (
        "not tried",
        [
            "hostile: looks for the grader in its process",
            "hostile: a memorised public scenario",
            "hostile: a test that counts its calls",
        ],
        [],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_submission_in_every_lab_or_a_test(row):
    _, submissions, tests = ROWS[row]
    assert submissions or tests
    for lab in scoring.LABS:
        rows = import_module(f"autograder.bank.{bank.folder_of(lab)}").all_submissions()
        missing = set(submissions) - {submission.name for submission in rows}
        assert not missing, f"{lab} lacks {sorted(missing)}"
    for test in tests:
        file, _, name = test.partition("::")
        tree = ast.parse((HERE / file).read_text("utf-8"))
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def test_rows_that_stock_nbgrader_saves_wrongly_go_through_the_real_nbgrader_here():
    """A bank's submission that reaches a gradebook is also graded there, not only directly."""
    through = {
        "hostile: noise on stderr, warnings and logs",
        "hostile: forged last expression",
        "hostile: printed and displayed points",
        "hostile: partial credit above the maximum",
        "hostile: infinite loop when loaded",
        "hostile: os._exit",
        "hostile: kills itself in a method",
        "hostile: a copied cell",
        "hostile: deleted test cell",
        "hostile: leaves a process running",
        "hostile: script in text and output",
        "hostile: huge output",
        "hostile: a foreign kernel",
    }
    for lab in scoring.LABS:
        rows = import_module(f"autograder.bank.{bank.folder_of(lab)}").all_submissions()
        graded_there = {row.name for row in rows if row.through_nbgrader}
        assert through <= graded_there, (lab, through - graded_there)
