"""Every suite accepts differently written right parts, and rejects wrong ones by the right message.

A wrong variant is the right part with one mistake; the table says which rule must catch it first
and a piece of what the learner must then read.
"""

from __future__ import annotations

import textwrap

import pytest
from variants import RIGHT, WRONG

from minserve.learn.checker import load
from minserve.learn.conformance import BROKEN, CRASHED, KEPT, examine, suite_of
from minserve.learn.parts import SLOTS


def verdicts_on(part: str, text: str):
    name = RIGHT[part][0]
    return examine(suite_of(part), load(name, textwrap.dedent(text)), "<your cell>")


@pytest.mark.parametrize("part", SLOTS)
def test_reference_keeps_every_rule(part):
    verdicts = examine(suite_of(part), SLOTS[part].load_reference())
    assert [v.rule for v in verdicts] == [rule.name for rule in suite_of(part).rules]
    assert {v.state for v in verdicts} == {KEPT}


@pytest.mark.parametrize(
    ("part", "which"), [(part, which) for part in RIGHT for which in RIGHT[part][1]]
)
def test_right_parts_are_accepted_however_they_are_written(part, which):
    wrong = [v for v in verdicts_on(part, RIGHT[part][1][which]) if v.state != KEPT]
    assert wrong == []


def test_every_part_is_tried_with_two_right_and_six_wrong_variants():
    assert all(len(RIGHT[part][1]) >= 2 and len(WRONG[part]) >= 6 for part in SLOTS)


@pytest.mark.parametrize(
    ("part", "mistake"), [(part, mistake) for part in WRONG for mistake in WRONG[part]]
)
def test_mistake_is_named_by_the_rule_that_it_breaks(part, mistake):
    before, after, rule, message = WRONG[part][mistake]
    right = next(iter(RIGHT[part][1].values()))
    assert before in right, "the right part no longer has what this mistake replaces"
    found = [v for v in verdicts_on(part, right.replace(before, after)) if v.state != KEPT]
    assert found, "no rule caught it"
    assert (found[0].rule, found[0].state) == (rule, BROKEN)
    assert message in found[0].what
    assert found[0].example and found[0].hint


def test_counterexample_holds_only_what_breaks_the_rule():
    mistakes = WRONG["response_cache"]
    before, after, rule, _ = mistakes["keeps empty answers"]
    right = next(iter(RIGHT["response_cache"][1].values()))
    found = verdicts_on("response_cache", right.replace(before, after))
    [broken] = [verdict for verdict in found if verdict.rule == rule]
    assert [line.partition("(")[0] for line in broken.example] == ["put", "get"]


def test_every_rule_has_words_and_every_step_a_ladder():
    for part in SLOTS:
        suite = suite_of(part)
        assert {rule.step for rule in suite.rules} == set(suite.steps) == set(suite.ladders)
        assert all(rule.invariant.endswith(".") and rule.hint for rule in suite.rules)
        assert len({rule.name for rule in suite.rules}) == len(suite.rules)


def test_every_rule_is_the_first_to_catch_some_mistake():
    # A rule that nothing in the table breaks first may be one that cannot fail.
    caught = {(part, row[2]) for part, rows in WRONG.items() for row in rows.values()}
    assert {(p, r.name) for p in SLOTS for r in suite_of(p).rules} - caught == set()


def test_exception_in_a_part_is_shown_at_its_line():
    text = "def estimate(config, bytes_per_value):\n    wrong = config.layers\n    return wrong\n"
    first = verdicts_on("kv_bytes_per_token", text)[0]
    assert (first.state, first.line, first.code) == (CRASHED, 2, "wrong = config.layers")
    assert "has no attribute 'layers'" in first.what
