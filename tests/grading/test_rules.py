"""Late rules: grace, a share per day, a cap, extensions and groups, from course.toml."""

from datetime import timedelta

import pytest

from autograder import rules, scoring
from minserve.errors import ConfigError

LAB = scoring.find("lab3")
TEXT = """\
[late]
grace_minutes = 15
per_day = 0.10
cap = 0.50

[due]
lab3 = 2026-12-04T18:00:00+01:00

[extensions.lab3]
ann = 2

[groups.lab3]
red = ["bob", "cem"]
"""


def read(folder, text):
    (folder / "course.toml").write_text(text)
    return rules.read(folder)


def test_a_course_without_rules_takes_nothing_off(tmp_path):
    told = rules.read(tmp_path)
    assert told.due_for(LAB, "ann") is None
    assert told.penalty(LAB, "ann", rules.datetime(2099, 1, 1, tzinfo=rules.UTC)) == 0


@pytest.mark.parametrize(
    "student, late, days, points",
    [
        ("dan", timedelta(0), 0, 0.0),
        ("dan", timedelta(minutes=15), 0, 0.0),
        ("dan", timedelta(minutes=16), 1, 2.0),  # a tenth of 20 points
        ("dan", timedelta(days=1), 1, 2.0),
        ("dan", timedelta(days=1, seconds=1), 2, 4.0),
        ("dan", timedelta(days=300), 300, 10.0),  # the cap
        ("ann", timedelta(days=2, minutes=15), 0, 0.0),  # two days more
        ("ann", timedelta(days=2, minutes=16), 1, 2.0),
    ],
)
def test_lateness_counts_from_the_due_time_that_belongs_to_the_student(
    tmp_path, student, late, days, points
):
    told = read(tmp_path, TEXT)
    received = told.due["lab3"] + late
    assert told.days_late(LAB, student, received) == days
    assert told.penalty(LAB, student, received) == points


def test_a_due_time_without_a_zone_is_utc(tmp_path):
    told = read(tmp_path, "[due]\nlab3 = 2026-12-04T18:00:00\n")
    assert told.due_for(LAB, "ann").isoformat() == "2026-12-04T18:00:00+00:00"


def test_a_group_shares_what_any_of_its_members_hands_in(tmp_path):
    told = read(tmp_path, TEXT)
    assert told.group_of(LAB, "bob") == told.group_of(LAB, "cem") == "red"
    assert set(told.members(LAB, "bob")) == {"red", "bob", "cem"}
    assert told.members(LAB, "ann") == ("ann",)


@pytest.mark.parametrize(
    "text, words",
    [
        ("[late", "cannot read"),
        ("[lte]\nper_day = 0.1", "nobody reads [lte]"),
        ("late = 3", "nobody reads [late]"),
        ("[late]\nper_dya = 0.1", "nobody reads late.per_dya"),
        ("[late]\nper_day = '10%'", "late.per_day cannot be '10%'"),
        ("[late]\nper_day = true", "late.per_day cannot be True"),
        ("[late]\nper_day = 10", "between 0 and 1"),
        ("[due]\nlab3 = 'Friday'", "due.lab3 cannot be 'Friday'"),
        ("[due]\nlab33 = 2026-12-04T18:00:00Z", "due.lab33 is no lab"),
        ("[late]\ngrace_minutes = inf", "endless grace"),
        ("[privacy]\nkeep_days = 1000000000", "keep_days are between"),
        ("[extensions.lab3]\nann = -1", "extensions.lab3 are days"),
        ("[extensions.lab3]\nann = nan", "extensions.lab3 are days"),
        ("[extensions.lab3]\nann = inf", "extensions.lab3 are days"),
        ("[groups.lab3]\nred = 'ab'", "groups.lab3 are lists"),
        ("[groups.lab3]\na = ['x']\nb = ['x']", "somebody in two groups"),
    ],
)
def test_a_mistake_in_the_rules_is_named(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
