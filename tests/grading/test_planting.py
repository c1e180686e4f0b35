"""Faults are planted, solutions go, and nothing leaks into what learners get."""

import json

import pytest

from autograder import notebooks, planting, release, scoring
from autograder.bank.base import cell, set_source
from autograder.bank.lab3 import released
from minserve.errors import ConfigError

LAB = scoring.find("lab3")
SOURCE = """\
def f():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION
    ### BEGIN FAULT a
    # return 2  # why
    ### END FAULT
    ### BEGIN FAULT b
    # if True:
    #     return 3
    ### END FAULT
    ### BEGIN FAULT c
    # print()
    ### END FAULT"""


@pytest.mark.parametrize(
    "variant, built",
    [
        (None, "def f():\n    return 1"),
        ("a", "def f():\n    return 2  # why"),
        ("b", "def f():\n    if True:\n        return 3"),
        ("other", "def f():\n    return 1"),
    ],
)
def test_a_variant_gets_its_own_fault_or_keeps_the_solution(variant, built):
    assert planting.plant(SOURCE, variant) == built


def test_a_fault_without_label_belongs_to_every_variant():
    source = "### BEGIN SOLUTION\nright\n### END SOLUTION\n### BEGIN FAULT\n# wrong\n### END FAULT"
    assert planting.plant(source, "b") == "wrong"
    assert planting.plant(source, None) == "right"
    assert planting.replaced(source, "b") == ["right"]


@pytest.mark.parametrize(
    "source",
    [
        "### BEGIN FAULT a\n# never closed",
        "### END SOLUTION",
        "### BEGIN SOLUTION\n### BEGIN FAULT a\n### END FAULT\n### END SOLUTION",
        "### BEGIN FAULT a\nnot_a_comment\n### END FAULT",
    ],
)
def test_a_malformed_region_is_refused(source):
    with pytest.raises(ConfigError):
        planting.plant(source, "a")


@pytest.mark.parametrize("name", ["lab3-engine", "lab3-regression", "lab3-explanation"])
def test_a_leaked_answer_is_found(name):
    notebook = released()
    source = notebooks.source_cells(LAB.name)[name]
    if planting.has_faults(source):
        source = planting.plant(source, None)
    text = json.dumps(set_source(notebook, name, source))
    assert release.find_leaks(text, LAB, release.DEFAULT_VARIANT) != []


def test_a_leaked_output_or_marker_is_found():
    notebook = released()
    cell(notebook, "lab3-storm")["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "42"}
    ]
    own = set_source(notebook, "lab3-title", "### BEGIN HIDDEN TESTS")
    leaks = release.find_leaks(json.dumps(own), LAB, release.DEFAULT_VARIANT)
    assert {"### BEGIN", "HIDDEN TESTS", "outputs of lab3-storm"} <= set(leaks)
