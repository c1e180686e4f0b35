"""Interactive pictures of load: a queue at any load, and a job whose worker dies when you like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minserve.learn.plots import queue_curve, redelivery
from minserve.learn.widgets import interactive


def load_slider() -> Any:
    """Move the load and how much lengths differ; without ipywidgets, the same at one load."""
    try:
        import ipywidgets as w
    except ImportError:
        return queue_curve()
    look = {
        "style": {"description_width": "14em"},
        "layout": w.Layout(width="40em"),
        "continuous_update": False,
    }
    controls = {
        "load": w.FloatSlider(value=0.8, min=0.05, max=0.98, step=0.01, description="load", **look),
        "variability": w.SelectionSlider(
            options=[0.0, 0.5, 1.0, 2.0, 4.0, 8.0],
            value=1.0,
            description="how much lengths differ",
            **look,
        ),
    }
    return interactive(controls, lambda **chosen: queue_curve(**chosen).html(), queue_curve())


def redelivery_explorer(lives: Sequence[Mapping[str, Any]]) -> Any:
    """Choose when the worker dies, and see that life below the undisturbed one.

    `lives` as for `plots.redelivery`, one of them of stage `never`.
    """
    still = redelivery(lives)
    try:
        import ipywidgets as w
    except ImportError:
        return still
    by_stage = {told["stage"]: told for told in lives}
    stages = [stage for stage in by_stage if stage != "never"]
    choice = w.Dropdown(
        options=stages,
        value=stages[-1],
        description="the worker dies",
        style={"description_width": "10em"},
        layout=w.Layout(width="36em"),
    )

    def draw(stage: str) -> str:
        return redelivery([by_stage["never"], by_stage[stage]]).html()

    return interactive({"stage": choice}, draw, still)
