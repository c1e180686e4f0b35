"""An instructor's own scenarios count beside ours, and none goes missing silently."""

import pytest
from grading.in_process import vector

from autograder import bank, release, scoring
from autograder.bank import lab3
from autograder.scoring import overlay
from minserve.errors import ConfigError

SEED = b"ann"
OWNERS = bank.right_sources(scoring.find("lab3").name)["right_owners"]
# Leaks, but only for a name that none of the public scenarios has.
SHY = OWNERS.replace(
    "        if blocks is not None:", '        if blocks is not None and request_id != "zoë":'
)
OVERLAY = """
from autograder.scoring.stories import Story


def by_another_name(world, rng):
    world.submit("zoë", rng.randint(9, 24), 3)
    world.begin(8)
    world.finish()
    world.cancel("zoë")


STORIES = {"lab3-returned": (Story(by_another_name, ("stranded",)),)}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(overlay.VARIABLE, str(tmp_path))
    return tmp_path


def scores(source):
    return vector(scoring.find("lab3"), lab3.BANK.solved(source), SEED)


def test_a_scenario_of_ones_own_finds_what_no_public_one_does(folder):
    assert SHY != OWNERS
    assert scores(SHY) == scores(OWNERS) == (4.0, 4.0, 3.0, 3.0, 3.0)
    (folder / "lab3.py").write_text(OVERLAY, "utf-8")
    assert scores(OWNERS) == (4.0, 4.0, 3.0, 3.0, 3.0)
    assert scores(SHY) == (0.0, 4.0, 3.0, 3.0, 3.0)
    assert "stranded" in scoring.find("lab3_cancellation_leak").kinds["lab3-returned"]
    assert scoring.find("lab4") is scoring.LABS["lab4"]


def test_its_text_is_part_of_the_version_that_is_kept_with_each_grade(folder):
    plain = release.version(scoring.find("lab3"))
    (folder / "lab3.py").write_text(OVERLAY, "utf-8")
    extended = release.version(scoring.find("lab3"))
    (folder / "lab3.py").write_text(OVERLAY + "\n", "utf-8")
    assert len({plain, extended, release.version(scoring.find("lab3"))}) == 3


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("STORIES = {'lab3-nothing': ()}", "lab3-nothing"),
        ("1 / 0", "ZeroDivisionError"),
        (OVERLAY.replace('"stranded"', '"of_mine"'), "of_mine"),
    ],
)
def test_an_overlay_that_cannot_be_used_is_refused(folder, text, word):
    (folder / "lab3.py").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=word):
        scoring.find("lab3")


def test_a_folder_that_is_gone_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(overlay.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="no folder"):
        scoring.find("lab3")
