"""Lesson 5's explorers: what a key lets meet, and where a threshold stands."""

from __future__ import annotations

import builtins

import pytest

from minserve.learn import plots
from minserve.learn.widgets import reuse


def bad(chosen):
    return {name: outcome for name, outcome in reuse.outcomes(chosen) if outcome not in OK}


OK = ("hit", "miss")
SAFE = reuse.SAFE


def test_the_safe_key_serves_all_it_may_and_nothing_else():
    assert bad(SAFE) == {}
    assert [outcome for _, outcome in reuse.outcomes(SAFE)].count("hit") == 3


@pytest.mark.parametrize(
    ("field", "second", "outcome"),
    [
        ("tenant", "another tenant asks", "leak"),
        ("roles", "a colleague who is no admin asks", "leak"),
        ("history", "the same words, later in a chat", "wrong"),
        ("model", "a new model", "wrong"),
        ("decoding", "at most 4 tokens wanted", "wrong"),
        ("policy version", "the policy has changed", "wrong"),
        ("locale", "an answer in German wanted", "wrong"),
        ("question", '"us" and not "US"', "wrong"),
        ("Unicode NFC", "é typed in two strokes", "needless"),
    ],
)
def test_a_field_left_out_of_the_key_shows_as_what_it_lets_happen(field, second, outcome):
    assert bad(SAFE - {field}) == {second: outcome}


def test_too_much_in_the_key_is_a_needless_miss_and_lower_case_a_wrong_answer():
    everybody = [name for name, _, _, if_shared in reuse.SECOND if if_shared == "hit"]
    assert bad(SAFE | {"request id"}) == dict.fromkeys(everybody, "needless")
    assert bad(SAFE | {"user"}) == {"a colleague with the same role asks": "needless"}
    assert bad(SAFE | {"lower case"}) == {'"us" and not "US"': "wrong"}


def test_a_box_changes_the_picture_and_its_words():
    shown = reuse.key_explorer()
    *rows, view = shown.widget.children
    boxes = {box.description: box for row in rows for box in row.children}
    assert set(boxes) == set(reuse.FIELDS) and "LEAK" not in view.value
    boxes["tenant"].value = False
    assert "LEAK: served somebody else&#x27;s answer: another tenant asks" in view.value
    boxes["request id"].value = True
    assert reuse.NOTES["request id"] in view.value
    assert "LEAK" not in shown.still.alt


def test_the_slider_marks_its_threshold_on_every_curve():
    shown = reuse.false_hit_explorer({"a": [(0.5, 0.9, 0.4), (0.6, 0.7, 0.5)]})
    slider, view = shown.widget.children
    assert "at threshold 0.6 70% of the paraphrases are served" in view.value
    slider.value = 0.5
    assert "at threshold 0.5 90%" in view.value and "40% of what is served is wrong" in view.value


def test_without_ipywidgets_both_are_pictures(monkeypatch):
    real = builtins.__import__

    def no_widgets(name, *args, **kwargs):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_widgets)
    curve = {"a": [(0.5, 0.9, 0.4)]}
    for shown in (reuse.key_explorer(), reuse.false_hit_explorer(curve)):
        assert isinstance(shown, plots.Picture)
