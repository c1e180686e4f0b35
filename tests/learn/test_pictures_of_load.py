"""Pictures and sliders of load: each says in words what the data say."""

from __future__ import annotations

import builtins

import pytest

from minserve.learn import plots
from minserve.learn.widgets.load import load_slider, redelivery_explorer

LIVES = [
    {"stage": "never", "events": [(0.0, "accepted"), (1.0, "committed")], "attempts": 1, "state": "done"},  # noqa: E501
    {"stage": "in the handler", "events": [(0.0, "accepted"), (2.0, "killed")], "attempts": 2, "state": "done"},  # noqa: E501
]  # fmt: skip
PICTURES = {
    "kept_waiting": lambda: plots.kept_waiting({"a": [(0, 0.1), (1, 3.0), (9, 9.0)]}, 5),
    "queue_curve": lambda: plots.queue_curve(0.9, 0.0),
    "rungs": lambda: plots.rungs({"mine": [(0.0, 0), (3.0, 4)]}, 10),
    "redelivery": lambda: plots.redelivery(LIVES),
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_has_words_in_html_and_in_the_file(name, tmp_path):
    picture = PICTURES[name]()
    assert len(picture.alt) > 30 and picture.alt.endswith(".")
    assert f'alt="{picture.alt}"' in picture.html()
    assert picture.save(tmp_path / "p.png").stat().st_size > 3000


def test_words_hold_the_figures():
    assert "a: 1 of 2 took more than" in PICTURES["kept_waiting"]().alt
    assert "waits 0.45 s on average, 4.5 times" in PICTURES["queue_curve"]().alt
    assert "mine: at most rung 4 (reject low)" in PICTURES["rungs"]().alt
    assert "dies in the handler: done after 2 attempts" in PICTURES["redelivery"]().alt


def test_load_slider_moves_the_mark():
    shown = load_slider()
    load, spread, view = shown.widget.children
    load.value, spread.value = 0.5, 0.0
    assert "At a load of 50%" in view.value and "waits 0.05 s" in view.value
    assert "At a load of 80%" in shown.still.alt


def test_redelivery_explorer_shows_the_chosen_life():
    shown = redelivery_explorer(LIVES)
    choice, view = shown.widget.children
    assert choice.options == ("in the handler",)
    assert "dies in the handler" in view.value


def test_without_ipywidgets_there_are_still_pictures(monkeypatch):
    real = builtins.__import__

    def no_widgets(name, *args, **kwargs):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_widgets)
    assert isinstance(load_slider(), plots.Picture)
    assert isinstance(redelivery_explorer(LIVES), plots.Picture)
