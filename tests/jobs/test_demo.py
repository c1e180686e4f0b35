"""The demo tells the truth: one effect, wherever the worker dies."""

import pytest

from minserve.cli.demo import STAGES, life
from minserve.learn.plots import redelivery


@pytest.mark.parametrize("stage", STAGES)
def test_job_has_one_effect_wherever_its_worker_dies(stage):
    told = life(stage)
    is_redelivered = stage in STAGES[2:5]
    assert told["state"] == "done"
    assert told["attempts"] == 1 + is_redelivered
    draft = {"draft": 1} if stage == "in the handler" else {}
    assert told["ledger"] == draft | {"mail": told["attempts"]}
    assert ("zombie refused" in [name for _, name in told["events"]]) == is_redelivered


def test_lives_are_drawn(tmp_path):
    picture = redelivery([life("never"), life("after the claim")])
    assert picture.save(tmp_path / "new" / "lives.png").stat().st_size > 5_000
    assert "dies after the claim: done after 2 attempts" in picture.alt
